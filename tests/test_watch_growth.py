"""Window after window in one job: nothing grows, nothing is left, and Nsight Systems on request."""

import os
import time
from pathlib import Path

import pytest
from make_rank import finish, run_rank

from eroica.config import Parameters
from eroica.watch.live import WatchedJob
from eroica.watch.windows import WindowTaker

psutil = pytest.importorskip("psutil")
pytest.importorskip("torch")
pytestmark = [pytest.mark.job, pytest.mark.timeout(240)]

WINDOWS = 14
JOB = """
    import os, time, torch
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while not os.path.exists(os.environ["OVER"]):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
"""


def held(pid, folder):
    process = psutil.Process(pid)
    return process.memory_info().rss, process.num_fds(), len(list(folder.iterdir()))


def test_windows_leave_no_memory_no_files_and_no_descriptors(tmp_path):
    folder, over = tmp_path / "run", tmp_path / "over"
    process = run_rank(folder, JOB, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", OVER=str(over))
    job = WatchedJob(0, folder, Parameters())
    taker = WindowTaker(job, folder, job.parameters)
    before, seen = len(os.listdir("/proc/self/fd")), []
    try:
        until = time.monotonic() + 60
        while not job.is_learned and time.monotonic() < until:
            time.sleep(0.1)
            job.refresh()
            job.tick()
        for number in range(WINDOWS):
            assert taker.arm(length_s=0.05, pause_s=0.05)
            taker.finish(20)
            window = taker.done[-1]
            assert window.results[0]["state"] == "exported", window.problems
            for path in window.paths.values():
                path.unlink()
            if number in (3, WINDOWS - 1):
                seen.append(held(process.pid, folder))
    finally:
        over.touch()
        code, _, err = finish(process)
        taker.close()
        job.close()
    assert (code, err) == (0, "")
    (first_bytes, *first), (last_bytes, *last) = seen
    assert last == first, "open files, files in the folder"
    assert last_bytes < first_bytes + 30e6
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not list(Path(folder).glob("*.json.*"))


def test_nsight_systems_takes_the_place_of_the_windows(tmp_path, monkeypatch):
    from test_watch_jobs import run
    from test_watch_nsight import install_fake

    log = install_fake(tmp_path, monkeypatch)
    result, _ = run(tmp_path, "while True: step()", after_s=6, nsys=tmp_path / "reports")
    said = [line.split()[0] for line in log.read_text().splitlines()]
    assert said == ["launch", "start", "stop"]
    assert result.hint == "healthy" and result.patterns
    assert result.patterns[0].source.endswith(".sqlite")
    assert [path.suffix for path in (tmp_path / "reports").iterdir()] == [".sqlite"]
