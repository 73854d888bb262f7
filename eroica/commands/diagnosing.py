"""``eroica diagnose`` and ``eroica compare``: from evidence to a verdict."""

from pathlib import Path
from typing import Annotated

import typer

from eroica.commands import output
from eroica.incident import IncidentFolder

JsonOption = Annotated[bool, typer.Option("--json", help="Print incident.json and nothing else.")]


def register(app: typer.Typer) -> None:
    app.command()(diagnose)


def diagnose(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Trace folders or files, dumps, stacks, logs, or an incident."),
    ] = None,
    pid: Annotated[int | None, typer.Option(help="A rank of a job running on this host.")] = None,
    job: Annotated[bool, typer.Option("--job", help="The job running on this host.")] = False,
    as_json: JsonOption = False,
    explain: Annotated[bool, typer.Option("--explain", help="Ask the configured model.")] = False,
    model: Annotated[str | None, typer.Option(help="openai:NAME, replay:FILE ...")] = None,
    share: Annotated[
        str, typer.Option(help="What a model may see: none, names, functions or files.")
    ] = "functions",
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Print what a model would be sent; send nothing.")
    ] = False,
    baseline: Annotated[
        list[Path] | None, typer.Option(help="The same job when it was healthy.")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="The job's source folder.")] = None,
    perfetto: Annotated[Path | None, typer.Option(help="Write a small trace to look at.")] = None,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit 1 when a cause was found.")
    ] = False,
) -> int:
    """Say what is wrong with a job, from its files or while it runs.

    Example: eroica diagnose traces/
    """
    from eroica import gathering, pipeline

    _check(engine, model, share, is_asking=(explain or model is not None) and not show_prompt)
    with output.progress() as show:
        past = pipeline.patterns_of(baseline, engine, show) if baseline else None
        if pid is not None or job:
            found = gathering.from_pid(pid, source_root=source, progress=show)
            folder = pipeline.conclude(found, baseline=past, progress=show)
        else:
            folder = pipeline.diagnose_paths(
                resolve(paths), past=past, engine=engine, source_root=source, progress=show
            )
    if show_prompt:
        from eroica.commands.asking import print_prompt

        print_prompt(folder, share, source=source)
        return 0
    if explain or model:
        _show_and_explain(folder, model, share, source, as_json=as_json)
    else:
        show_verdict(folder, as_json=as_json)
    if perfetto is not None:
        from eroica.report.perfetto import write_perfetto

        with output.writing(perfetto):
            write_perfetto(folder, resolve(paths) if paths else [], perfetto)
    return int(exit_code and bool(folder.read_incident().causes))


def _show_and_explain(
    folder: IncidentFolder, model: str | None, share: str, source: Path | None, *, as_json: bool
) -> None:
    """Print what the rules say before a model is asked: a person never waits for it."""
    from eroica.commands.asking import explain_with_model
    from eroica.report import terminal

    console, incident = output.stdout(), folder.read_incident()
    if not as_json:
        terminal.print_incident(console, incident, folder.read_diagnoses())
    with output.progress() as show:
        answered = explain_with_model(
            folder, model, share=share, source=source, progress=show, quiet=as_json
        )
    if as_json:
        output.print_bytes(folder.incident_bytes())
        return
    if answered is not None:
        console.print()
        terminal.print_diagnosis(console, incident, answered)
    _print_next(folder)


def _check(engine: str, model: str | None, share: str, *, is_asking: bool) -> None:
    """Find out what cannot be used before minutes of work, not after."""
    from eroica.errors import InputError

    if engine not in ("local", "ray"):
        raise InputError(
            f"--engine {engine} is unknown",
            "expected local or ray",
            next_step="eroica diagnose PATH --engine local",
        )
    if is_asking:
        from eroica.commands.asking import share_of
        from eroica.explain.model import Limits
        from eroica.explain.model import resolve as resolve_model

        share_of(share)
        resolve_model(model)
        Limits.of()


def resolve(paths: list[Path] | None) -> list[Path]:
    """Turn what was typed into paths: an incident's id stands for its folder."""
    from eroica import incident
    from eroica.errors import InputError

    if not paths:
        raise InputError(
            "nothing to diagnose was named",
            "expected trace folders, dumps, logs, an incident, --pid or --job",
            "eroica diagnose traces/, or eroica run -- torchrun ... to watch a job",
        )
    known = incident.list_folders()
    return [path if path.exists() else _incident_or(path, known) for path in paths]


def _incident_or(path: Path, known: list[IncidentFolder]) -> Path:
    named = [folder.path for folder in known if str(path) and str(path) in folder.id]
    return named[0] if len(named) == 1 else path


def show_verdict(folder: IncidentFolder, *, as_json: bool, patches: bool = True) -> None:
    """Print the incident: its JSON, or the verdict with the next commands."""
    if as_json:
        output.print_bytes(folder.incident_bytes())
        return
    from eroica.report import terminal

    incident = folder.read_incident()
    terminal.print_incident(output.stdout(), incident, folder.read_diagnoses())
    _print_next(folder, patches=patches)


def _print_next(folder: IncidentFolder, *, patches: bool = True) -> None:
    from eroica.report import terminal

    incident = folder.read_incident()
    commands = []
    if incident.causes and incident.causes[0].action == "patch" and patches:
        commands.append((f"eroica fix {folder.id}", "a patch for it"))
    commands.append((f"eroica report {folder.id}", "for people who were not here"))
    if incident.causes:
        commands.append((f"eroica prompt {folder.id}", "the evidence as text for an assistant"))
    terminal.print_next(output.stdout(), commands)
