"""py-spy's raw format to profiles, and eroica's own frames taken out."""

import numpy as np

from eroica.columns import RankPatterns
from eroica.records import Function, Place, ProcessStacks, ThreadStack
from eroica.watch.frames import clean_stacks, is_hook_file, without_hook, without_own_work
from eroica.watch.sampling import build_samples, parse_raw

ROOT = 'process 10:"torchrun train.py";'
R0 = ROOT + 'process 11:"python -u train.py";'
R1 = ROOT + 'process 12:"python -c import a; b; c";'
MAIN0 = "thread (11): MainThread;"
TEXT = "\n".join(
    [
        R0 + MAIN0 + "<module> (train.py:9);main (train.py:5);load (data.py:3) 30",
        R0 + MAIN0 + "<module> (train.py:9);main (train.py:6) 10",
        R1 + "thread (12): MainThread;<module> (train.py:9);main (train.py:6) 38",
        R0 + 'process 13:"python -u train.py";thread (13): MainThread;'
        "<module> (train.py:9);_worker_loop (torch/utils/data/_utils/worker.py:349) 40",
        ROOT + "thread (10): MainThread;main (torch/distributed/run.py:1) 40",
        R0 + "thread (14);_serve (/x/eroica/collect/hook/control.py:50) 40",
        R0 + MAIN0 + "step (opt.py:1);at_border (/x/eroica/collect/hook/window.py:9);"
        "profile.__exit__ (torch/autograd/profiler.py:434) 5",
        "not a line of this format",
    ]
)


def test_every_stack_finds_its_rank_and_process():
    stacks = parse_raw(TEXT)
    assert [stack.pids for stack in stacks[:4]] == [(10, 11), (10, 11), (10, 12), (10, 11, 13)]
    assert stacks[0].frames[0] == Place(name="load", file="data.py", line=3)
    assert stacks[0].thread == "MainThread"
    assert stacks[5].thread == "14"


def test_profiles_count_by_rank_and_leave_eroica_out():
    active = R0 + MAIN0 + "<module> (train.py:9);main (train.py:5);load (data.py:3) 12"
    found = build_samples(parse_raw(TEXT), parse_raw(active), {11: 0, 12: 1}, 0, 2_000_000_000)
    assert sorted(found) == [0, 1]
    assert found[0].num_samples == 40
    own = [stack for stack in found[0].stacks if not stack.process]
    assert [(stack.count, stack.active_count) for stack in own] == [(30, 24), (10, 0)]
    (worker,) = [stack for stack in found[0].stacks if stack.process]
    assert (worker.process, worker.count) == ("loader worker", 40)


def test_a_rank_traced_alone_needs_no_process_prefix():
    (stack,) = parse_raw("thread (0x7F01): MainThread;main (train.py:5) 3", 11)
    assert (stack.pids, stack.count) == ((11,), 3)


def test_the_hooks_files_are_known_by_their_place():
    assert is_hook_file("/opt/venv/lib/python3.11/site-packages/eroica/collect/hook/loops.py")
    assert not is_hook_file("/home/me/project/hook/loops.py")
    assert not is_hook_file("train.py")
    assert not is_hook_file(None)


def test_wrappers_go_and_the_users_frames_stay():
    own = Place(name="__next__", file="eroica/collect/hook/loops.py", line=90)
    frames = (Place(name="next"), own, Place(name="main", file="train.py"))
    assert [frame.name for frame in without_hook(frames)] == ["next", "main"]
    control = ThreadStack(frames=(Place(name="_serve", file="eroica/collect/hook/control.py"),))
    cleaned = clean_stacks(ProcessStacks(threads=(control, ThreadStack(frames=frames))))
    assert len(cleaned.threads) == 1


def test_a_command_line_with_line_breaks_is_read_whole():
    text = (
        'process 7:"python -c import os\nfor i in 3: pass 4\nx";thread (7): MainThread;f (a.py:1) 9'
    )
    text = text + "\n" + TEXT
    stacks = parse_raw(text)
    assert (stacks[0].pids, stacks[0].count) == ((7,), 9)
    assert stacks[0].frames == (Place(name="f", file="a.py", line=1),)
    assert len(stacks) == 1 + len(parse_raw(TEXT))


def test_functions_that_the_hook_ran_itself_leave_a_windows_patterns():
    hook = "eroica/collect/hook"
    main = Place(name="main", file="train.py")
    functions = (
        Function(id="a", kind="python", name="work", file="train.py", stack=(main,)),
        Function(
            id="b",
            kind="python",
            name="<built-in method _dump_fr_trace_json>",
            stack=(Place(name="collectives", file=f"{hook}/dumps.py"), main),
        ),
        Function(id="c", kind="python", name="_serve", file=f"{hook}/server.py"),
        Function(
            id="d", kind="python", name="next", stack=(Place(name="n", file=f"{hook}/loops.py"),)
        ),
    )
    values = np.array([0.5, 0.2, 0.1, 0.2], np.float32)
    patterns = RankPatterns(
        rank=0,
        functions=functions,
        beta_F=values,
        mu_F=values,
        sigma_F=values,
        count_F=np.array([1, 2, 3, 4], np.int32),
        total_ns_F=np.array([1, 2, 3, 4], np.int64),
        window_ns=10,
        reference_F=values,
    )
    kept = without_own_work(patterns)
    assert [function.id for function in kept.functions] == ["a", "d"]
    assert kept.count_F.tolist() == [1, 4]
    assert kept.total_ns_F.tolist() == [1, 4]
    assert kept.beta_F.tolist() == kept.reference_F.tolist() == values[[0, 3]].tolist()
    assert without_own_work(kept) is kept
