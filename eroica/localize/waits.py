"""What a thread waits in, told from its frames, the source line under them and the kernel.

Library frames above the innermost user frame say it for everything written in Python
(torch.distributed, queue, threading, multiprocessing). A call straight into C leaves no frame:
there the user's source line, native frames where py-spy could take them, and the thread's wait
channel in /proc decide. Long because of its tables.
"""

import ast
from dataclasses import dataclass, field
from typing import Literal

from eroica.localize.source import FunctionInfo, Project, is_library_file
from eroica.localize.source_calls import POINT_TO_POINT, collective_kind, dotted
from eroica.localize.source_lines import is_bounded, is_lock, is_queue, line_calls
from eroica.records import Place, ThreadStack, ThreadState

WaitKind = Literal[
    "collective", "backward", "point_to_point", "store", "group", "loader", "lock", "queue_get",
    "queue_put", "thread", "device", "event", "future", "child", "io", "file_lock", "sleep",
    "import", "exit", "native", "running", "none",
]  # fmt: skip

DISTRIBUTED_WAITS = frozenset({"collective", "backward", "point_to_point", "group", "device"})
"""Waits for other ranks (a device waits for its collectives); everything else waits for
something inside the rank or outside the job."""


@dataclass(frozen=True)
class Wait:
    """What one thread does. ``user`` are its frames inside the project, innermost first."""

    kind: WaitKind
    op: str = ""
    """``barrier``, ``recv_into``, ``Queue.put`` ..."""
    user: tuple[Place, ...] = ()
    thread: ThreadStack | None = field(default=None, compare=False)
    has_timeout: bool = False

    @property
    def is_distributed(self) -> bool:
        return self.kind in DISTRIBUTED_WAITS

    @property
    def path(self) -> tuple[tuple[str, str, int], ...]:
        """(function, file, line) of the user frames, outermost first: where the thread is."""
        return tuple((short(p.name), p.file or "", p.line or 0) for p in reversed(self.user))


def short(name: str) -> str:
    """Return the last part of a qualified name: py-spy and the recorder qualify differently."""
    return name.rpartition(".")[2] if not name.endswith(">") else name


def is_native(place: Place) -> bool:
    file = place.file or ""
    return (
        bool(file)
        and not file.endswith(".py")
        and (".so" in file or "/" not in file)
        and (not file.startswith("<"))
    )


_SKIPPED = frozenset({"wrapper", "decorate_context", "_fn", "inner", "__call__", "_call_impl"})
_STORE = frozenset({"_store_based_barrier", "rendezvous", "_create_c10d_store", "next_rendezvous"})
_FROM_FUNCTION: dict[tuple[str, str], tuple[WaitKind, str]] = {
    ("queue.py", "get"): ("queue_get", "Queue.get"),
    ("queue.py", "put"): ("queue_put", "Queue.put"),
    ("queue.py", "join"): ("queue_put", "Queue.join"),
    ("queues.py", "get"): ("queue_get", "multiprocessing.Queue.get"),
    ("queues.py", "put"): ("queue_put", "multiprocessing.Queue.put"),
    ("threading.py", "join"): ("thread", "Thread.join"),
    ("threading.py", "_wait_for_tstate_lock"): ("thread", "Thread.join"),
    ("threading.py", "acquire"): ("lock", "acquire"),
    ("threading.py", "__enter__"): ("lock", "with"),
    ("synchronize.py", "__enter__"): ("lock", "with"),
    ("synchronize.py", "acquire"): ("lock", "acquire"),
    ("_base.py", "result"): ("future", "Future.result"),
    ("_base.py", "wait"): ("future", "futures.wait"),
    ("thread.py", "shutdown"): ("thread", "Executor.shutdown"),
    ("process.py", "join"): ("child", "Process.join"),
    ("popen_fork.py", "poll"): ("child", "Process.join"),
    ("popen_fork.py", "wait"): ("child", "Process.join"),
    ("pool.py", "get"): ("child", "Pool.get"),
    ("pool.py", "wait"): ("child", "Pool.wait"),
    ("pool.py", "map"): ("child", "Pool.map"),
    ("subprocess.py", "wait"): ("child", "subprocess.wait"),
    ("subprocess.py", "communicate"): ("child", "subprocess.communicate"),
    ("subprocess.py", "run"): ("child", "subprocess.run"),
    ("connection.py", "recv"): ("io", "Connection.recv"),
    ("connection.py", "recv_bytes"): ("io", "Connection.recv"),
    ("connection.py", "send"): ("io", "Connection.send"),
    ("connection.py", "poll"): ("io", "Connection.poll"),
    ("socket.py", "accept"): ("io", "accept"),
    ("socket.py", "readinto"): ("io", "recv"),
    ("socket.py", "create_connection"): ("io", "connect"),
    ("ssl.py", "read"): ("io", "recv"),
    ("ssl.py", "recv_into"): ("io", "recv"),
    ("client.py", "getresponse"): ("io", "http response"),
    ("client.py", "read"): ("io", "http read"),
    ("request.py", "urlopen"): ("io", "urlopen"),
    ("base_events.py", "run_until_complete"): ("io", "asyncio"),
    ("runners.py", "run"): ("io", "asyncio"),
    ("pdb.py", "interaction"): ("io", "the debugger"),
    ("threading.py", "_shutdown"): ("exit", "interpreter exit"),
    ("util.py", "_exit_function"): ("exit", "interpreter exit"),
}
_IO_CALLS = frozenset(
    {"recv", "recv_into", "recvfrom", "recvmsg", "accept", "connect", "sendall", "read", "readline"}
    | {"readinto", "readlines", "readexactly", "urlopen", "input", "open", "read_bytes"}
    | {"read_text", "getresponse", "write", "flush", "fsync", "select", "create_connection"}
    | {"execute", "commit", "fetchone", "breakpoint"}
)
_DEVICE_CALLS = frozenset({"item", "cpu", "tolist", "numpy", "synchronize", "nonzero"})
"""Calls that wait until the device has done all that was queued before."""
_BY_CALL: dict[str, WaitKind] = {
    "acquire": "lock", "sleep": "sleep", "flock": "file_lock", "lockf": "file_lock",
    "waitpid": "child", "result": "future", "wait_for_message": "io", "mkfifo": "io",
    "communicate": "child",
}  # fmt: skip
_RELEASES_GIL = frozenset({"sleep", "io", "lock", "file_lock", "event", "queue_get", "queue_put"})
"""Python gives the GIL up in these: a thread that holds it is in none of them."""
_CHANNELS: tuple[tuple[str, WaitKind], ...] = (
    ("nanosleep", "sleep"), ("pipe_read", "io"), ("pipe_write", "io"), ("wait_for_partner", "io"),
    ("sk_wait", "io"), ("wait_woken", "io"), ("inet_csk_accept", "io"), ("flock", "file_lock"),
    ("locks_lock", "file_lock"), ("do_wait", "child"), ("nfs", "io"), ("io_schedule", "io"),
    ("fuse", "io"),
)  # fmt: skip
_NATIVE: tuple[tuple[str, WaitKind, str], ...] = (
    ("TCPStore", "store", "store"), ("c10d::PrefixStore", "store", "store"),
    ("c10d::FileStore", "store", "store"),
    ("lock_PyThread_acquire_lock", "lock", "acquire"), ("rlock_acquire", "lock", "acquire"),
    ("sock_recv", "io", "recv"), ("sock_accept", "io", "accept"), ("sock_connect", "io", "connect"),
    ("time_sleep", "sleep", "sleep"), ("_io_FileIO_read", "io", "read"),
    ("fcntl_flock", "file_lock", "flock"), ("take_gil", "native", "waits for the GIL"),
)  # fmt: skip


def classify(thread: ThreadStack, project: Project, state: ThreadState | None = None) -> Wait:
    """Return what a thread waits in."""
    native = [p for p in thread.frames if is_native(p)]
    frames = [p for p in thread.frames if not is_native(p)]
    user = tuple(p for p in frames if project.contains(p.file))
    first = next((i for i, p in enumerate(frames) if project.contains(p.file)), len(frames))
    library = frames[:first]
    known = _from_library(library)
    if known is None and first < len(frames) and not [p for p in library if not _is_glue(p)]:
        known = _from_line(frames[first], project)
    if known is not None and known[0] == "device" and thread.is_active:
        known = "running", known[1]
    if known is not None and thread.holds_gil and known[0] in _RELEASES_GIL:
        known = "native", known[1]  # what looks like it is a foreign call of that name
    if known is None or known[0] in ("running", "native"):
        known = _from_kernel(native, state, thread) or known
    if known is None:
        kind: WaitKind = "running" if thread.is_active else "native"
        top = library[0] if library else (frames[0] if frames else None)
        known = (kind, short(top.name) if top else "")
    return Wait(known[0], known[1], user, thread, _has_timeout(user, project))


def _is_glue(place: Place) -> bool:
    """Frames that only pass a call on: decorators of torch, nn.Module's call."""
    return is_library_file(place.file) and short(place.name) in _SKIPPED


def _from_library(library: list[Place]) -> tuple[WaitKind, str] | None:
    """Classify by library frames; the one nearest to the user names the operation."""
    if any(_tail(p) == "_bootstrap.py" or "importlib" in (p.file or "") for p in library):
        return "import", "import"
    outer = _distributed_op(library)
    if outer is not None:
        return outer
    for place in reversed(library):
        file, name = _tail(place), short(place.name)
        if file == "dataloader.py" and name in ("__next__", "_next_data", "_get_data"):
            return _loader(library)
        if file == "graph.py" and name == "_engine_run_backward":
            return "backward", "backward"
        known = _FROM_FUNCTION.get((file, name))
        if known is not None:
            return known
    for place in reversed(library):
        if _tail(place) == "threading.py" and short(place.name) == "wait":
            return "event", place.name
        if _tail(place) == "__init__.py" and "logging" in (place.file or ""):
            return ("lock", "logging") if short(place.name) == "acquire" else None
        if "filelock" in (place.file or ""):
            return "file_lock", "FileLock"
    return None


def _tail(place: Place) -> str:
    return (place.file or "").replace("\\", "/").rpartition("/")[2]


def _loader(library: list[Place]) -> tuple[WaitKind, str]:
    """A DataLoader with workers waits in its queue; without, it runs the dataset itself."""
    names = {short(p.name) for p in library}
    if names & {"_try_get_data", "select", "poll", "get"}:
        return "loader", "DataLoader.__next__"
    return "running", "DataLoader.__next__"


def _distributed_op(library: list[Place]) -> tuple[WaitKind, str] | None:
    """The outermost torch.distributed function of the library frames, as the user called it."""
    found: tuple[WaitKind, str] | None = None
    for place in library:
        file, name = (place.file or "").replace("\\", "/"), short(place.name)
        if "torch/cuda/" in file and name == "synchronize":
            found = "device", name
        elif "torch/nn/parallel/distributed.py" in file:
            found = "collective", {"__init__": "DDP constructor"}.get(name, "DDP forward")
        elif "torch/autograd" in file and name in ("backward", "_engine_run_backward"):
            found = "backward", "backward"
        elif "torch/nn/modules/_functions.py" in file:
            found = "collective", "SyncBatchNorm"
        elif "torch/distributed/" not in file or name in _SKIPPED:
            continue
        elif name in _STORE or "rendezvous" in file:
            found = "store", name
        elif name in POINT_TO_POINT:
            found = "point_to_point", name
        elif name in ("new_group", "init_process_group", "destroy_process_group", "split_group"):
            found = "group", name
        elif "_fsdp" in file or "/fsdp/" in file:
            found = ("collective", "FSDP") if found is None or found[1] != "backward" else found
        else:
            found = "collective", name
    return found


def _from_line(place: Place, project: Project) -> tuple[WaitKind, str] | None:
    """Classify a frame that is straight in C by what its source line does."""
    function = project.enclosing(place.file, place.line)
    if function is None or place.line is None:
        return None
    statement, calls = line_calls(function, place.line)
    if isinstance(statement, ast.With | ast.AsyncWith):
        for item in statement.items:
            if item.context_expr.lineno <= place.line and is_lock(item.context_expr, function):
                return "lock", ast.unparse(item.context_expr)
    for call in calls:
        known = call_wait(call, function)
        if known is not None:
            return known
    return None


def call_wait(call: ast.Call, function: FunctionInfo) -> tuple[WaitKind, str] | None:
    """Return what a call would wait in, None where it is none that waits."""
    name = dotted(call.func, function.module)
    base, _, last = name.rpartition(".")
    if "store" in base.lower() and last in ("wait", "get", "multi_get", "barrier"):
        return "store", f"store.{last}"
    known = collective_kind(call, function.module)
    if known is not None:
        kind: WaitKind = "backward" if known[1] == "backward" else "collective"
        return ("point_to_point" if known[1] == "point_to_point" else kind), known[0]
    if last in _DEVICE_CALLS and base:
        return "device", last
    if last in _BY_CALL:
        return _BY_CALL[last], last
    if last == "wait" and not base.endswith(("os", "work", "handle", "req")):
        return ("child", "wait") if "proc" in base.lower() else ("event", "wait")
    if last in ("wait", "synchronize") and base.endswith(("work", "handle", "req", "request")):
        return "collective", f"{last} for a started collective"
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    if last == "get" and receiver is not None and is_queue(receiver, function):
        return "queue_get", "Queue.get"
    if last == "put" and "." in name:
        return "queue_put", "Queue.put"
    if last == "join" and base and not call.args and "path" not in base:
        return "thread", "join"
    if last in _IO_CALLS and (base or last in ("open", "input", "urlopen")):
        return "io", last
    return None


def _from_kernel(
    native: list[Place], state: ThreadState | None, thread: ThreadStack
) -> tuple[WaitKind, str] | None:
    for place in native:
        for text, kind, op in _NATIVE:
            if text in place.name:
                return kind, op
    if state is not None and not thread.is_active:
        for text, kind in _CHANNELS:
            if text in state.wait_channel:
                return kind, state.wait_channel
    return None


def _has_timeout(user: tuple[Place, ...], project: Project) -> bool:
    """Whether the waiting call is given a timeout on its line."""
    if not user or user[0].line is None:
        return False
    function = project.enclosing(user[0].file, user[0].line)
    if function is None:
        return False
    _, calls = line_calls(function, user[0].line)
    return any(
        is_bounded(call, by_position=call_wait(call, function) is not None) for call in calls
    )
