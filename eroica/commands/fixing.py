"""``eroica fix`` and ``undo``: from a cause to a patch in the work tree."""

import shlex
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from eroica import incident as incidents
from eroica.commands import output
from eroica.commands.diagnosing import JsonOption
from eroica.commands.incidents import IncidentArgument
from eroica.errors import InputError
from eroica.gathering import Progress
from eroica.incident import IncidentFolder
from eroica.records import Incident, Patch


def register(app: typer.Typer) -> None:
    app.command()(fix)
    app.command()(undo)


def fix(
    target: Annotated[
        str | None,
        typer.Argument(help="Incident, traces or dumps; left out: the stuck job on this host."),
    ] = None,
    pid: Annotated[int | None, typer.Option(help="A rank of a job on this host.")] = None,
    source: Annotated[Path | None, typer.Option(help="The job's source folder.")] = None,
    accept: Annotated[str | None, typer.Option(help="safe, or all (safe and review).")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write the accepted patches.")] = False,
    as_json: JsonOption = False,
    no_llm: Annotated[bool, typer.Option("--no-llm", help="Fixers only, no model.")] = False,
    model: Annotated[str | None, typer.Option(help="openai:NAME, replay:FILE ...")] = None,
    verify: Annotated[str | None, typer.Option(help="Rehearse the patches with CMD.")] = None,
    branch: Annotated[str | None, typer.Option(help="Commit to this new branch.")] = None,
    patch_out: Annotated[Path | None, typer.Option(help="Write the diff to a file.")] = None,
) -> int:
    """Go from a stuck or slow job to a patch. Writes nothing without --apply or your yes.

    Example: eroica fix
    """
    if accept not in (None, "safe", "all"):
        raise InputError(f"--accept {accept} is unknown", "expected safe or all")
    with output.progress() as show:
        folder = _resolve(target, pid, show)
        incident = folder.read_incident()
        root = source_root_of(source, incident)
        patches = _propose(folder, incident, root, None if no_llm else model, no_llm, show)
        if verify:
            patches = _rehearse(folder, patches, shlex.split(verify), root, incident.symptom, show)
    if accept is None and not as_json and patches and output.is_interactive():
        from eroica.commands.reviewing import review_on_terminal

        return review_on_terminal(folder, root)
    chosen = _accepted(patches, accept)
    if apply and chosen:
        patches = _apply(folder, patches, chosen, root, branch)
    if patch_out is not None:
        incidents.write_atomic(patch_out, "".join(p.diff for p in chosen or patches).encode())
    _show(folder, incident, patches, as_json=as_json, accept=accept, applied=apply)
    return 0


def undo(reference: IncidentArgument = None) -> int:
    """Take the last application of patches back.

    Example: eroica undo
    """
    from eroica import fix as room

    folder = incidents.find(reference) if reference else _last_applied()
    for path in room.undo(folder):
        output.stdout().print(f"restored {path}", markup=False)
    return 0


def _last_applied() -> IncidentFolder:
    for folder in reversed(incidents.list_folders()):
        decisions = folder.read_decisions()
        applied = [d.action for d in decisions if d.action in ("apply", "undo")]
        if applied.count("apply") > applied.count("undo"):
            return folder
    raise InputError("nothing to undo", "no incident here has an applied patch", "eroica list")


def _resolve(target: str | None, pid: int | None, show: Progress) -> IncidentFolder:
    from eroica import gathering, pipeline

    if target is None:
        gathered = gathering.from_pid(pid, progress=show)
        return pipeline.conclude(gathered, progress=show)
    known = [folder for folder in incidents.list_folders() if target in folder.id]
    path = Path(target)
    if not incidents.is_incident(path) and path.exists() and not known:
        return pipeline.diagnose_paths([path], progress=show)
    return incidents.find(target)


def source_root_of(given: Path | None, incident: Incident) -> Path:
    if given is not None:
        if not given.is_dir():
            raise InputError(f"--source {given} is not a folder")
        return given.resolve()
    recorded = incident.job.source_root
    return Path(recorded) if recorded and Path(recorded).is_dir() else Path.cwd()


def _propose(
    folder: IncidentFolder,
    incident: Incident,
    root: Path,
    model: str | None,
    no_llm: bool,
    show: Progress,
) -> list[Patch]:
    from eroica import fix as room

    show("looking for a patch")
    patches = room.propose(incident, evidence=folder.read_evidence(), source_root=root)
    if not no_llm:
        from eroica.commands.asking import patches_from_model

        patches += patches_from_model(folder, incident, root, model, progress=show)
    folder.write_patches(patches)
    return patches


def _rehearse(
    folder: IncidentFolder,
    patches: list[Patch],
    command: list[str],
    root: Path,
    symptom: str,
    show: Progress,
) -> list[Patch]:
    from eroica import fix as room

    rehearsed = []
    for patch in patches:
        show(f"rehearsing {patch.id}: {shlex.join(command)}")
        result = room.rehearse(patch, command, root, symptom=symptom)
        rehearsed.append(msgspec.structs.replace(patch, rehearsal=result))
    folder.write_patches(rehearsed)
    return rehearsed


def _accepted(patches: list[Patch], accept: str | None) -> list[Patch]:
    """Return the patches to apply: for each cause the first that the flag allows."""
    labels = {"safe": ("safe",), "all": ("safe", "review")}.get(accept or "", ())
    chosen: dict[str, Patch] = {}
    for patch in patches:
        is_good = patch.rehearsal is None or patch.rehearsal.verdict not in ("worse", "failed")
        if patch.label in labels and is_good:
            chosen.setdefault(patch.cause, patch)
    return list(chosen.values())


def _apply(
    folder: IncidentFolder,
    patches: list[Patch],
    chosen: list[Patch],
    root: Path,
    branch: str | None,
) -> list[Patch]:
    from eroica import fix as room

    if branch is not None:
        from eroica.fix.branch import commit_to_branch

        commit_to_branch(chosen, root, branch, folder.read_incident())
        stamp = incidents.now()
        marked = [msgspec.structs.replace(patch, applied=stamp) for patch in chosen]
    else:
        marked = room.apply(chosen, root, folder)
    applied = {patch.id: patch for patch in marked}
    updated = [applied.get(patch.id, patch) for patch in patches]
    folder.write_patches(updated)
    return updated


def _show(
    folder: IncidentFolder,
    incident: Incident,
    patches: list[Patch],
    *,
    as_json: bool,
    accept: str | None,
    applied: bool,
) -> None:
    if as_json:
        output.print_bytes(incidents.encode(fix_record(folder.id, patches)))
        return
    from eroica.report import terminal

    console = output.stdout()
    terminal.print_incident(console, incident, folder.read_diagnoses())
    for patch in patches:
        terminal.print_patch(console, patch)
    if not patches:
        first = incident.causes[0] if incident.causes else None
        why = first.advice if first is not None else "there is no cause to mend"
        console.print(f"\nno patch: {why}", markup=False)
    _show_runbook(incident)
    _show_ladder(folder, incident)
    written = [patch for patch in patches if patch.applied]
    for patch in written:
        names = ", ".join(edit.path for edit in patch.edits)
        console.print(f"\napplied {patch.id} to {names}", markup=False)
    commands = [("eroica undo", "takes it back")] if written else []
    if patches and not written:
        commands.append((f"eroica fix {folder.id} --accept all --apply", "writes it"))
        commands.append((f"eroica fix {folder.id} --verify CMD", "rehearses it first"))
    terminal.print_next(console, commands)


def _show_runbook(incident: Incident) -> None:
    """For a fault outside the code: which host, which checks, which settings."""
    from eroica.fix.runbook import runbook

    book = runbook(incident)
    if book is None:
        return
    console = output.stdout()
    hosts = f" ({', '.join(book.hosts)})" if book.hosts else ""
    console.print(f"\nRUNBOOK   {book.title}{hosts}", markup=False)
    for label, lines in (
        ("check", book.checks),
        ("do", book.remedy),
        ("settings", book.settings),
    ):
        for number, line in enumerate(lines):
            console.print(f"{label if number == 0 else '':<10}{line}", markup=False)


def _show_ladder(folder: IncidentFolder, incident: Incident) -> None:
    """For a job that is stuck right now: what can be done, gentlest first; nothing is done."""
    if not incident.source.startswith(("live", "pid")):
        return
    from eroica.fix.ladder import ladder

    rungs = ladder(incident, folder.read_evidence())
    console = output.stdout()
    for number, rung in enumerate(rungs):
        console.print(f"{'now' if number == 0 else '':<10}{rung.name}: {rung.does}", markup=False)
        console.print(f"{'':<12}{rung.command}", markup=False)
        console.print(f"{'':<12}risk: {rung.risk}", markup=False)


def fix_record(name: str, patches: list[Patch]) -> dict[str, object]:
    """The JSON of ``eroica fix``, as design and other tools know it."""
    rows = [
        {
            "id": patch.id,
            "cause": patch.cause,
            "source": patch.source,
            "label": patch.label,
            "title": patch.title,
            "why": patch.why,
            "behaviour": patch.behaviour,
            "files": [edit.path for edit in patch.edits],
            "diff": patch.diff,
            "gates": patch.gates,
            "rehearsal": patch.rehearsal,
            "applied": patch.applied,
        }
        for patch in patches
    ]
    return {"schema": 1, "incident": name, "patches": rows}
