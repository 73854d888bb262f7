"""Rehearsals: small programs before and after a patch, bounded, with nothing left behind."""

import sys
import threading
import time
from pathlib import Path

import pytest

from eroica.errors import EroicaError, InputError
from eroica.fix.diff import file_edit, unified
from eroica.fix.endings import noted_in, was_aborted_at_its_end
from eroica.fix.propose import propose
from eroica.fix.rehearse import loss_change, rehearse, split_command, warnings_for
from eroica.fix.watchdog import Run, Watcher, run_bounded, with_token
from eroica.records import Cause, Incident, Job, Patch, Place

GOOD = """\
for step in range(3):
    print(f'step {step} loss {1.0 - step * 0.1:.2f} 5.0 ms/it', flush=True)
"""
STUCK = "import time\nprint('step 0 loss 1.00', flush=True)\ntime.sleep(60)\n"


def patch(before, after):
    edit = file_edit("train.py", before, after)
    return Patch(
        id="P1", cause="C1", source="fixer X", label="review", title="t", edits=(edit,),
        diff=unified([edit]),
    )  # fmt: skip


def run(before, after, tmp_path, **more):
    (tmp_path / "train.py").write_text(before)
    command = [sys.executable, "train.py"]
    result = rehearse(patch(before, after), command, tmp_path, limit_s=3, **more)
    assert (tmp_path / "train.py").read_text() == before
    return result


def test_a_stuck_program_that_gets_through_is_cured(tmp_path):
    result = run(STUCK, GOOD, tmp_path)
    assert result.verdict == "cured"
    assert result.details["exit_before"] is None
    assert result.details["progress_after"] == 3
    assert "is alike" in result.summary


def test_a_patch_that_does_not_help_changes_nothing(tmp_path):
    assert run(STUCK, STUCK + "\n", tmp_path).verdict == "no change"


def test_a_patch_that_breaks_a_running_program_is_worse(tmp_path):
    result = run(GOOD, "raise SystemExit('broken')\n", tmp_path, symptom="slow")
    assert result.verdict == "worse"
    assert "broken" in result.summary


def test_a_faster_step_is_improved_with_its_spread(tmp_path):
    slow = GOOD.replace("5.0 ms/it", "50.0 ms/it")
    result = run(slow, GOOD, tmp_path, symptom="slow", detector=lambda *given: "")
    assert result.verdict == "improved"
    assert (result.step_ms_before, result.step_ms_after) == (50.0, 5.0)
    assert result.details["spread_ms_before"] == [50.0, 50.0, 50.0]
    assert "The same detector is now silent." in result.summary


def test_a_changed_loss_is_said(tmp_path):
    result = run(GOOD, GOOD.replace("1.0 -", "3.0 -"), tmp_path, symptom="slow")
    assert "The loss at step 2 differs: 0.8 before, 2.8 after." in result.summary


def test_a_slower_step_is_worse(tmp_path):
    slow = GOOD.replace("5.0 ms/it", "9.0 ms/it")
    assert run(GOOD, slow, tmp_path, symptom="slow").verdict == "worse"


def test_the_trackers_are_offline_and_the_job_around_is_unseen(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "7")
    text = "import os\nprint('step 1', os.environ.get('WANDB_MODE'), os.environ.get('RANK'))\n"
    (tmp_path / "train.py").write_text(STUCK)
    result = rehearse(
        patch(STUCK, text + "raise SystemExit(3)\n"),
        [sys.executable, "train.py"],
        tmp_path,
        limit_s=2,
    )
    assert "step 1 offline None" in result.details["tail_after"]


def test_orphans_of_a_run_are_ended(tmp_path):
    (tmp_path / "p.py").write_text(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
        "start_new_session=True)\n"
        "print('child', child.pid, flush=True)\n"
    )
    result = run_bounded([sys.executable, "p.py"], tmp_path, 10)
    assert result.status == 0
    assert result.left_behind == 1
    pid = int(result.lines[0][1].split()[1])
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and Path(f"/proc/{pid}").exists():
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        if state == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{pid}").exists()


def test_a_program_that_does_not_exist_is_status_127(tmp_path):
    assert run_bounded(["no-such-program-here"], tmp_path, 1).status == 127
    assert with_token("no such token") == []


def test_environment_words_come_off_the_command():
    assert split_command("A=1 torchrun --x train.py") == (
        {"A": "1"},
        ("torchrun", "--x", "train.py"),
    )
    with pytest.raises(InputError, match="no command"):
        split_command("A=1")


def test_shared_absolute_paths_are_named(tmp_path):
    (tmp_path / "train.py").write_text("open('/data/out.bin', 'w')\n")
    notes = warnings_for(["python", "train.py", "/mnt/x"], tmp_path)
    assert any("/mnt/x" in note for note in notes)
    assert any("/data/out.bin" in note for note in notes)


def test_step_times_come_from_arrivals_where_none_are_printed():
    made = Run(lines=[(0.0, "step 0"), (1.0, "step 10"), (3.0, "step 20"), (5.0, "step 30")])
    assert made.step_ms() == [200.0, 200.0]
    assert loss_change(made, made) == ""


JOB = """\
import time

import torch
import torch.distributed as dist


def save(step):
    print(f"saved at step {step}", flush=True)
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    for step in range(1, 21):
        x = torch.ones(1)
        dist.all_reduce(x)
        if dist.get_rank() == 0 and step % 10 == 0:
            save(step)
        if step == 20:
            time.sleep(0.1)


main()
dist.destroy_process_group()
"""


@pytest.mark.job
def test_a_real_stuck_job_is_patched_and_the_rehearsal_says_cured(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(JOB)
    places = (Place(name="save", file="train.py", line=9),)
    cause = Cause(
        id="C1", category="rank_conditional_collective", ranks=(0,), functions=places, share=None,
        confidence=0.9, summary="", action="patch",
    )  # fmt: skip
    incident = Incident(
        id="i", symptom="stuck", onset=None, job=Job(world_size=2, ranks=(0, 1)), causes=(cause,),
        findings=(), warnings=(),
    )  # fmt: skip
    (cure,) = propose(incident, source_root=tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    result = rehearse(cure, [*command, "train.py"], tmp_path, limit_s=90)
    assert result.verdict == "cured", result
    assert result.details["progress_after"] == 2
    assert result.details["left_behind"] == 0


def test_a_run_that_is_called_off_ends_at_once_and_leaves_nothing(tmp_path):
    told, watcher = [], Watcher()
    watcher.tell = told.append
    script = "for n in range(3): print('step', n, flush=True)\nimport time; time.sleep(60)"
    threading.Timer(1.0, watcher.called_off.set).start()
    start = time.monotonic()
    run = run_bounded([sys.executable, "-c", script], tmp_path, 50, watcher=watcher)
    assert run.status is None and time.monotonic() - start < 10
    assert told == ["step 0", "step 1", "step 2"]


def test_a_rehearsal_that_is_called_off_gives_no_verdict(tmp_path):
    (tmp_path / "train.py").write_text("print('step 1')\n")
    watcher = Watcher()
    watcher.called_off.set()
    with pytest.raises(EroicaError, match="called off"):
        rehearse(
            patch("print('step 1')\n", "print('step 2')\n"),
            [sys.executable, "train.py"],
            tmp_path,
            watcher=watcher,
        )


AT_EXIT = """\
import ctypes, os
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.abort, None, None)  # when the interpreter is gone, as a C++ thread would
os.write(2, b"terminate called without an active exception\\n")
"""


def test_a_program_that_is_aborted_after_all_its_work_has_finished(tmp_path):
    result = run(STUCK, GOOD + AT_EXIT, tmp_path)
    assert (result.verdict, result.details["exit_after"]) == ("cured", -6)
    assert any("counts as finished" in note for note in result.details["warnings"])
    assert result.details["tail_after"] == ""


@pytest.mark.parametrize(
    "ending",
    [
        "os.abort()\n",  # in the middle of its work
        "raise ValueError('bad row')\n",  # an error of its own, and aborted on top of it
    ],
)
def test_a_program_that_is_aborted_before_its_end_has_failed(tmp_path, ending):
    result = run(STUCK, GOOD + AT_EXIT + ending, tmp_path)
    assert result.verdict == "failed"
    assert not any("counts as finished" in note for note in result.details["warnings"])


def test_a_program_that_says_so_itself_has_failed_all_the_same(tmp_path):
    text = GOOD + AT_EXIT.replace("libc.__cxa", "0 and libc.__cxa") + "raise SystemExit(3)\n"
    assert run(STUCK, text, tmp_path).verdict == "failed"


TORCHRUN = [
    "terminate called without an active exception",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : -6 (pid: 4711)",
    "  traceback : Signal 6 (SIGABRT) received by PID 4711",
]


def ended(folder, began, ended_, count="2"):
    notes = folder / "notes"
    notes.mkdir(exist_ok=True)
    for rank in began:
        (notes / f"{rank}.began").write_text(count)
    for rank in ended_:
        (notes / f"{rank}.ended").write_text(count)
    return was_aborted_at_its_end(folder, 1, TORCHRUN)


def test_all_ranks_must_have_ended_their_work(tmp_path):
    assert not ended(tmp_path, ["main", "0"], ["0"])  # the other never began
    assert not ended(tmp_path, ["1"], [])
    assert ended(tmp_path, [], ["1"])
    assert not was_aborted_at_its_end(tmp_path, 1, [*TORCHRUN, "  exitcode  : 1 (pid: 4712)"])
    assert not was_aborted_at_its_end(tmp_path, 1, TORCHRUN[:1])
    assert not was_aborted_at_its_end(tmp_path, 1, TORCHRUN[1:])
    assert not was_aborted_at_its_end(tmp_path, None, TORCHRUN)


def test_the_sitecustomize_of_the_job_runs_all_the_same(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('mine', flush=True)\n")
    given = {"PYTHONPATH": str(tmp_path / "own")}
    given |= noted_in(tmp_path / "endings", given)
    made = run_bounded([sys.executable, "-c", "pass"], tmp_path, 10, given)
    assert [line for _, line in made.lines] == ["mine"]
    assert {file.name for file in (tmp_path / "endings/notes").iterdir()} == {
        "main.began", "main.ended",
    }  # fmt: skip
