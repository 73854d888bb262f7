"""``eroica fix`` and ``undo``: from a cause to a patch in the work tree."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from eroica import incident as incidents
from eroica.commands import output, proposing
from eroica.commands.incidents import IncidentArgument
from eroica.errors import InputError
from eroica.gathering import Progress
from eroica.incident import IncidentFolder
from eroica.records import Decision, Incident, Patch


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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the patches as JSON and nothing else.")
    ] = False,
    no_llm: Annotated[bool, typer.Option("--no-llm", help="Fixers only, no model.")] = False,
    model: Annotated[str | None, typer.Option(help="openai:NAME, replay:FILE ...")] = None,
    verify: Annotated[str | None, typer.Option(help="Rehearse the patches with CMD.")] = None,
    branch: Annotated[
        str | None, typer.Option(help="Commit the accepted patches to this new branch.")
    ] = None,
    patch_out: Annotated[Path | None, typer.Option(help="Write the diff to a file.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be written; write no source.")
    ] = False,
) -> int:
    """Go from a stuck or slow job to a patch. Writes nothing without --apply or your yes.

    Example: eroica fix
    """
    _check(accept, None if no_llm else model)
    command = output.split_words("--verify", verify) if verify is not None else None
    with output.progress() as show:
        folder = _resolve(target, pid, source, show)
        incident = folder.read_incident()
        root = source_root_of(source, incident)
        patches = proposing.propose(folder, incident, root, model=model, no_llm=no_llm, show=show)
        if command is not None:
            patches = proposing.rehearse(folder, patches, command, root, incident, show)
    is_review = accept is None and not (as_json or apply or branch or patch_out or dry_run)
    if is_review and patches and output.is_interactive():
        from eroica.commands.reviewing import review_on_terminal

        return review_on_terminal(folder, root, verify=command, model=model, no_llm=no_llm)
    accept = accept or ("all" if dry_run else None)
    chosen = proposing.accepted(incident, patches, accept)
    done = Outcome(left_out=proposing.left_out(patches, chosen, accept))
    if dry_run:
        done.would = proposing.checked(chosen, root)
    if not chosen and (dry_run or apply or branch):
        done.why_not = proposing.why_none(patches, accept)
    elif branch is not None and not dry_run:
        done.branch, done.commit = branch, proposing.commit(folder, incident, chosen, root, branch)
    elif apply and not dry_run:
        patches = proposing.apply(folder, patches, chosen, root)
        done.written = [patch for patch in patches if patch.id in {one.id for one in chosen}]
    if patch_out is not None:
        diffs = "".join(patch.diff for patch in (chosen if accept else patches))
        output.write(patch_out, diffs.encode("utf-8", "surrogateescape"))
    _show(folder, incident, patches, done, as_json=as_json)
    return 0


@dataclass
class Outcome:
    """What this call of ``fix`` wrote."""

    written: list[Patch] | None = None
    """Patches applied to the work tree."""
    branch: str = ""
    commit: str = ""
    why_not: str = ""
    """Why nothing was written though it was asked for."""
    would: list[str] | None = None
    """Of a dry run: the files that would be written, each checked to be as it was."""
    left_out: list[str] = field(default_factory=list)
    """Patches that clash with one that is taken, in words."""


def _check(accept: str | None, model: str | None) -> None:
    """What is named on the command line is there, or nothing is begun."""
    if accept not in (None, "safe", "all"):
        raise InputError(
            f"--accept {accept} is unknown",
            "expected safe or all",
            next_step="eroica fix --accept safe --apply",
        )
    if model is not None:
        from eroica.explain.model import resolve

        resolve(model)


def undo(reference: IncidentArgument = None) -> int:
    """Take the last application of patches back.

    Example: eroica undo
    """
    from eroica import fix as room

    folder = incidents.find(reference) if reference else _last_applied()
    _ask_before_undo(folder)
    for path in room.undo(folder):
        output.say(f"restored {path}")
    return 0


def _ask_before_undo(folder: IncidentFolder) -> None:
    """Ask where files outside this folder would be written: an incident may be someone else's."""
    from eroica.fix.apply import last_application

    for decision in last_application(folder):
        root = Path(decision.root).resolve()
        if not root.is_relative_to(Path.cwd().resolve()) and output.is_interactive():
            output.say(f"{folder.id} was applied to {', '.join(decision.files)} in {root}")
            typer.confirm("Restore that?", default=True, abort=True)


def _last_applied() -> IncidentFolder:
    """The incident of the newest application that stands, whichever incident is the newest."""
    from eroica.fix.apply import last_application

    standing: list[tuple[Decision, IncidentFolder]] = []
    for folder in incidents.list_folders():
        standing += [(decision, folder) for decision in last_application(folder)[-1:]]
    if not standing:
        raise InputError("nothing to undo", "no incident here has an applied patch", "eroica list")
    return max(standing, key=lambda pair: pair[0].time)[1]


def _resolve(
    target: str | None, pid: int | None, source: Path | None, show: Progress
) -> IncidentFolder:
    """An existing path wins over an incident whose id has the same word in it."""
    from eroica import gathering, pipeline

    if target is None:
        gathered = gathering.from_pid(pid, source_root=source, progress=show)
        return pipeline.conclude(gathered, progress=show)
    path = Path(target)
    if path.exists() and not incidents.is_incident(path):
        return pipeline.diagnose_paths([path], source_root=source, progress=show)
    return incidents.find(target)


def source_root_of(given: Path | None, incident: Incident) -> Path:
    if given is not None:
        if not given.is_dir():
            raise InputError(
                f"--source {given} is not a folder",
                found="expected the folder that holds the job's scripts",
                next_step="eroica fix --source DIR",
            )
        return given.resolve()
    recorded = incident.job.source_root
    return Path(recorded) if recorded and Path(recorded).is_dir() else Path.cwd()


def _show(
    folder: IncidentFolder,
    incident: Incident,
    patches: list[Patch],
    done: Outcome,
    *,
    as_json: bool,
) -> None:
    if as_json:
        output.print_bytes(incidents.encode(fix_record(folder.id, patches)))
        for line in (*_would(done), *done.left_out):
            output.note(line)
        if done.why_not:
            output.note(f"nothing was written: {done.why_not}")
        return
    from eroica.report import terminal

    console = output.stdout()
    terminal.print_incident(console, incident, folder.read_diagnoses())
    for patch in patches:
        terminal.print_patch(console, patch)
    if not patches:
        first = incident.causes[0] if incident.causes else None
        console.print()
        output.say(f"no patch: {first.advice if first else 'there is no cause to mend'}")
    _show_runbook(incident)
    _show_ladder(folder, incident)
    _show_outcome(folder, patches, done)


def _show_outcome(folder: IncidentFolder, patches: list[Patch], done: Outcome) -> None:
    from eroica.report import terminal

    console = output.stdout()
    console.print()
    for patch in done.written or ():
        output.say(f"applied {patch.id} to {', '.join(edit.path for edit in patch.edits)}")
    if done.branch:
        output.say(f"committed to branch {done.branch} as {done.commit[:12]}")
        output.say("the work tree is as it was")
    for line in (*_would(done), *done.left_out):
        output.say(line)
    if done.why_not:
        output.say(f"nothing was written: {done.why_not}")
    standing = [patch for patch in patches if patch.applied]
    commands = [("eroica undo", "takes it back")] if done.written else []
    if done.branch:
        commands.append((f"git merge {done.branch}", "brings it to the work tree"))
    elif patches and not standing:
        if done.why_not:
            commands.append((f"eroica review {folder.id}", "decides on each hunk"))
        elif any(patch.label != "display-only" for patch in patches):
            commands.append((f"eroica fix {folder.id} --accept all --apply", "writes it"))
        commands.append((f"eroica fix {folder.id} --verify CMD", "rehearses it first"))
    elif standing and not done.written:
        output.say(f"{', '.join(patch.id for patch in standing)} was applied before")
        commands.append((f"eroica undo {folder.id}", "takes it back"))
    terminal.print_next(console, commands)


def _would(done: Outcome) -> list[str]:
    """What a dry run found."""
    return [f"would write {path}" for path in done.would or ()]


def _show_runbook(incident: Incident) -> None:
    """For a fault outside the code: which host, which checks, which settings."""
    from eroica.fix.runbook import runbook

    book = runbook(incident)
    if book is None:
        return
    console = output.stdout()
    hosts = f" ({', '.join(book.hosts)})" if book.hosts else ""
    console.print()
    output.say(f"RUNBOOK   {book.title}{hosts}")
    for label, lines in (
        ("check", book.checks),
        ("do", book.remedy),
        ("settings", book.settings),
    ):
        for number, line in enumerate(lines):
            output.say(f"{label if number == 0 else '':<10}{line}")


def _show_ladder(folder: IncidentFolder, incident: Incident) -> None:
    """For a job that is stuck right now: what can be done, gentlest first; nothing is done."""
    if not incident.source.startswith(("live", "pid")):
        return
    from eroica.fix.ladder import ladder

    rungs = ladder(incident, folder.read_evidence())
    for number, rung in enumerate(rungs):
        output.say(f"{'now' if number == 0 else '':<10}{rung.name}: {rung.does}")
        output.say(f"{'':<12}{rung.command}")
        output.say(f"{'':<12}risk: {rung.risk}")


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
