"""Real traces: agreement with numbers worked out by others, conservation, size."""

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from make_timeline import shared

from eroica.config import Parameters
from eroica.read.kineto import read_timeline
from eroica.summarize import pack, summarize, unpack
from eroica.summarize.breakdown import PARTS
from eroica.summarize.classify import LANE_COLLECTIVE, LANE_DEVICE, LANE_MEMORY, classify
from eroica.summarize.steps import union_of

DLRM = Path(__file__).parent / "data" / "dlrm_8ranks_v100"


@pytest.fixture(scope="module")
def dlrm():
    timelines = [read_timeline(path) for path in sorted(DLRM.glob("worker*.json.gz"))]
    assert [timeline.rank for timeline in timelines] == list(range(8))
    return timelines


def device_times(timeline):
    """By HolisticTraceAnalysis' definition: compute is the union of kernels that are no collective,
    non-compute what is left of the union of all device work, all in ns."""
    lane_E = classify(timeline).lane_E
    order = np.argsort(timeline.start_ns_E, kind="stable")

    def covered(lanes):
        events = order[np.isin(lane_E[order], lanes)]
        return union_of(timeline.start_ns_E[events], timeline.end_ns_E[events])

    compute, busy = covered((LANE_DEVICE,)), covered((LANE_DEVICE, LANE_MEMORY, LANE_COLLECTIVE))
    first, last = int(busy[0][0]), int(busy[1][-1])
    held = [int((end - start).sum()) for start, end in (compute, busy)]
    return {
        "compute": held[0],
        "non_compute": held[1] - held[0],
        "idle": last - first - held[1],
        "kernel": last - first,
    }


def test_compute_non_compute_and_idle_equal_those_of_hta(dlrm):
    with (DLRM / "temporal_breakdown.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    for row, timeline in zip(rows, dlrm, strict=True):
        times = device_times(timeline)
        assert times["compute"] == float(row["compute_time(us)"]) * 1000
        assert times["non_compute"] == float(row["non_compute_time(us)"]) * 1000
        assert times["idle"] == float(row["idle_time(us)"]) * 1000
        assert times["kernel"] == float(row["kernel_time(us)"]) * 1000


def test_lateness_of_each_collective_equals_the_reference(dlrm):
    with (DLRM / "collective_arrival_own.csv").open() as file:
        reference = list(csv.DictReader(file))
    expected = {
        (int(row["idx"]), int(row["rank"])): int(row["late_by_us(start-min start)"])
        for row in reference
    }
    arrivals = {timeline.rank: summarize(timeline).arrivals for timeline in dlrm}
    assert len({one.key_C for one in arrivals.values()}) == 1  # the same keys on every rank
    base = {timeline.rank: timeline.base_ns for timeline in dlrm}
    for index in range(8):
        start = {r: base[r] + int(one.start_ns_C[index]) for r, one in arrivals.items()}
        end = {r: base[r] + int(one.end_ns_C[index]) for r, one in arrivals.items()}
        assert max(end.values()) - min(end.values()) <= 10_000
        for rank in range(8):
            assert start[rank] - min(start.values()) == expected[index, rank] * 1000
    assert len(expected) == 64


def test_the_last_to_arrive_of_the_dlrm_job_is_rank_7(dlrm):
    last = defaultdict(int)
    arrivals = {timeline.rank: summarize(timeline).arrivals for timeline in dlrm}
    for index in range(8):
        last[max(range(8), key=lambda rank: int(arrivals[rank].start_ns_C[index]))] += 1
    assert last == {7: 5, 5: 2, 4: 1}


def test_the_slow_rank_of_the_gloo_job_shows_by_its_sleep():
    paths = sorted(shared("kineto", "gloo_4ranks_slow_rank2_sleep_workers0").glob("*.json.gz"))
    patterns = [summarize(read_timeline(path)) for path in paths]
    slow = patterns[2]
    assert slow.functions[0].name == "<built-in function sleep>"
    assert slow.functions[0].stack[0].name == "preprocess_slow"
    assert slow.functions[0].stack[0].file == "toy.py"
    assert float(slow.beta_F[0]) == pytest.approx(0.767, abs=0.001)
    assert slow.breakdown["data"] == pytest.approx(0.781, abs=0.001)
    for rank in (0, 1, 3):
        assert patterns[rank].functions[0].name == "all_reduce"
        assert patterns[rank].breakdown["exposed_communication"] > 0.77
        assert patterns[rank].breakdown["data"] < 0.003
    assert [one.num_steps for one in patterns] == [10] * 4
    assert len({one.arrivals.key_C for one in patterns}) == 1
    sleeps = slow.functions[0].id
    assert sum(culprit == sleeps for culprit in slow.arrivals.culprit_C) == 10


def test_functions_have_the_same_identity_on_every_rank():
    paths = sorted(shared("kineto", "gloo_4ranks_healthy").glob("*.json.gz"))
    unfolded = Parameters(rest_beta=0.0)
    patterns = [summarize(read_timeline(path), parameters=unfolded) for path in paths]
    ids = [{function.id for function in one.functions} for one in patterns]
    assert len(ids[0]) == 774
    assert ids == [ids[0]] * 4


def real_traces():
    root = Path(__file__).parents[2] / "shared" / "data" / "kineto"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.json.gz")) or ["."]


@pytest.mark.parametrize("name", real_traces())
def test_a_real_trace_is_conserved_and_packs_to_30_kb(name):
    path = shared("kineto", name)
    if path.is_dir():
        pytest.skip("the shared data set holds no traces")
    patterns = summarize(read_timeline(path, rank=0))
    assert set(patterns.breakdown) == set(PARTS)
    assert sum(patterns.breakdown.values()) == pytest.approx(1.0, abs=1e-9)
    assert min(patterns.breakdown.values()) >= 0
    held = float(patterns.beta_F.astype(float).sum())
    nobody = patterns.breakdown["idle"]
    assert 1 - nobody - patterns.breakdown["data"] - 1e-5 <= held <= 1 - nobody + 1e-5
    packed = pack(patterns)
    assert len(packed) <= 30_000
    again = unpack(packed)
    assert again.functions == patterns.functions
    assert not again.warnings[len(patterns.warnings) :]  # nothing had to be dropped
    assert {len(patterns.functions)} == {
        len(column)
        for column in (patterns.beta_F, patterns.mu_F, patterns.sigma_F, patterns.count_F)
    }
    assert ((patterns.mu_F >= 0) & (patterns.mu_F <= 1 + 1e-6)).all()


def test_a_stuck_main_thread_is_found_among_chained_threads():
    path = Path(__file__).parent / "data" / "chained_threads" / "rank0.json.gz"
    patterns = summarize(read_timeline(path, rank=0))
    stuck = patterns.functions[0]
    assert (stuck.name, stuck.file) == ("stuck_here", "prof.py")
    assert [place.name for place in stuck.stack] == ["main", "<module>"]
    assert float(patterns.beta_F[0]) > 0.99
