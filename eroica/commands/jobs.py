"""``eroica run``, ``demo`` and ``collect``: commands that meet a live job."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from eroica.commands import output
from eroica.commands.diagnosing import JsonOption, show_verdict

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
        bool, typer.Option("--keep-traces", help="Keep the raw profiler files.")
    ] = False,
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
    from eroica import pipeline
    from eroica.watch.run import watch

    with output.progress() as show:
        result = watch(
            command,
            once=once,
            after_s=after,
            keep_traces=keep_traces,
            on_incident=on_incident,
            progress=show,
        )
        if not once:
            return result.exit_code or 0
        folder = pipeline.conclude(pipeline.gathered_from_watch(result), progress=show)
    show_verdict(folder, as_json=as_json)
    return 0


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
    from eroica.watch.attach import collect_to

    with output.progress() as show:
        written = collect_to(
            out, pid=pid, launch=shlex.split(launch) if launch else None, progress=show
        )
    console = output.stdout()
    console.print(f"{written} written", markup=False)
    console.print(f"next    eroica diagnose {out}", markup=False)
    return 0
