"""Stacks: every form of py-spy, faulthandler and sys._current_frames, and how they agree."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.read.stacks import is_stack_text, parse_stacks, read_stacks
from eroica.records import Place

DATA = Path(__file__).parent / "data" / "read"
FORMS = [
    "pyspy_rank0.json",
    "pyspy_rank0.txt",
    "pyspy_rank0.native.txt",
    "pyspy_rank0.locals.txt",
    "faulthandler_sigusr1_rank1.txt",
    "current_frames_rank1.txt",
]


def main_thread(stacks):
    (found,) = [thread for thread in stacks.threads if thread.is_main]
    return found


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_one_process_with_a_main_thread(name):
    (stacks,) = read_stacks(DATA / name)
    assert stacks.rank == (0 if "rank0" in name else 1)
    assert main_thread(stacks).frames[-1].name in ("<module>", "0x7f44c9c4524a")


def test_json_has_whole_paths_thread_states_and_ids():
    (stacks,) = read_stacks(DATA / "pyspy_rank0.json")
    assert (stacks.pid, stacks.source, len(stacks.threads)) == (5674, "py-spy", 2)
    thread = main_thread(stacks)
    assert thread.os_thread_id == 5674 and thread.is_active is False and not thread.holds_gil
    assert thread.frames[0] == Place(
        name="barrier",
        file="/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
        line=5356,
    )
    assert [frame.line for frame in thread.frames] == [5356, 83, 12, 46, 49]


def test_text_with_locals_equals_text_without_and_keeps_no_value():
    (plain,) = read_stacks(DATA / "pyspy_rank0.txt")
    (with_locals,) = read_stacks(DATA / "pyspy_rank0.locals.txt")
    assert plain == with_locals
    assert "-u dead.py" in plain.command
    assert [frame.name for frame in main_thread(plain).frames][:3] == [
        "barrier",
        "_exception_logger.<locals>.wrapper",
        "evaluate_and_log",
    ]


def test_native_frames_are_mixed_in_without_lines():
    (stacks,) = read_stacks(DATA / "pyspy_rank0.native.txt")
    frames = main_thread(stacks).frames
    assert frames[1] == Place(name="pthread_cond_wait", file="libc.so.6", line=None)
    assert frames[3].name == "c10d::Work::wait"
    assert [f.name for f in frames if f.line] == [
        f.name for f in main_thread(read_stacks(DATA / "pyspy_rank0.txt")[0]).frames
    ]


def test_faulthandler_and_current_frames_agree():
    """One is innermost first, the other last; both were taken of rank 1 in backward."""
    (fault,) = read_stacks(DATA / "faulthandler_sigusr1_rank1.txt")
    (frames,) = read_stacks(DATA / "current_frames_rank1.txt")
    assert main_thread(fault).frames == main_thread(frames).frames
    assert main_thread(fault).frames[0].name == "_engine_run_backward"
    assert main_thread(frames).os_thread_id == 5675
    assert {thread.name for thread in frames.threads} == {
        "QueueFeederThread",
        "eroica-watchdog",
        "MainThread",
    }


def test_faulthandlers_repeats_are_moments_in_order():
    one = (
        "Timeout (0:00:15)!\nThread 0x00007f01 (most recent call first):\n"
        '  File "/srv/a.py", line {} in run\n  File "/srv/a.py", line 9 in <module>\n\n'
    )
    moments = parse_stacks(one.format(1) + one.format(2))
    assert [moment.threads[0].frames[0].line for moment in moments] == [1, 2]
    without_heading = [text.partition("\n")[2] for text in (one.format(3), one.format(4))]
    assert len(parse_stacks("".join(without_heading))) == 2


def test_names_of_threads_in_newer_pythons_are_read():
    text = (
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x00007f01 [loader] (most recent call first):\n"
        '  File "/srv/a.py", line 3 in read\n\n'
        "Current thread's C stack trace (most recent call first):\n"
        '  Binary file "/lib/libc.so.6", at abort+0xdf\n'
    )
    (stacks,) = parse_stacks(text)
    assert stacks.threads[0].name == "loader" and len(stacks.threads[0].frames) == 1


def test_active_thread_with_gil():
    text = 'Process 9: python t.py\nPython v3.11.7\n\nThread 9 (active+gil): "MainThread"\n'
    (stacks,) = parse_stacks(text + "    step (t.py:4)\n")
    assert stacks.threads[0].is_active and stacks.threads[0].holds_gil


def test_several_processes_in_one_text_stay_apart():
    text = "".join(
        f'Process {pid}: python t.py\nPython v3.11\n\nThread {pid} (idle): "MainThread"\n'
        f"    wait (t.py:{pid})\n"
        for pid in (11, 12, 13)
    )
    found = parse_stacks(text)
    assert [(one.pid, one.threads[0].frames[0].line) for one in found] == [
        (11, 11),
        (12, 12),
        (13, 13),
    ]


def test_children_in_json_stay_apart_and_tell_their_parent():
    def thread(pid, ppid):
        return {
            "pid": pid,
            "os_thread_id": pid,
            "thread_name": "MainThread",
            "active": True,
            "owns_gil": True,
            "frames": [{"name": "f", "filename": "/srv/t.py", "line": 1, "locals": [{"k": "s"}]}],
            "process_info": {"pid": pid, "ppid": ppid, "command_line": "python t.py"},
        }

    found = parse_stacks(json.dumps([thread(5, 1), thread(6, 5)]))
    assert [(one.pid, one.parent_pid, one.command) for one in found] == [
        (5, 1, "python t.py"),
        (6, 5, "python t.py"),
    ]


def test_ranks_in_prefixed_lines_are_taken_apart():
    lines = ["Thread 0x01 (most recent call first):", '  File "/srv/t.py", line {} in go']
    text = "\n".join(f"[rank{rank}]: {line.format(rank)}" for line in lines for rank in (2, 5))
    found = parse_stacks(text)
    assert [(one.rank, one.threads[0].frames[0].line) for one in found] == [(2, 2), (5, 5)]


def test_cut_off_json_gives_its_whole_threads_with_a_warning(tmp_path):
    data = (DATA / "pyspy_rank0.json").read_bytes()
    path = tmp_path / "pyspy_rank0.json"
    path.write_bytes(data[: len(data) * 2 // 3])
    (stacks,) = read_stacks(path)
    assert stacks.threads[0].frames[0].name == "Condition.wait"
    assert "broken at byte" in stacks.warnings[0].what


def test_a_file_without_stacks_is_refused_in_words(tmp_path):
    for content, words in [
        (b"", "it is empty"),
        (b"step 1 loss 2.0\n", "no thread"),
        (b"[]", "no"),
    ]:
        path = tmp_path / "x.txt"
        path.write_bytes(content)
        with pytest.raises(InputError, match=words):
            read_stacks(path)


def test_a_log_is_not_taken_for_stacks():
    log = (DATA / "log_timeout.txt").read_text()
    assert not is_stack_text(log)
    assert not is_stack_text(
        "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n"
    )
    assert not is_stack_text("W1129 x\n*****\nW1129 y\nThread 0x1 (most recent call first):\n")
    for name in FORMS[1:]:
        assert is_stack_text((DATA / name).read_text()), name


def test_a_runaway_recursion_keeps_its_innermost_frames():
    text = "Thread 0x01 (most recent call first):\n" + "".join(
        f'  File "/srv/t.py", line {line} in f\n' for line in range(1, 5001)
    )
    (stacks,) = parse_stacks(text)
    assert len(stacks.threads[0].frames) == 2000 and stacks.threads[0].frames[0].line == 1


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_flipped_and_cut_files_end_in_stacks_or_nothing(data):
    raw = bytearray((DATA / data.draw(st.sampled_from(FORMS))).read_bytes())
    for _ in range(data.draw(st.integers(0, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    text = bytes(raw[: data.draw(st.integers(0, len(raw)))]).decode("utf-8", "replace")
    for stacks in parse_stacks(text):
        assert any(thread.frames for thread in stacks.threads)


@given(st.text(max_size=300))
def test_any_text_ends_in_stacks_or_nothing(text):
    assert isinstance(parse_stacks(text), list)
    assert isinstance(parse_stacks("Thread 1 (idle)\n    " + text), list)
    assert isinstance(parse_stacks("[{" + text), list)
