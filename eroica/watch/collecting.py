"""``eroica collect``: a look at a running job, written to a folder that can be taken elsewhere."""

import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from eroica.errors import InputError
from eroica.incident import PRIVATE, compact, write_atomic
from eroica.units import rank_phrase
from eroica.watch.attach import look

_LAUNCH_LIMIT_S = 180.0


def collect_to(
    out: Path,
    *,
    pid: int | None = None,
    launch: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> str:
    """Gather into ``out``/host-NAME/evidence.json (and patterns.parquet); say what was written.

    ``launch`` (``srun -N 4``, ``ssh host1`` ...) runs the same on other hosts, which must see
    ``out`` under the same path. InputError where nothing can be gathered or written.
    """
    if launch:
        return _collect_elsewhere(out.resolve(), launch, progress)
    found = look(pid, progress=progress)
    folder = out / f"host-{socket.gethostname()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "evidence.json", compact(found.evidence), PRIVATE)
        if found.patterns:
            from eroica.summarize import write_parquet

            write_parquet(folder / "patterns.parquet", found.patterns)
    except OSError as error:
        raise InputError(f"cannot write to {folder}", str(error), "eroica collect -o DIR") from None
    ranks = rank_phrase([rank.rank for rank in found.evidence.ranks])
    missing = found.evidence.world_size - len(found.evidence.ranks)
    rest = f"; {missing} ranks are on other hosts" if missing else ""
    return f"{folder}: {ranks} of {found.evidence.world_size}{rest}"


def _collect_elsewhere(out: Path, launch: Sequence[str], progress: Callable[[str], None]) -> str:
    out.mkdir(parents=True, exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in out.glob("host-*/evidence.json")}
    progress("collecting through " + " ".join(launch))
    command = [*launch, "eroica", "collect", "-o", str(out)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LAUNCH_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"cannot run {' '.join(launch)}",
            str(error),
            next_step="try the launcher by hand: LAUNCHER eroica --version",
        ) from error
    after = out.glob("host-*/evidence.json")
    hosts = [path.parent.name for path in after if before.get(path) != path.stat().st_mtime_ns]
    if not hosts:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(
            f"no host wrote to {out}",
            f"exit status {done.returncode}: {last}",
            "the folder must be seen by all hosts under the same path",
        )
    return f"{out}: {len(hosts)} hosts, {', '.join(sorted(hosts))}"
