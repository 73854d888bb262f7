"""The agent beside a job that runs on: under ``eroica run``, or detached, started by a rank.

Detached (``python -m eroica.watch.agent FOLDER``) it is started by the first rank of a host that
imports eroica, writes each incident to the incident store, and ends with its last rank.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from eroica.config import Parameters, load
from eroica.watch.command import Command, make_folder, start_plainly
from eroica.watch.continuous import Continuous
from eroica.watch.evidence import build
from eroica.watch.live import WatchedJob
from eroica.watch.metrics import Metrics
from eroica.watch.passing import signals_to
from eroica.watch.result import WatchResult

logger = logging.getLogger(__name__)

_FIRST_RANK_S = 60.0
_LINGER_S = 15.0  # a launcher may start the ranks again


def watch_on(
    command: Sequence[str],
    *,
    on_incident: Callable[[WatchResult], None],
    source_root: str | None,
    parameters: Parameters,
    progress: Callable[[str], None],
    metrics: Metrics | None = None,
) -> WatchResult:
    """Run ``command`` to its own end and tell each incident; nothing of the job is ended.

    The job keeps our terminal, so that it neither depends on this process nor misses a Ctrl-C;
    other signals are passed on to it, and faults of the watch never end it.
    """
    started = time.monotonic()
    try:
        folder = make_folder()
    except OSError as error:
        progress(f"not watching: no folder for it can be made ({error}); the job runs without")
        return _unwatched(command, started)
    job_command = Command(command, folder, is_ours=False)
    job = WatchedJob(job_command.pid, folder, parameters)
    loop = Continuous(
        job,
        folder,
        parameters,
        on_incident=on_incident,
        progress=progress,
        command=job_command.words,
        source_root=source_root,
        metrics=metrics,
    )
    try:
        with signals_to(job_command.process) as passing:
            loop.run(lambda: passing.is_ending or job_command.exit_code() is not None)
            # Whatever became of the watch, the job's end is awaited: its exit code is ours.
            code = job_command.process.wait()
        hint = "failed" if code else "healthy"
        return WatchResult(
            evidence=loop.last_evidence(hint),
            hint=hint,
            exit_code=code,
            seconds=time.monotonic() - started,
            baseline=loop.looks.baseline,
        )
    finally:
        loop.close()
        job.close()
        if job_command.exit_code() is not None:
            job_command.remove_folder()


def _unwatched(command: Sequence[str], started: float) -> WatchResult:
    """Run the command as if eroica were not there."""
    process = start_plainly(command)
    with signals_to(process):
        code = process.wait()
    seconds = time.monotonic() - started
    return WatchResult(evidence=build([], world_size=0), exit_code=code, seconds=seconds)


def attend(
    folder: Path,
    *,
    on_incident: Callable[[WatchResult], None],
    metrics: Metrics | None = None,
) -> bool:
    """Watch the ranks whose rings lie in ``folder`` until all are gone.

    False where another agent does so already (it holds the lock in the folder).
    """
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context((folder / "agent.lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        parameters = load()
        job = WatchedJob(0, folder, parameters)
        loop = Continuous(
            job,
            folder,
            parameters,
            on_incident=on_incident,
            progress=lambda text: logger.info("%s", text),
            source_root=str(Path.cwd()),
            metrics=metrics,
        )
        stack.callback(job.close)
        stack.callback(loop.close)
        seen_at = time.monotonic() + _FIRST_RANK_S

        def is_over() -> bool:
            nonlocal seen_at
            now = time.monotonic()
            if job.alive:
                seen_at = now
            return now - seen_at > _LINGER_S

        loop.run(is_over)
        if not job.alive:  # else the watch failed, and the last rank takes it away
            shutil.rmtree(folder, ignore_errors=True)
    return True


def main() -> int:
    """Entry of the detached agent: the incident store, and whom the environment names."""
    from eroica.watch.telling import Telling

    folder = Path(sys.argv[1])
    os.nice(10)
    telling = Telling.of(os.environ)

    def keep(result: WatchResult) -> None:
        from eroica import gathering, pipeline

        telling.tell(result, pipeline.conclude(gathering.from_watch(result)))

    attend(folder, on_incident=keep, metrics=telling.metrics)
    telling.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
