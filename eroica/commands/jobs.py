"""``eroica run``, ``demo`` and ``collect``: commands that meet a live job."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from eroica.commands import output
from eroica.commands.diagnosing import JsonOption, show_verdict
from eroica.incident import IncidentFolder

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


def register(app: typer.Typer) -> None:
    app.command(context_settings=PASS_THROUGH)(run)
    app.command()(demo)
    app.command()(collect)


def run(
    context: typer.Context,
    once: Annotated[
        bool, typer.Option("--once", help="One verdict, then the job is ended.")
    ] = False,
    as_json: JsonOption = False,
    after: Annotated[
        float, typer.Option(help="With --once: seconds of training to watch.", min=1)
    ] = 30.0,
    keep_traces: Annotated[
        Path | None, typer.Option(help="With --once: keep the raw profiler files in this folder.")
    ] = None,
    on_incident: Annotated[
        str | None, typer.Option(help="A command to run at an incident; gets its id.")
    ] = None,
) -> int:
    """Watch a job with no change of its code.

    Example: eroica run -- torchrun --nproc_per_node=8 train.py
    """
    from eroica.errors import InputError

    command = context.args
    if not command:
        raise InputError(
            "no command to run",
            "expected one after --",
            "eroica run -- torchrun --nproc_per_node=8 train.py",
        )
    if once:
        return _run_once(command, after, keep_traces, as_json=as_json)
    if keep_traces is not None:
        raise InputError(
            "--keep-traces needs --once",
            "a watch to the job's end deletes each window once it is read",
            "eroica run --once --keep-traces DIR -- CMD",
        )
    told = output.split_words("--on-incident", on_incident) if on_incident is not None else None
    return _run_on(command, told)


def _run_once(command: list[str], after: float, keep_traces: Path | None, *, as_json: bool) -> int:
    from eroica import gathering, pipeline
    from eroica.watch.run import watch

    with output.progress() as show:
        result = watch(
            command,
            once=True,
            after_s=after,
            source_root=str(gathering.source_root_of(command)),
            keep_traces=keep_traces,
            progress=show,
        )
        folder = pipeline.conclude(gathering.from_watch(result), progress=show)
    show_verdict(folder, as_json=as_json)
    return 0


def _run_on(command: list[str], on_incident: list[str] | None) -> int:
    """Watch to the job's own end; each incident is told on stderr. Its exit code is ours."""
    from eroica import gathering, pipeline
    from eroica.report import terminal
    from eroica.watch.result import WatchResult
    from eroica.watch.run import watch

    console = output.stderr()

    def tell(result: WatchResult) -> None:
        output.clear_spinner()
        folder = pipeline.conclude(gathering.from_watch(result))
        terminal.print_incident(console, folder.read_incident(), folder.read_diagnoses())
        terminal.print_next(console, [(f"eroica fix {folder.id}", "a patch for it")])
        if on_incident is not None:
            call_on_incident(on_incident, folder)

    with output.progress() as show:
        result = watch(
            command,
            once=False,
            source_root=str(gathering.source_root_of(command)),
            progress=show,
            on_incident=tell,
        )
    return exit_status(result.exit_code)


def exit_status(code: int | None) -> int:
    """A command's exit code as a shell gives it: 128 + n where signal n ended it."""
    code = code or 0
    return 128 - code if code < 0 else code


def call_on_incident(command: list[str], folder: IncidentFolder) -> None:
    """Start the user's command with the incident's id; its failure is said, nothing more."""
    try:
        subprocess.Popen(
            [*command, folder.id],
            env=os.environ | {"EROICA_INCIDENT": str(folder.path.resolve())},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
    except OSError as error:
        output.note(f"--on-incident failed: {error}")


def demo(
    example: Annotated[
        str, typer.Argument(help="Which example; eroica demo list names them.")
    ] = "barrier_on_rank0",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Apply the patch unasked.")] = False,
    ranks: Annotated[int, typer.Option(help="Processes to start.", min=2, max=16)] = 4,
) -> int:
    """Run a small job with a real fault here: watched, diagnosed, explained, patched.

    Example: eroica demo
    """
    from eroica import demonstration

    if example == "list":
        for name, sentence in demonstration.examples().items():
            output.stdout().print(f"{name:<28} {sentence}", markup=False)
        return 0
    return demonstration.show(example, yes=yes, num_ranks=ranks)


def collect(
    out: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")] = Path(
        "eroica-evidence"
    ),
    pid: Annotated[int | None, typer.Option(help="A rank of the job.")] = None,
    launch: Annotated[
        str | None, typer.Option(help="Run it on all hosts: 'srun -N 4', 'ssh host1' ...")
    ] = None,
) -> int:
    """Gather stacks, dumps and states of a running job into a folder.

    Example: eroica collect -o evidence && eroica diagnose evidence
    """
    from eroica.watch.collecting import collect_to

    words = output.split_words("--launch", launch) if launch is not None else None
    with output.progress() as show, output.writing(out):
        written = collect_to(out, pid=pid, launch=words, progress=show)
    output.say(f"{written} written")
    output.say(f"next    eroica diagnose {out}")
    return 0
