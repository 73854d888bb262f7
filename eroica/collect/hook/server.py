"""torch's worker server: it answers in C++, so also while a thread holds the interpreter's lock.

Started once the job has a process group, where this torch has one. It is one sleeping thread and a
socket in the job's own folder (0700). torch says on stderr, a rank at a time, that it listens; that
line is taken out, so that eight thousand ranks do not write it into the job's log.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from . import guard
from .imports import when_imported
from .layout import W_RANK

_SAID = b"WorkerServer.cpp"


def install(ring: Any, folder: str) -> None:
    """Start the server after ``init_process_group``."""

    def watch(module: Any) -> None:
        original = module.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not ring.is_detached and ring.server is None:
                with guard.quietly("torch's worker server"):
                    ring.server = _start(path_of(folder, ring.words[W_RANK]))
            return result

        module.init_process_group = init_process_group
        package = sys.modules.get("torch.distributed")
        if package is not None and getattr(package, "init_process_group", None) is original:
            package.init_process_group = init_process_group  # type: ignore[attr-defined]
        if module.is_initialized():
            with guard.quietly("torch's worker server"):
                ring.server = _start(path_of(folder, ring.words[W_RANK]))

    when_imported("torch.distributed.distributed_c10d", watch)


def path_of(folder: str, rank: int) -> str:
    return os.path.join(folder, f"rank-{rank:05d}.torch")


def _start(path: str) -> Any:
    """Return the server; False where this torch has none or eroica is not to start it."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    kind = getattr(c10d, "_WorkerServer", None)
    if kind is None or os.environ.get("EROICA_WORKER_SERVER") == "0":
        return False
    if len(os.fsencode(path)) > 100:  # of a socket's name the kernel takes 107 bytes
        return False
    if os.path.exists(path):
        os.unlink(path)
    return _without_its_line(lambda: kind(path))


def _without_its_line(make: Any) -> Any:
    """Call ``make`` with stderr in memory; all but the server's own lines is then passed on."""
    try:
        kept = os.dup(2)
    except OSError:  # the job has no stderr
        return make()
    try:
        heard = os.memfd_create("eroica-stderr")
        try:
            os.dup2(heard, 2)
            try:
                return make()
            finally:
                os.dup2(kept, 2)
                _pass_on(heard)
        finally:
            os.close(heard)
    finally:
        os.close(kept)


def _pass_on(heard: int) -> None:
    size = os.fstat(heard).st_size
    lines = os.pread(heard, size, 0).splitlines(keepends=True)
    rest = b"".join(line for line in lines if _SAID not in line)
    if rest:
        os.write(2, rest)


def stop(ring: Any) -> None:
    """At exit: its thread ends before the interpreter does."""
    server, ring.server = ring.server, False
    if server:
        _without_its_line(server.shutdown)
