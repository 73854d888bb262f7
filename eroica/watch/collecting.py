"""``eroica collect``: a look at a running job, written to a folder that can be taken elsewhere."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from eroica.collect.processes import host_name
from eroica.errors import EroicaError, InputError
from eroica.incident import PRIVATE, compact, write_atomic
from eroica.units import rank_phrase
from eroica.watch.attach import look
from eroica.watch.streaming import lines_of, plain, refusal_line, sender_name


def collect_to(
    out: Path,
    *,
    pid: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> str:
    """Gather into ``out``/host-NAME/evidence.json (and patterns.parquet); say what was written.

    InputError where nothing can be gathered or written.
    """
    found = look(pid, progress=progress)
    folder = out / f"host-{plain(host_name())}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        write_atomic(folder / "evidence.json", compact(found.evidence), PRIVATE)
        if found.patterns:
            from eroica.summarize import write_parquet

            write_parquet(folder / "patterns.parquet", found.patterns)
            (folder / "patterns.parquet").chmod(PRIVATE)
    except OSError as error:
        raise InputError(f"cannot write to {folder}", str(error), "eroica collect -o DIR") from None
    ranks = rank_phrase([rank.rank for rank in found.evidence.ranks])
    missing = found.evidence.world_size - len(found.evidence.ranks)
    rest = f"; {missing} ranks are on other hosts" if missing else ""
    return f"{folder}: {ranks} of {found.evidence.world_size}{rest}"


def collect_through(
    stream: IO[bytes],
    *,
    pid: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> None:
    """Gather and write it to a stream, as lines that ``--launch`` reads on another host.

    Where nothing can be gathered the stream carries the reason, and the error goes on.
    """
    sender = sender_name(host_name())
    try:
        with tempfile.TemporaryDirectory(prefix="eroica-collect-") as name:
            collect_to(Path(name), pid=pid, progress=progress)
            (folder,) = Path(name).iterdir()
            for line in lines_of(folder, sender):
                stream.write(line)
    except EroicaError as error:
        stream.write(refusal_line("; ".join(str(error).split("\n")[:2]), sender))
        raise
    finally:
        stream.flush()
