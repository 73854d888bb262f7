"""``eroica run``, ``demo`` and ``collect``: commands that meet a live job."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eroica.commands import output
from eroica.commands.diagnosing import show_verdict
from eroica.incident import IncidentFolder

if TYPE_CHECKING:
    from eroica.watch.telling import Telling
    from eroica.watch.wire import VerdictPlace

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
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print incident.json; without --once each incident on one line."
        ),
    ] = False,
    after: Annotated[
        float, typer.Option(help="With --once: seconds of training to watch.", min=1)
    ] = 30.0,
    keep_traces: Annotated[
        Path | None, typer.Option(help="With --once: keep the raw profiler files in this folder.")
    ] = None,
    nsys: Annotated[
        Path | None,
        typer.Option(
            help="With --once: record with Nsight Systems into this folder, not the profiler."
        ),
    ] = None,
    on_incident: Annotated[
        str | None,
        typer.Option(
            help="A command to run at an incident; gets its id.", envvar="EROICA_ON_INCIDENT"
        ),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option(help="POST each incident's summary to this URL.", envvar="EROICA_WEBHOOK"),
    ] = None,
    metrics_port: Annotated[
        str | None,
        typer.Option(help="Prometheus metrics: PORT or HOST:PORT.", envvar="EROICA_METRICS_PORT"),
    ] = None,
    share_dir: Annotated[
        str | None,
        typer.Option(
            help="A folder or URL all hosts of the job see, where they may not open ports.",
            envvar="EROICA_SHARED_DIR",
        ),
    ] = None,
) -> int:
    """Watch a job with no change of its code; of several hosts, start it on each.

    Example: eroica run -- torchrun --nproc_per_node=8 train.py
    """
    command = context.args
    _check(command, is_traced=keep_traces is not None, is_nsys=nsys is not None, once=once)
    if once and metrics_port is not None:
        output.note("no metrics with --once: there is one verdict, and then no job")
        metrics_port = None
    _prepare_hosts(share_dir)
    with _telling(on_incident, webhook, metrics_port) as telling:
        if once:
            return _run_once(command, after, keep_traces, telling, nsys, as_json=as_json)
        return _run_on(command, telling, as_json=as_json)


def _check(command: list[str], *, is_traced: bool, is_nsys: bool, once: bool) -> None:
    """Refuse what does not fit together before the job starts."""
    from eroica.errors import InputError

    if not command:
        raise InputError(
            "no command to run",
            "expected one after --",
            "eroica run -- torchrun --nproc_per_node=8 train.py",
        )
    if is_traced and not once:
        raise InputError(
            "--keep-traces needs --once",
            "a watch to the job's end deletes each window once it is read",
            "eroica run --once --keep-traces DIR -- CMD",
        )
    if is_nsys and not once:
        raise InputError(
            "--nsys needs --once",
            "a watch to the job's end takes profiler windows",
            "eroica run --once --nsys DIR -- CMD",
        )


def _prepare_hosts(share_dir: str | None) -> None:
    """Find out what other hosts could not be met with before the job starts, not in its middle."""
    from eroica.watch.wire import job_secret

    job_secret("")
    if share_dir is not None:
        os.environ["EROICA_SHARED_DIR"] = share_dir


@contextmanager
def _telling(
    on_incident: str | None, webhook: str | None, metrics_port: str | None
) -> "Iterator[Telling]":
    from eroica.watch.telling import Telling

    words = output.split_words("--on-incident", on_incident) if on_incident is not None else []
    telling = Telling(
        on_incident=words, webhook=webhook, metrics_port=metrics_port, note=output.note
    )
    if telling.address is not None:
        output.note(f"metrics at {telling.address}")
    try:
        yield telling
    finally:
        telling.close()


def _run_once(
    command: list[str],
    after: float,
    keep_traces: Path | None,
    telling: "Telling",
    nsys: Path | None = None,
    *,
    as_json: bool,
) -> int:
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
            nsys=nsys,
        )
        if result.elsewhere is None:
            try:
                folder = pipeline.conclude(gathering.from_watch(result), progress=show)
                telling.tell(result, folder)
            finally:
                if result.team is not None:
                    result.team.close()
    if result.elsewhere is not None:
        _show_elsewhere(result.elsewhere, as_json=as_json)
        return 0
    show_verdict(folder, as_json=as_json)
    return 0


def _show_elsewhere(place: "VerdictPlace", *, as_json: bool) -> None:
    """Say where the verdict of a job of several hosts is; it is printed there, once."""
    if as_json:
        from eroica.incident import encode

        output.print_bytes(encode({"schema": 1, "verdict": place}))
        return
    output.say(f"{place.symptom.upper()}  {place.headline}")
    output.say(f"the verdict is on {place.host}: {place.path or place.id}")


def _run_on(command: list[str], telling: "Telling", *, as_json: bool) -> int:
    """Watch to the job's own end; each incident is told on stderr. Its exit code is ours."""
    from eroica import gathering, pipeline
    from eroica.report import terminal
    from eroica.watch.result import WatchResult
    from eroica.watch.run import watch

    console = output.stderr()

    with _lines(as_json) as print_line, output.progress() as show:

        def tell(result: WatchResult) -> None:
            output.clear_spinner()
            folder = pipeline.conclude(gathering.from_watch(result))
            terminal.print_incident(console, folder.read_incident(), folder.read_diagnoses())
            terminal.print_next(console, [(f"eroica fix {folder.id}", "a patch for it")])
            print_line(folder)
            telling.tell(result, folder)

        result = watch(
            command,
            once=False,
            source_root=str(gathering.source_root_of(command)),
            progress=show,
            on_incident=tell,
            metrics=telling.metrics,
        )
    return exit_status(result.exit_code)


@contextmanager
def _lines(is_wanted: bool) -> Iterator[Callable[[IncidentFolder], None]]:
    """Yield a function that prints an incident as one line of JSON.

    stdout is for these lines alone then: what the job prints there goes to stderr.
    """
    if not is_wanted:
        yield lambda folder: None
        return
    from eroica.incident import compact

    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(kept, "wb", closefd=False) as stream:

            def line(folder: IncidentFolder) -> None:
                stream.write(compact(folder.read_incident()) + b"\n")
                stream.flush()

            yield line
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def exit_status(code: int | None) -> int:
    """A command's exit code as a shell gives it: 128 + n where signal n ended it."""
    code = code or 0
    return 128 - code if code < 0 else code


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
    out: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write to; - sends it to --launch.")
    ] = Path("eroica-evidence"),
    pid: Annotated[int | None, typer.Option(help="A rank of the job.")] = None,
    launch: Annotated[
        list[str] | None,
        typer.Option(help="Run it on other hosts: 'srun -N 4', 'ssh host1'; may be repeated."),
    ] = None,
    remote: Annotated[str, typer.Option(help="With --launch: eroica's name there.")] = "eroica",
) -> int:
    """Gather stacks, dumps and states of a running job into a folder.

    Example: eroica collect -o evidence && eroica diagnose evidence
    """
    import sys

    from eroica.watch.collecting import collect_through, collect_to
    from eroica.watch.launching import collect_elsewhere

    if str(out) == "-" and not launch:
        with output.progress() as show:
            collect_through(sys.stdout.buffer, pid=pid, progress=show)
        return 0
    launchers = [output.split_words("--launch", text) for text in launch or ()]
    words = output.split_words("--remote", remote)
    with output.progress() as show, output.writing(out):
        if launchers:
            written = collect_elsewhere(out, launchers, remote=words, pid=pid, progress=show)
        else:
            written = collect_to(out, pid=pid, progress=show)
    output.say(f"{written} written" if not launchers else written)
    output.say(f"next    eroica diagnose {out}")
    return 0
