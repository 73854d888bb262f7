"""Steps, loader waits and the training thread: what annotations and frames tell."""

import pytest
from make_timeline import betas, make_timeline

from eroica.errors import InputError
from eroica.summarize import summarize
from eroica.summarize.classify import classify


def steps(*events):
    return summarize(make_timeline(events)).num_steps


def test_profiler_steps_count_by_their_number():
    assert (
        steps(
            ("user_annotation", "ProfilerStep#7", "main", 0, 10),
            ("user_annotation", "ProfilerStep#8", "main", 10, 10),
            ("gpu_user_annotation", "ProfilerStep#8", "stream7", 9, 12),
            ("user_annotation", "Optimizer.step#SGD.step", "main", 5, 1),
            ("cpu_op", "aten::mm", "main", 1, 1),
        )
        == 2
    )


def test_two_optimizers_a_step_count_once():
    events = [("cpu_op", "aten::mm", "main", 0, 1)]
    for i in range(3):
        events.append(("user_annotation", "Optimizer.step#Adam.step", "main", 10 * i, 2))
        events.append(("user_annotation", "Optimizer.step#SGD.step", "main", 10 * i + 5, 2))
    assert steps(*events) == 3


def test_without_annotations_the_optimizer_frames_count():
    assert (
        steps(
            ("python_function", "train.py(1): main", "main", 0, 100),
            ("python_function", "torch/optim/adamw.py(1): step", "main", 10, 5),
            ("python_function", "torch/optim/adamw.py(1): step", "main", 50, 5),
            ("python_function", "torch/optim/lr_scheduler.py(1): step", "main", 60, 5),
        )
        == 2
    )
    assert steps(("cpu_op", "aten::mm", "main", 0, 1)) is None


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def test_loading_is_data_unless_the_device_computes():
    events = [
        ("python_function", "train.py(1): main", "main", 0, 100),
        ("user_annotation", LOADER, "main", 10, 50),
        ("python_function", "data.py(1): __getitem__", "main", 20, 30),
        ("cpu_op", "aten::stack", "main", 25, 10),
    ]
    cpu = summarize(make_timeline(events)).breakdown
    assert cpu["data"] == pytest.approx(0.5)  # operators of the dataset are loading too
    assert cpu["compute"] == 0.0
    assert cpu["python"] == pytest.approx(0.5)
    gpu = summarize(make_timeline([*events, ("kernel", "k", "stream7", 40, 40)])).breakdown
    assert gpu["data"] == pytest.approx(0.3)
    assert gpu["compute"] == pytest.approx(0.4)


def test_waiting_for_loader_workers_without_stacks_is_data_not_idle():
    patterns = summarize(
        make_timeline(
            [
                ("user_annotation", LOADER, "main", 0, 60),
                ("cpu_op", "aten::mm", "main", 70, 30),
            ],
            window=(0, 100),
        )
    )
    assert patterns.breakdown["data"] == pytest.approx(0.6)
    assert patterns.breakdown["idle"] == pytest.approx(0.1)
    assert betas(patterns) == {"aten::mm": 0.3}


def test_loader_frames_serve_where_no_annotation_was_recorded():
    patterns = summarize(
        make_timeline(
            [
                ("python_function", "train.py(1): main", "main", 0, 100),
                (
                    "python_function",
                    "torch/utils/data/dataloader.py(720): __next__",
                    "main",
                    10,
                    30,
                ),
            ]
        )
    )
    assert patterns.breakdown["data"] == pytest.approx(0.3)


def test_loaders_on_other_threads_are_not_waits_of_the_training_thread():
    patterns = summarize(
        make_timeline(
            [
                ("user_annotation", "Optimizer.step#SGD.step", "main", 0, 100),
                ("python_function", "train.py(1): main", "main", 0, 100),
                ("user_annotation", LOADER, "other", 0, 100),
            ]
        )
    )
    assert patterns.breakdown["data"] == 0.0


def training_thread(*events):
    timeline = make_timeline(events)
    return timeline.tracks[classify(timeline).training_track].tid


def test_the_training_thread_is_who_steps_then_who_runs_backward_then_the_main_thread():
    busy = [("python_function", f"log.py({i}): f", "other", i, 1) for i in range(50)]
    main = ("python_function", "train.py(1): main", "main", 0, 50)
    assert training_thread(*busy, main) == "10"
    backward = ("python_function", "torch/autograd/graph.py(9): _engine_run_backward", "gloo", 0, 5)
    assert training_thread(*busy, main, backward) == "12"
    step = ("user_annotation", "ProfilerStep#1", "autograd", 0, 5)
    op = ("cpu_op", "aten::mm", "autograd", 0, 5)
    assert training_thread(*busy, main, backward, step, op) == "11"


def test_a_trace_without_a_rank_asks_for_it():
    with pytest.raises(InputError, match="no rank is known"):
        summarize(make_timeline([("kernel", "k", "stream7", 0, 1)], rank=None))
