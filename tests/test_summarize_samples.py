"""Sampled stacks to Python-only patterns."""

import pytest

from eroica.records import Place, SampledStack, Samples
from eroica.summarize import pack, summarize_samples, unpack
from eroica.summarize.samples import training_thread

MAIN = Place(name="main", file="/srv/job/train.py", line=10)
SITE = "/opt/venv/lib/python3.11/site-packages/"
BACKWARD = (
    Place(name="_engine_run_backward", file=SITE + "torch/autograd/graph.py", line=800),
    Place(name="backward", file=SITE + "torch/_tensor.py", line=500),
)
BARRIER = (
    Place(name="barrier", file=SITE + "torch/distributed/distributed_c10d.py", line=4800),
    Place(name="wrapper", file=SITE + "torch/distributed/c10d_logger.py", line=80),
)
NEXT = (
    Place(name="poll", file="/usr/lib/python3.11/selectors.py", line=400),
    Place(name="_try_get_data", file=SITE + "torch/utils/data/dataloader.py", line=1200),
    Place(name="__next__", file=SITE + "torch/utils/data/dataloader.py", line=700),
)


def stack(*frames, count, active=0, thread="MainThread", process=""):
    return SampledStack(
        frames=(*frames, MAIN), count=count, active_count=active, thread=thread, process=process
    )


def summarized(*stacks, num_samples=100, **more):
    samples = Samples(start_ns=0, end_ns=2_000_000_000, num_samples=num_samples, stacks=stacks)
    return summarize_samples(samples, rank=3, project_root="/srv/job", **more)


def test_shares_are_of_the_training_threads_samples():
    work = Place(name="decode", file="/srv/job/data.py", line=7)
    patterns = summarized(
        stack(work, count=60, active=45),
        stack(count=20, active=20),
        stack(work, count=900, active=900, thread="Thread-1"),
        host="gpu-1",
    )
    assert (patterns.rank, patterns.host, patterns.is_sampled) == (3, "gpu-1", True)
    assert [f.name for f in patterns.functions] == ["decode", "main"]
    assert patterns.beta_F.tolist() == pytest.approx([0.6, 0.2])
    assert patterns.mu_F.tolist() == pytest.approx([0.75, 1.0])
    assert patterns.count_F.tolist() == [60, 20]
    assert patterns.total_ns_F.tolist() == [1_200_000_000, 400_000_000]
    decode = patterns.functions[0]
    assert (decode.file, decode.line) == ("data.py", 7)
    assert decode.stack == (Place(name="main", file="train.py", line=10),)
    assert patterns.breakdown["python"] == pytest.approx(0.8)
    assert patterns.breakdown["idle"] == pytest.approx(0.2)
    assert sum(patterns.breakdown.values()) == pytest.approx(1.0, abs=1e-9)


def test_waits_for_peers_are_collectives():
    patterns = summarized(
        stack(*BACKWARD, count=40),
        stack(*BARRIER, count=30),
        stack(*BACKWARD, count=20, active=20),
    )
    kinds = {(f.name, f.kind) for f in patterns.functions}
    assert kinds == {
        ("_engine_run_backward", "collective"),
        ("barrier", "collective"),
        ("_engine_run_backward", "python"),  # on CPU: it computes
    }
    assert patterns.breakdown["exposed_communication"] == pytest.approx(0.7)


def test_a_backward_that_computes_and_waits_counts_as_both():
    patterns = summarized(stack(*BACKWARD, count=50, active=20))
    by_kind = {
        f.kind: float(beta) for f, beta in zip(patterns.functions, patterns.beta_F, strict=True)
    }
    assert by_kind == pytest.approx({"collective": 0.3, "python": 0.2})
    assert patterns.breakdown["exposed_communication"] == pytest.approx(0.3)


def test_a_hook_under_backward_is_the_users_own_python():
    hook = Place(name="log_gradients", file="/srv/job/hooks.py", line=5)
    patterns = summarized(stack(hook, *BACKWARD, count=50))
    assert patterns.functions[0].kind == "python"


def test_waits_for_the_loader_are_data():
    patterns = summarized(stack(*NEXT, count=70), stack(count=30, active=30))
    assert patterns.breakdown["data"] == pytest.approx(0.7)
    assert patterns.functions[0].kind == "python"


def test_loader_workers_are_listed_beside_the_path_with_a_marker():
    decode = Place(name="decode", file="/srv/job/data.py", line=7)
    patterns = summarized(
        stack(*NEXT, count=90),
        stack(decode, count=100, active=95, process="loader worker"),
        stack(decode, count=100, active=85, process="loader worker"),
    )
    child = patterns.functions[-1]
    assert child.name == "[loader worker] decode"
    assert float(patterns.beta_F[-1]) == 0.0
    assert float(patterns.mu_F[-1]) == pytest.approx(0.9)
    assert patterns.count_F[-1] == 200
    assert sum(patterns.breakdown.values()) == pytest.approx(1.0, abs=1e-9)


def test_lines_do_not_split_a_function_over_samples_or_ranks():
    def at(line):
        return stack(Place(name="decode", file="/srv/job/data.py", line=line), count=10)

    patterns = summarized(at(7), at(9))
    assert len(patterns.functions) == 1
    assert patterns.count_F.tolist() == [20]


def test_a_job_whose_main_thread_was_not_seen_is_told_by_its_busiest():
    work = Place(name="decode", file="/srv/job/data.py", line=7)
    patterns = summarized(
        stack(work, count=50, active=50, thread="trainer"),
        stack(count=50, active=0, thread="idler"),
    )
    assert [f.name for f in patterns.functions] == ["decode"]


def test_no_samples_give_no_functions():
    patterns = summarized(num_samples=0)
    assert patterns.functions == ()
    assert patterns.breakdown["idle"] == 1.0


def test_sampled_patterns_pack():
    patterns = summarized(stack(*BARRIER, count=30))
    again = unpack(pack(patterns))
    assert again.is_sampled
    assert again.functions == patterns.functions


STEP = Place(name="Adam.step", file="/x/site-packages/torch/optim/adam.py", line=1)
ENGINE = Place(name="_engine_run_backward", file="/x/site-packages/torch/autograd/graph.py", line=1)
LOOP = Place(name="run_task_loop", file="/x/site-packages/ray/worker.py", line=1)


@pytest.mark.parametrize(
    ("stacks", "expected"),
    [
        ([("MainThread", LOOP, 90), ("Thread-2 (train)", STEP, 10)], "Thread-2 (train)"),
        ([("MainThread", ENGINE, 10), ("pt_autograd_0", STEP, 90)], "MainThread"),
        ([("MainThread", LOOP, 10), ("Thread-2", LOOP, 90)], "MainThread"),
        ([("Thread-1", LOOP, 10), ("Thread-2", LOOP, 90)], "Thread-2"),
        ([], ""),
    ],
)
def test_the_thread_that_trains_is_the_one_in_backward_or_an_optimizer(stacks, expected):
    found = training_thread(
        [SampledStack(frames=(frame,), count=count, thread=name) for name, frame, count in stacks]
    )
    assert found == expected


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("/x/site-packages/torch/cuda/streams.py", "collective"),
        ("/home/u/pytorch/jobs/train.py", "python"),
        ("/home/u/train.py", "python"),
    ],
)
def test_a_wait_is_torchs_only_inside_torch(file, kind):
    wait = Place(name="wait", file=file, line=1)
    one = SampledStack(frames=(wait,), count=10, thread="MainThread")
    samples = Samples(start_ns=0, end_ns=10, num_samples=10, stacks=(one,))
    assert [f.kind for f in summarize_samples(samples, rank=0).functions] == [kind]
