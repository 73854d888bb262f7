"""The whole path on real jobs: watched, diagnosed, patched, run again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="a real job needs torch: pip install 'eroica[torch]'")
pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def eroica(*words: str, cwd: Path, limit: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "eroica", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        timeout=limit,
    )


def test_readme_shows_what_the_demo_prints():
    """Runs the demo: cause, patch, and that the patched job finished."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "show_off.py", "--check"],
        capture_output=True,
        text=True,
        timeout=390,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_slow_job_is_told_as_one_json_record_and_leaves_no_process(tmp_path):
    script = ROOT / "examples" / "slow_loader_one_rank" / "train.py"
    (tmp_path / "train.py").write_text(script.read_text())
    done = eroica(
        "run", "--once", "--json", "--after", "10", "--",
        *TORCHRUN, "--nproc_per_node=2", "train.py",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    (folder,) = (tmp_path / ".eroica" / "incidents").iterdir()
    assert done.stdout.encode() == (folder / "incident.json").read_bytes()
    assert record["symptom"] == "slow"
    first = record["causes"][0]
    assert (first["category"], first["ranks"]) == ("straggler_data_loading", [1])
    assert {place["file"] for place in first["functions"]} == {"train.py"}
    assert not processes_in(tmp_path)


def test_fix_on_a_stuck_job_of_this_host_ends_with_a_patch_in_the_work_tree(tmp_path):
    script = ROOT / "examples" / "barrier_on_rank0" / "train.py"
    (tmp_path / "train.py").write_text(script.read_text())
    job = subprocess.Popen(
        [*TORCHRUN, "--nproc_per_node=2", "train.py", "--checkpoint-every", "5"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        wait_until_silent(tmp_path)
        rank = min(processes_in(tmp_path) - {job.pid})
        words = ["fix", "--pid", str(rank), "--accept", "all", "--apply", "--json"]
        done = eroica(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert job.poll() is None, "looking at a job must not end it"
    finally:
        for pid in processes_in(tmp_path):
            os.kill(pid, signal.SIGKILL)
        job.kill()
        job.wait()
    (patch,) = [one for one in json.loads(done.stdout)["patches"] if one["applied"]]
    assert patch["source"].startswith("fixer ")
    assert (tmp_path / "train.py").read_text() != script.read_text()
    assert eroica("undo", cwd=tmp_path).returncode == 0
    assert (tmp_path / "train.py").read_text() == script.read_text()


def wait_until_silent(folder: Path, limit: float = 120) -> None:
    """Wait until the first checkpoint is on disk and rank 0 stands in the barrier after it."""
    until = time.monotonic() + limit
    while not list(folder.glob("checkpoints/*.pt")):
        assert time.monotonic() < until, "the example wrote no checkpoint"
        time.sleep(0.2)
    time.sleep(2)


def processes_in(folder: Path) -> set[int]:
    """Every live process whose working directory is the folder."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            is_here = (entry / "cwd").resolve() == folder.resolve()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if is_here and state != "Z":
            found.add(int(entry.name))
    return found
