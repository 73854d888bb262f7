"""What the hook can tell of its own process on request: Flight Recorder and stacks."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from typing import Any


def register_signal(path: str) -> int:
    """Let faulthandler write all stacks on a free real-time signal; 0 where there is none.

    It works in C, so that a thread which never gives the GIL back is seen as well.
    """
    if threading.current_thread() is not threading.main_thread():
        return 0
    for number in range(signal.SIGRTMAX - 3, signal.SIGRTMIN + 3, -1):
        if signal.getsignal(number) == signal.SIG_DFL:
            stream = open(path, "wb", buffering=0)
            faulthandler.register(number, file=stream, all_threads=True, chain=False)
            return int(number)
    return 0


def write_flight(path: str) -> dict[str, Any]:
    """Write the Flight Recorder: ``path``.pickle with frames, and ``path``.json."""
    module = _c10d()
    written = {}
    found = False
    for names, suffix in (
        (("_dump_fr_trace", "_dump_nccl_trace"), ".pickle"),
        (("_dump_fr_trace_json", "_dump_nccl_trace_json"), ".json"),
    ):
        function = next((getattr(module, n) for n in names if hasattr(module, n)), None)
        if function is None:
            continue
        found = True
        data = function()
        data = data if isinstance(data, bytes) else data.encode()
        with open(path + suffix, "wb") as stream:
            stream.write(data)
        written[suffix] = len(data)
    if not found:
        raise RuntimeError("this torch has no Flight Recorder")
    return written


def collective_status() -> dict[str, Any]:
    """Return each group's last enqueued and completed sequence, without the entries."""
    import json

    module = _c10d()
    function = getattr(module, "_dump_fr_trace_json", None) or getattr(
        module, "_dump_nccl_trace_json", None
    )
    if function is None:
        return {}
    dump = json.loads(function(includeCollectives=False, onlyActive=True))
    return dump.get("pg_status") or {}


def write_stacks(path: str) -> int:
    with open(path, "wb") as stream:
        faulthandler.dump_traceback(file=stream, all_threads=True)
        return stream.tell()


def allow_trace(pid: int) -> bool:
    """Let our own agent trace this process where Yama asks for that (ptrace_scope 1)."""
    import ctypes

    pr_set_ptracer = 0x59616D61
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(pr_set_ptracer, ctypes.c_ulong(pid), 0, 0, 0) == 0)


def _c10d() -> Any:
    # Not imported here: a job that never imported torch has nothing to tell.
    module = sys.modules.get("torch._C._distributed_c10d")
    if module is None:
        raise RuntimeError(f"torch.distributed is not loaded in pid {os.getpid()}")
    return module
