"""What a thread waits in, from library frames, source lines, native frames and the kernel."""

from pathlib import Path

import pytest

from eroica.localize.source import Project
from eroica.localize.waits import classify
from eroica.records import Place, ThreadStack, ThreadState

STD = "/usr/local/lib/python3.11"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch"


def wait_of(
    tmp_path: Path,
    *library: tuple[str, str],
    line: str = "work()",
    state: ThreadState | None = None,
) -> tuple[str, str]:
    """Classify a thread whose innermost user line is ``line`` under these library frames."""
    (tmp_path / "job.py").write_text(f"def main(sock, lock, q, dist, store):\n    {line}\n")
    frames = [Place(name=name, file=file, line=1) for name, file in library]
    frames.append(Place(name="main", file=str(tmp_path / "job.py"), line=2))
    thread = ThreadStack(frames=tuple(frames), name="MainThread", is_main=True)
    found = classify(thread, Project(tmp_path), state)
    return found.kind, found.op


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        ([("barrier", f"{TORCH}/distributed/distributed_c10d.py")], ("collective", "barrier")),
        (
            [
                ("all_gather", f"{TORCH}/distributed/distributed_c10d.py"),
                ("wrapper", f"{TORCH}/distributed/c10d_logger.py"),
                ("all_gather_object", f"{TORCH}/distributed/distributed_c10d.py"),
            ],
            ("collective", "all_gather_object"),
        ),
        ([("send", f"{TORCH}/distributed/distributed_c10d.py")], ("point_to_point", "send")),
        ([("new_group", f"{TORCH}/distributed/distributed_c10d.py")], ("group", "new_group")),
        (
            [("_store_based_barrier", f"{TORCH}/distributed/distributed_c10d.py")],
            ("store", "_store_based_barrier"),
        ),
        ([("__init__", f"{TORCH}/nn/parallel/distributed.py")], ("collective", "DDP constructor")),
        ([("forward", f"{TORCH}/nn/modules/_functions.py")], ("collective", "SyncBatchNorm")),
        ([("_engine_run_backward", f"{TORCH}/autograd/graph.py")], ("backward", "backward")),
        ([("synchronize", f"{TORCH}/cuda/__init__.py")], ("device", "synchronize")),
        (
            [
                ("select", f"{STD}/selectors.py"),
                ("_try_get_data", f"{TORCH}/utils/data/dataloader.py"),
                ("__next__", f"{TORCH}/utils/data/dataloader.py"),
            ],
            ("loader", "DataLoader.__next__"),
        ),
        ([("wait", f"{STD}/threading.py"), ("get", f"{STD}/queue.py")], ("queue_get", "Queue.get")),
        ([("wait", f"{STD}/threading.py"), ("put", f"{STD}/queue.py")], ("queue_put", "Queue.put")),
        ([("wait", f"{STD}/threading.py"), ("Event.wait", f"{STD}/threading.py")],
         ("event", "Event.wait")),
        ([("Thread.join", f"{STD}/threading.py")], ("thread", "Thread.join")),
        ([("wait", f"{STD}/threading.py"), ("Future.result", f"{STD}/concurrent/futures/_base.py")],
         ("future", "Future.result")),
        ([("poll", f"{STD}/multiprocessing/popen_fork.py"),
          ("join", f"{STD}/multiprocessing/process.py")], ("child", "Process.join")),
        ([("select", f"{STD}/selectors.py"), ("communicate", f"{STD}/subprocess.py")],
         ("child", "subprocess.communicate")),
        ([("readinto", f"{STD}/socket.py"), ("_read_status", f"{STD}/http/client.py"),
          ("getresponse", f"{STD}/http/client.py")], ("io", "http response")),
        ([("select", f"{STD}/selectors.py"),
          ("run_until_complete", f"{STD}/asyncio/base_events.py")], ("io", "asyncio")),
        ([("acquire", f"{STD}/logging/__init__.py")], ("lock", "logging")),
        ([("cmdloop", f"{STD}/cmd.py"), ("interaction", f"{STD}/pdb.py")], ("io", "the debugger")),
        ([("_find_spec", "<frozen importlib._bootstrap>")], ("import", "import")),
    ],
)  # fmt: skip
def test_library_frames_tell_the_wait(
    library: list[tuple[str, str]], expected: tuple[str, str], tmp_path: Path
) -> None:
    assert wait_of(tmp_path, *library) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("with lock: pass", ("lock", "lock")),
        ("lock.acquire()", ("lock", "acquire")),
        ("sock.recv_into(view)", ("io", "recv_into")),
        ("store.wait(['key'])", ("store", "store.wait")),
        ("time.sleep(3)", ("sleep", "sleep")),
        ("fcntl.flock(handle, 2)", ("file_lock", "flock")),
        ("dist.all_reduce(x)", ("collective", "all_reduce")),
        ("handle.wait()", ("collective", "wait for a started collective")),
        ("loss.item()", ("device", "item")),
        ("open('/run/pipe')", ("io", "open")),
        ("os.waitpid(3, 0)", ("child", "waitpid")),
    ],
)
def test_a_call_straight_into_c_is_told_by_its_source_line(
    line: str, expected: tuple[str, str], tmp_path: Path
) -> None:
    assert wait_of(tmp_path, line=line) == expected


@pytest.mark.parametrize(
    ("symbol", "kind"),
    [
        ("c10d::TCPStore::wait", "store"),
        ("lock_PyThread_acquire_lock", "lock"),
        ("sock_recv", "io"),
        ("time_sleep", "sleep"),
    ],
)
def test_native_frames_tell_the_wait_where_the_line_does_not(
    symbol: str, kind: str, tmp_path: Path
) -> None:
    assert wait_of(tmp_path, (symbol, "libpython3.11.so.1.0"), line="x = helper")[0] == kind


@pytest.mark.parametrize(
    ("channel", "kind"), [("hrtimer_nanosleep", "sleep"), ("pipe_read", "io"), ("wait_woken", "io")]
)
def test_the_kernel_tells_the_wait_where_nothing_else_does(
    channel: str, kind: str, tmp_path: Path
) -> None:
    state = ThreadState(os_thread_id=1, state="S", wait_channel=channel)
    assert wait_of(tmp_path, line="x = helper", state=state)[0] == kind


def test_a_generator_of_the_dataset_between_loader_frames_is_the_users(tmp_path: Path) -> None:
    """With no workers the dataset runs under the loader: its own line is what waits."""
    (tmp_path / "job.py").write_text(
        "def read(sock):\n    return sock.recv(10)\n\ndef main(loader):\n    for x in loader:\n"
        "        pass\n"
    )
    file = str(tmp_path / "job.py")
    thread = ThreadStack(
        frames=(
            Place(name="read", file=file, line=2),
            Place(name="fetch", file=f"{TORCH}/utils/data/_utils/fetch.py", line=50),
            Place(name="__next__", file=f"{TORCH}/utils/data/dataloader.py", line=725),
            Place(name="main", file=file, line=5),
        ),
        is_main=True,
    )
    found = classify(thread, Project(tmp_path))
    assert (found.kind, [p.name for p in found.user]) == ("io", ["read", "main"])
