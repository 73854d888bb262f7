"""The sweep against exact numbers and against a twin that asks every instant anew."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_timeline import betas, make_timeline

from eroica.summarize import summarize
from eroica.summarize.classify import LANE_NONE, NUM_LANES, NUM_LEVELS, classify
from eroica.summarize.critical_path import find_critical_path, order_events, select_events
from eroica.summarize.fold import fold

MS = 1_000_000


def test_the_worked_example_of_the_module_comes_out():
    timeline = make_timeline(
        [
            ("python_function", "a.py(1): f", "main", 0, 10),
            ("python_function", "a.py(9): g", "main", 2, 3),
            ("kernel", "k", "stream7", 4, 2),
            ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "stream9", 5, 4),
        ],
        unit_ns=MS,
    )
    assert betas(summarize(timeline)) == {"f": 0.3, "g": 0.2, "k": 0.2, "all_reduce": 0.3}


def test_a_collective_hidden_by_compute_costs_nothing():
    timeline = make_timeline(
        [
            ("kernel", "k", "stream7", 0, 10),
            ("kernel", "ncclDevKernel_AllGather_RING", "stream9", 2, 5),
        ]
    )
    assert betas(summarize(timeline)) == {"k": 1.0, "all_gather": 0.0}


def test_memory_goes_before_collectives_and_after_compute():
    timeline = make_timeline(
        [
            ("kernel", "ncclDevKernel_AllReduce", "stream9", 0, 9),
            ("gpu_memcpy", "Memcpy HtoD", "stream7", 2, 5),
            ("kernel", "k", "stream84", 4, 1),
        ],
        window=(0, 10),
    )
    patterns = summarize(timeline)
    assert betas(patterns) == {"all_reduce": 0.4, "Memcpy HtoD": 0.4, "k": 0.1}
    assert patterns.breakdown == {
        "compute": 0.1,
        "exposed_communication": 0.4,
        "memory": 0.4,
        "data": 0.0,
        "python": 0.0,
        "idle": 0.1,
    }


def test_operators_stand_for_kernels_on_a_cpu_only_job():
    events = [
        ("python_function", "a.py(1): step", "main", 0, 10),
        ("cpu_op", "aten::mm", "main", 2, 4),
        ("user_annotation", "gloo:all_reduce", "gloo", 4, 5),
    ]
    cpu = summarize(make_timeline(events))
    assert betas(cpu) == {"step": 0.3, "aten::mm": 0.4, "all_reduce": 0.3}
    assert cpu.breakdown["compute"] == 0.4
    with_gpu = summarize(make_timeline([*events, ("kernel", "k", "stream7", 0, 1)]))
    assert betas(with_gpu) == {"k": 0.1, "step": 0.2, "aten::mm": 0.2, "all_reduce": 0.5}
    assert with_gpu.breakdown["compute"] == pytest.approx(0.1)
    assert with_gpu.breakdown["python"] == pytest.approx(0.4)


def test_python_inside_an_operator_is_python():
    timeline = make_timeline(
        [
            ("cpu_op", "SlowHookBackward", "main", 0, 10),
            ("python_function", "a.py(5): backward", "main", 1, 8),
            ("user_annotation", "gloo:all_reduce", "gloo", 3, 2),
        ]
    )
    assert betas(summarize(timeline)) == {
        "SlowHookBackward": 0.2,
        "backward": 0.6,
        "all_reduce": 0.2,
    }


def test_the_engine_threads_take_the_place_of_a_thread_that_waits_for_backward():
    timeline = make_timeline(
        [
            ("kernel", "k", "stream7", 0, 1),
            ("user_annotation", "ProfilerStep#3", "main", 0, 20),
            ("python_function", "train.py(4): main", "main", 0, 20),
            (
                "python_function",
                "<built-in method run_backward of torch._C._Engine>",
                "main",
                5,
                10,
            ),
            ("cpu_op", "autograd::engine::evaluate_function: MmBackward0", "autograd", 6, 4),
            ("cpu_op", "aten::mm", "autograd", 16, 2),
        ]
    )
    got = betas(summarize(timeline))
    assert got["autograd::engine::evaluate_function: MmBackward0"] == 0.2
    assert got["<built-in method run_backward of torch._C._Engine>"] == 0.3
    assert got["main"] == 0.45
    assert "aten::mm" not in got  # the training thread runs itself then


def test_other_threads_do_not_hold_the_path():
    timeline = make_timeline(
        [
            ("user_annotation", "Optimizer.step#SGD.step", "main", 0, 10),
            ("python_function", "a.py(1): f", "main", 0, 10),
            ("python_function", "log.py(1): flush", "other", 0, 10),
            ("cpu_op", "aten::mm", "other", 1, 5),
        ]
    )
    assert betas(summarize(timeline)) == {"f": 1.0}


def test_executions_are_cut_at_the_window():
    timeline = make_timeline(
        [("kernel", "k", "stream7", -5, 10), ("kernel", "late", "stream7", 8, 50)], window=(0, 10)
    )
    assert betas(summarize(timeline)) == {"k": 0.5, "late": 0.2}


def test_an_execution_without_an_end_is_left_out():
    timeline = make_timeline(
        [("kernel", "k", "stream7", 0, 10), ("kernel", "open", "stream7", 0, 10**15)]
    )
    patterns = summarize(timeline)
    assert betas(patterns) == {"k": 1.0}
    assert patterns.window_ns == 10


def test_equal_starts_nest_by_length_then_by_python_id():
    timeline = make_timeline(
        [
            ("python_function", "a.py(3): inner", "main", 0, 10, 3),
            ("python_function", "a.py(2): middle", "main", 0, 10, 2),
            ("python_function", "a.py(1): outer", "main", 0, 20, 1),
        ]
    )
    patterns = summarize(timeline)
    assert betas(patterns) == {"inner": 0.5, "outer": 0.5}
    inner = next(f for f in patterns.functions if f.name == "inner")
    assert [place.name for place in inner.stack] == ["middle", "outer"]


def test_many_equal_starts_are_ordered_like_few():
    frames = [("python_function", f"a.py({i}): f{i}", "main", 0, 100, i) for i in range(40)]
    patterns = summarize(make_timeline(list(reversed(frames))))
    assert betas(patterns) == {"f39": 1.0}
    assert [place.name for place in patterns.functions[0].stack][:2] == ["f38", "f37"]


def test_no_events_give_an_idle_window():
    patterns = summarize(make_timeline([], window=(0, 10)))
    assert patterns.functions == ()
    assert patterns.breakdown["idle"] == 1.0
    assert summarize(make_timeline([])).window_ns == 0


# --- the twin ---------------------------------------------------------------------------------


def brute_force(order, start, duration, lane, level, function, num_functions, window, data):
    """Ask every instant between two borders who holds it. O(n^2), no shared code."""
    critical = np.zeros(num_functions, np.int64)
    levels = np.zeros((NUM_LEVELS + 1, 2), np.int64)
    end = start + duration
    borders = {*window, *start.tolist(), *end.tolist(), *np.ravel(data).tolist()}
    borders = sorted(border for border in borders if window[0] <= border <= window[1])
    position = {event: i for i, event in enumerate(order.tolist())}
    for left, right in pairwise(borders):
        holders = []
        for which in range(NUM_LANES):
            active = [e for e in order if lane[e] == which and start[e] <= left and end[e] >= right]
            if active:
                newest = max(active, key=position.__getitem__)
                holders.append((level[newest], which, newest))
        in_data = int(any(a <= left and b >= right for a, b in zip(*data, strict=True)))
        row = min(holders)[0] if holders else NUM_LEVELS
        levels[row, in_data] += right - left
        if holders:
            critical[function[min(holders)[2]]] += right - left
    return critical, levels


@st.composite
def timelines(draw):
    """Events of all lanes, overlapping and nested as real ones never dare to."""
    kinds = [
        ("kernel", "k{}", "stream7"),
        ("kernel", "ncclDevKernel_AllReduce{}", "stream9"),
        ("gpu_memcpy", "copy{}", "stream7"),
        ("user_annotation", "gloo:op{}", "gloo"),
        ("cpu_op", "aten::op{}", "main"),
        ("python_function", "a.py(1): f{}", "main"),
        ("python_function", "<built-in method run_backward {}>", "main"),
        ("cpu_op", "autograd::engine::evaluate_function: B{}", "autograd"),
        ("user_annotation", "enumerate(DataLoader)#It.__next__", "main"),
    ]
    if draw(st.booleans()):  # CPU only
        kinds = [kind for kind in kinds if not kind[2].startswith("stream")]
    event = st.tuples(
        st.sampled_from(kinds), st.integers(0, 2), st.integers(0, 60), st.integers(0, 30)
    )
    drawn = draw(st.lists(event, min_size=1, max_size=25))
    window = draw(st.sampled_from([None, (0, 90), (10, 40)]))
    events = [
        (category, name.format(number), track, start, duration, i)
        for i, ((category, name, track), number, start, duration) in enumerate(drawn)
    ]
    return make_timeline(events, window=window)


@settings(max_examples=150, deadline=None)
@given(timelines())
def test_the_sweep_equals_its_brute_force_twin(timeline):
    from eroica.summarize.steps import find_loader_waits
    from eroica.summarize.summary import find_window

    lanes = classify(timeline)
    window = find_window(timeline, lanes)
    events = np.flatnonzero(lanes.lane_E != LANE_NONE).astype(np.int32)
    order = order_events(timeline.start_ns_E, timeline.duration_ns_E, timeline.python_id_E, events)
    function_E = timeline.name_id_E
    data = find_loader_waits(timeline, lanes)
    path = find_critical_path(
        order,
        timeline.start_ns_E,
        timeline.duration_ns_E,
        lanes.lane_E,
        lanes.level_E,
        function_E,
        len(timeline.names),
        window,
        *data,
    )
    critical, levels = brute_force(
        order,
        timeline.start_ns_E,
        timeline.duration_ns_E,
        lanes.lane_E,
        lanes.level_E,
        function_E,
        len(timeline.names),
        window,
        data,
    )
    assert path.critical_ns_F.tolist() == critical.tolist()
    assert path.level_ns_LD.tolist() == levels.tolist()


@settings(max_examples=100, deadline=None)
@given(timelines())
def test_shares_add_up_to_the_window_whatever_the_events(timeline):
    patterns = summarize(timeline)
    assert sum(patterns.breakdown.values()) == pytest.approx(1.0, abs=1e-9)
    assert all(share >= 0 for share in patterns.breakdown.values())
    assert -1e-6 <= float(patterns.beta_F.sum()) <= 1 + 1e-6
    loader = patterns.breakdown["idle"] + patterns.breakdown["data"]
    assert float(patterns.beta_F.sum()) >= 1 - loader - 1e-6


def test_an_event_that_only_touches_the_window_is_not_in_it():
    start = np.array([0, 5, 10, 15, 20, 10], np.int64)
    duration = np.array([10, 10, 10, 5, 10, 10], np.int64)
    lane = np.array([0, 0, 0, 0, 0, LANE_NONE], np.int8)
    assert select_events(lane, start, duration, 10, 20).tolist() == [1, 2, 3]


def test_a_function_of_exactly_the_limit_stands_alone():
    critical = np.array([1000, 999, 0], np.int64)
    none, alone = np.zeros(3, bool), np.full(3, -1)
    folding = fold(critical, critical, alone, none, none, none, 1_000_000, 0.001)
    assert folding.kept.tolist() == [0]
    assert folding.target_F.tolist() == [0, 1, 1]
