"""Proposals of an incident: made anew without losing older ones, rehearsed, chosen, written."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from eroica import incident as incidents
from eroica.commands import output
from eroica.errors import EroicaError
from eroica.gathering import Progress
from eroica.incident import IncidentFolder
from eroica.records import Decision, Incident, Patch, Rehearsal

LABELS = {"safe": ("safe",), "all": ("safe", "review")}


def propose(
    folder: IncidentFolder,
    incident: Incident,
    root: Path,
    *,
    model: str | None,
    no_llm: bool,
    show: Progress,
) -> list[Patch]:
    """Ask the fixers, then a model if one is there; what went wrong with a model is one line."""
    from eroica import fix as room

    show("looking for a patch")
    made = room.propose(incident, evidence=folder.read_evidence(), source_root=root)
    folder.write_patches(merged(made, folder.read_patches()))
    if not no_llm:
        from eroica.commands.asking import patches_from_model

        try:
            more = patches_from_model(folder, incident, root, model, progress=show)
        except EroicaError as error:
            output.note(f"no patch from a model: {error}")
            more = []
        except KeyboardInterrupt:  # ends the wait; the fixers' patches are there
            output.note("not waiting for the model any longer")
            more = []
        folder.write_patches([*folder.read_patches(), *more])
    return folder.read_patches()


def merged(made: Sequence[Patch], known: Sequence[Patch]) -> list[Patch]:
    """New proposals, then the known ones that nobody can make again.

    Those are what is applied, and what an assistant or a model wrote. A new proposal that is a
    known one keeps the known one's id, rehearsal and mark; else it gets an id of its own.
    """
    kept = {one.id: one for one in known if one.applied or not one.source.startswith("fixer ")}
    by_edits = {(one.cause, one.edits): one for one in known}
    taken = set(kept) | {one.id for one in by_edits.values()}
    result: list[Patch] = []
    for patch in made:
        same = by_edits.get((patch.cause, patch.edits))
        if same is not None:
            kept.pop(same.id, None)
            patch = msgspec.structs.replace(
                patch, id=same.id, rehearsal=same.rehearsal, applied=same.applied
            )
        elif patch.id in taken:
            patch = msgspec.structs.replace(patch, id=_free(patch.id[:1], taken))
        taken.add(patch.id)
        result.append(patch)
    return [*result, *kept.values()]


def _free(letter: str, taken: set[str]) -> str:
    return next(name for n in range(1, len(taken) + 2) if (name := f"{letter}{n}") not in taken)


def rehearse(
    folder: IncidentFolder,
    patches: Sequence[Patch],
    command: Sequence[str],
    root: Path,
    incident: Incident,
    show: Progress,
) -> list[Patch]:
    """Rehearse what could be applied. A rehearsal that cannot be run counts as failed."""
    from eroica import fix as room
    from eroica.detecting import detector_for

    rehearsed = []
    for patch in patches:
        if patch.label != "display-only" and not patch.applied:
            show(f"rehearsing {patch.id}: {shlex.join(command)}")
            try:
                result = room.rehearse(
                    patch, command, root, symptom=incident.symptom, detector=detector_for(incident)
                )
            except EroicaError as error:
                output.note(f"{patch.id} was not rehearsed: {error}")
                what = f"It could not be run: {error}".replace("\n", "; ")
                result = Rehearsal(command=tuple(command), verdict="failed", summary=what)
            patch = msgspec.structs.replace(patch, rehearsal=result)
        rehearsed.append(patch)
    folder.write_patches(rehearsed)
    return rehearsed


def accepted(incident: Incident, patches: Sequence[Patch], accept: str | None) -> list[Patch]:
    """The patches that ``--accept`` names: the review's own rule, of what is not applied yet."""
    from eroica.review.session import Session

    answered = {patch.cause for patch in patches if patch.applied}
    waiting = [patch for patch in patches if patch.cause not in answered]
    session = Session.of(incident, waiting)
    session.accept_labels(LABELS.get(accept or "", ()))
    names = {item.hunk.patch for item in session.items if item.state == "accepted"}
    return [patch for patch in waiting if patch.id in names]


def left_out(patches: Sequence[Patch], chosen: Sequence[Patch], accept: str | None) -> list[str]:
    """Say which patch that ``--accept`` names is not taken since its lines are taken, and where."""
    from eroica.fix.clashes import overlaps

    labels, taken = LABELS.get(accept or "", ()), {patch.id for patch in chosen}
    lines = []
    for patch in patches:
        if patch.id in taken or patch.label not in labels or patch.applied:
            continue
        for other in chosen:
            places = overlaps(patch, other)
            if places:
                lines.append(
                    f"{patch.id} ({patch.source}) is left out: it changes the same lines as "
                    f"{other.id} ({other.source}), {', '.join(places)}"
                )
    return lines


def why_none(patches: Sequence[Patch], accept: str | None) -> str:
    """Say why ``--accept`` takes none of the patches."""
    if not patches:
        return "there is no patch"
    if accept is None:
        return "--accept safe or --accept all says which patches"
    reasons = []
    for patch in patches:
        if patch.applied:
            reasons.append(f"{patch.id} is applied already")
        elif patch.label not in LABELS[accept]:
            reasons.append(f"{patch.id} is labelled {patch.label}")
        elif patch.rehearsal is not None:
            reasons.append(f"the rehearsal of {patch.id} says {patch.rehearsal.verdict}")
    return "; ".join(reasons) or "they answer causes that have an applied patch"


def apply(
    folder: IncidentFolder, patches: Sequence[Patch], chosen: Sequence[Patch], root: Path
) -> list[Patch]:
    """Write the chosen patches to the work tree; returns all patches with their marks."""
    from eroica import fix as room

    applied = {patch.id: patch for patch in room.apply(list(chosen), root, folder)}
    updated = [applied.get(patch.id, patch) for patch in patches]
    folder.write_patches(updated)
    return updated


def checked(chosen: Sequence[Patch], root: Path) -> list[str]:
    """Return the files the chosen patches would write, after all checks of a real application.

    EroicaError where one would be refused: a file that changed since, patches that clash.
    """
    from eroica import fix as room

    room.apply(list(chosen), root, is_dry=True)
    return list(dict.fromkeys(edit.path for patch in chosen for edit in patch.edits))


def commit(
    folder: IncidentFolder, incident: Incident, chosen: Sequence[Patch], root: Path, branch: str
) -> str:
    """Commit the chosen patches to a new branch; the work tree is as it was. Returns the hash."""
    from eroica.fix.branch import commit_to_branch

    made = commit_to_branch(chosen, root, branch, incident)
    for patch in chosen:
        folder.append_decision(
            Decision(
                time=incidents.now(),
                patch=patch.id,
                action="accept",
                comment=f"committed to branch {branch} as {made}",
                root=str(root.resolve()),
            )
        )
    return made
