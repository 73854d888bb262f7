"""Traces of other devices and of the first releases: what each tells is what comes out.

The copies in tests/data/kineto are cut from real files; expected times are taken anew from their
JSON here, by another way than the product's.
"""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from eroica.read.kineto import read_timeline
from eroica.summarize import summarize

DATA = Path(__file__).parent / "data" / "kineto"


def load(name):
    document = json.loads(gzip.decompress((DATA / name).read_bytes()), strict=False)
    return document if isinstance(document, list) else document["traceEvents"]


def complete(events, *categories):
    return [e for e in events if e.get("ph") == "X" and e.get("cat") in categories]


def covered_us(events):
    """Length of the union of the events' times, in microseconds."""
    total, until = 0.0, float("-inf")
    for start, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in events):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def patterns_of(name):
    return summarize(read_timeline(DATA / name, rank=0))


def spent_us(patterns, part):
    return patterns.breakdown[part] * patterns.window_ns / 1000


@pytest.mark.parametrize(
    "name",
    [
        "mtia_rank_0.cut.json.gz",
        "mtia_inference_rank_0.cut.json.gz",
        "torch_nightly_2020_12_list.cut.json.gz",
        "torch_nightly_2021_01_autograd_api.cut.json.gz",
    ],
)
def test_every_complete_event_is_read_and_time_is_conserved(name):
    timeline = read_timeline(DATA / name, rank=0)
    expected = [e for e in load(name) if e["ph"] == "X" and e.get("cat") != "Trace"]
    assert not timeline.warnings
    assert Counter(timeline.names[i] for i in timeline.name_id_E) == Counter(
        e["name"] for e in expected
    )
    starts = sorted(round(e["ts"] * 1000) for e in expected)
    assert sorted(timeline.start_ns_E.tolist()) == pytest.approx(starts, abs=1)
    patterns = summarize(timeline)
    assert sum(patterns.breakdown.values()) == pytest.approx(1, abs=1e-6)


def test_what_an_mtia_stream_waits_for_another_is_no_computing():
    """In this trace the longest device event is a wait of 16 ms."""
    name = "mtia_inference_rank_0.cut.json.gz"
    device = complete(load(name), "mtia_ccp_events")
    work = [e for e in device if e["name"] in ("merge", "remote", "pe_exe")]
    waits = [e for e in device if e["name"] == "event_wait"]
    patterns = patterns_of(name)
    assert covered_us(waits) > covered_us(work) > 0
    assert spent_us(patterns, "compute") == pytest.approx(covered_us(work), abs=1)
    kinds = {f.name: f.kind for f in patterns.functions}
    assert kinds["merge"] == kinds["remote"] == "kernel"
    assert not {"event_wait", "event_record"} & set(kinds)


def test_mtia_copies_are_memory_below_kernels():
    name = "mtia_inference_rank_0.cut.json.gz"
    device = complete(load(name), "mtia_ccp_events")
    work = [e for e in device if e["name"] in ("merge", "remote", "pe_exe")]
    copies = [e for e in device if e["name"] == "dma_request"]
    beyond = covered_us(work + copies) - covered_us(work)
    patterns = patterns_of(name)
    assert beyond > 0
    assert spent_us(patterns, "memory") == pytest.approx(beyond, abs=1)


def test_an_mtia_training_step_names_its_kernels_rank_and_step():
    timeline = read_timeline(DATA / "mtia_rank_0.cut.json.gz")
    assert (timeline.rank, timeline.world_size) == (0, 1)
    assert timeline.backend == "mtia:hccl,cpu:gloo"
    patterns = summarize(timeline)
    largest = max(
        (f for f in patterns.functions if f.kind == "kernel"),
        key=lambda f: patterns.beta_F[patterns.functions.index(f)],
    )
    events = complete(load("mtia_rank_0.cut.json.gz"), "mtia_ccp_events")
    assert largest.name == "fc-dtype_Float"
    longest = max(events, key=lambda e: e["dur"])
    assert longest["name"] == largest.name
    assert patterns.num_steps == 1


@pytest.mark.parametrize(
    "name",
    ["torch_nightly_2020_12_list.cut.json.gz", "torch_nightly_2021_01_autograd_api.cut.json.gz"],
)
def test_traces_of_before_torch_1_8_have_todays_categories(name):
    events = load(name)
    timeline = read_timeline(DATA / name)
    renamed = {
        "Operator": "cpu_op",
        "Runtime": "cuda_runtime",
        "Kernel": "kernel",
        "Memcpy": "gpu_memcpy",
        "Memset": "gpu_memset",
    }
    expected = Counter(renamed[e["cat"]] for e in complete(events, *renamed))
    assert Counter(timeline.categories[i] for i in timeline.category_id_E) == expected
    assert timeline.base_ns == 0
    streams = {(track.device, track.stream) for track in timeline.tracks if track.is_device}
    assert streams == {(0, 7)}  # written as pid 0, tid "stream 7"
    links = {e["args"]["correlation"] for e in complete(events, "Runtime", "Kernel", "Memcpy")}
    assert links <= set(timeline.correlation_E.tolist())
    assert timeline.rank is None


def test_a_list_from_before_torch_1_8_has_its_kernels_on_the_critical_path():
    name = "torch_nightly_2020_12_list.cut.json.gz"
    device = complete(load(name), "Kernel")
    patterns = patterns_of(name)
    assert len(device) > 20
    assert spent_us(patterns, "compute") == pytest.approx(covered_us(device), abs=1)


def xpu_trace():
    """One step on an XPU: launches and kernels tied by correlation, queues instead of streams."""
    base = {"pid": 4711, "tid": 4711}

    def event(cat, name, ts, dur, **args):
        where = {"pid": 0, "tid": 0} if cat in ("kernel", "gpu_memcpy") else base
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args, **where}

    queue = {"device": 0, "l0 queue": "0x000055d08b8fc138", "sycl queue": 64}
    return {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": {"backend": "xccl", "rank": 3, "world_size": 12},
        "baseTimeNanoseconds": 1790857000000000000,
        "traceEvents": [
            event("user_annotation", "ProfilerStep#4", 100.0, 900.0),
            event("cpu_op", "aten::addmm", 110.0, 300.0, **{"External id": 5}),
            event("xpu_runtime", "urEnqueueKernelLaunch", 200.0, 20.0, correlation=4131),
            event("kernel", "gemm_kernel", 300.0, 250.125, correlation=4131, **queue),
            event("xpu_runtime", "urEnqueueUSMMemcpy", 420.0, 5.0, correlation=4132),
            event("gpu_memcpy", "Memcpy D2M", 560.0, 40.0, correlation=4132, **queue),
            event("xpu_runtime", "urEventWait", 430.0, 180.0, correlation=4133),
            {"ph": "X", "cat": "Trace", "ts": 90.0, "dur": 1010.0, "pid": "Spans",
             "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "args": {"Op count": 0}},
            {"ph": "X", "cat": "Trace", "ts": 95.0, "dur": 1105.0, "pid": "Spans",
             "tid": "__xpu_profiler__", "name": "__xpu_profiler__ (0)", "args": {"Op count": 0}},
            {"ph": "s", "id": 4131, "pid": 4711, "tid": 4711, "ts": 200.0, "cat": "ac2g",
             "name": "ac2g"},
        ],
    }  # fmt: skip


def test_an_xpu_step_is_its_kernels_copies_and_waits(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(xpu_trace()))
    timeline = read_timeline(path)
    assert (timeline.rank, timeline.world_size, timeline.backend) == (3, 12, "xccl")
    patterns = summarize(timeline)
    assert patterns.window_ns == 1_110_000  # both profilers' spans
    assert spent_us(patterns, "compute") == pytest.approx(250.125, abs=0.01)
    assert spent_us(patterns, "memory") == pytest.approx(40.0, abs=0.01)
    share = {f.name: b for f, b in zip(patterns.functions, patterns.beta_F, strict=True)}
    assert share["urEventWait"] == pytest.approx((560 - 550.125 + 10) / 1110, rel=1e-3)
    assert patterns.num_steps == 1
