"""Reading traces: every form torch has written, real files, broken files."""

import gzip
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import zstandard

from eroica.columns import Timeline
from eroica.errors import InputError
from eroica.read.collective_notes import normalize_op
from eroica.read.kineto import read_timeline, sniff

HERE = Path(__file__).parent / "data" / "kineto"
SHARED = Path(os.environ.get("EROICA_SHARED", Path(__file__).parents[2] / "shared")) / "data"
GLOO = HERE / "rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz"
ROCM = HERE / "mi250_minitoy_train_ROCm6_2_kineto.json.gz"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")


def event(name: str = "aten::mm", **fields: object) -> dict:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 7, "ts": 10, "dur": 5,
            "args": {}} | fields  # fmt: skip


def write(folder: Path, content: object, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def names_of(timeline: Timeline) -> list[str]:
    return [timeline.names[i] for i in timeline.name_id_E]


def categories_of(timeline: Timeline) -> list[str]:
    return [timeline.categories[i] for i in timeline.category_id_E]


def calls_of(timeline: Timeline) -> list[tuple]:
    """(event, op, group, sequence, bytes) of each collective."""
    c = timeline.collectives
    return [
        (int(e), c.ops[o], c.groups[g], int(s), int(b))
        for e, o, g, s, b in zip(
            c.event_C, c.op_id_C, c.group_id_C, c.sequence_C, c.num_bytes_C, strict=True
        )
    ]


# --- forms --------------------------------------------------------------------------------------


def test_nanoseconds_and_base_are_exact(tmp_path):
    trace = {
        "baseTimeNanoseconds": 1790857026000000000,
        "traceEvents": [event(ts=5101124813514.571, dur=3784090.401)],
    }
    timeline = read_timeline(write(tmp_path, trace))
    assert timeline.base_ns == 1790857026000000000
    assert timeline.start_ns_E.tolist() == [5101124813514571]
    assert timeline.duration_ns_E.tolist() == [3784090401]


def test_absolute_integer_microseconds_of_old_traces(tmp_path):
    timeline = read_timeline(write(tmp_path, {"traceEvents": [event(ts=1694128201426556, dur=2)]}))
    assert timeline.base_ns == 0
    assert timeline.start_ns_E.tolist() == [1694128201426556000]


def test_base_after_the_events_and_as_text(tmp_path):
    trace = {"traceEvents": [event()], "baseTimeNanoseconds": "1790857026000000001"}
    assert read_timeline(write(tmp_path, trace)).base_ns == 1790857026000000001


def test_a_bare_list_is_a_trace(tmp_path):
    timeline = read_timeline(write(tmp_path, [event("a"), event("b")]))
    assert names_of(timeline) == ["a", "b"]


def test_the_legacy_profiler_has_pids_for_categories(tmp_path):
    cpu = {"name": "mm", "ph": "X", "ts": 1.5, "dur": 2.25, "tid": 1, "pid": "CPU functions",
           "args": {}}  # fmt: skip
    gpu = cpu | {"name": "gemm", "pid": "CUDA functions"}
    timeline = read_timeline(write(tmp_path, [cpu, gpu]))
    assert categories_of(timeline) == ["cpu_op", "kernel"]
    assert [timeline.tracks[i].is_device for i in timeline.track_id_E] == [False, True]


def test_capitalized_categories_of_old_releases(tmp_path):
    old = ["Operator", "Kernel", "Runtime", "Memcpy", "Memset", "cpu_op"]
    timeline = read_timeline(write(tmp_path, {"traceEvents": [event(cat=c) for c in old]}))
    assert categories_of(timeline) == [
        "cpu_op", "kernel", "cuda_runtime", "gpu_memcpy", "gpu_memset", "cpu_op",
    ]  # fmt: skip
    assert len(timeline.categories) == 5


def test_compression_is_told_by_content_not_by_name(tmp_path):
    data = json.dumps({"traceEvents": [event()]}).encode()
    packed = {
        "plain.json.gz": data,
        "gzip.json": gzip.compress(data),
        "zstd.json.gz": zstandard.compress(data),
        "two_members.gz": gzip.compress(data[:20]) + gzip.compress(data[20:]),
    }
    for name, content in packed.items():
        (tmp_path / name).write_bytes(content)
        timeline = read_timeline(tmp_path / name)
        assert timeline.num_events == 1, name
        assert timeline.num_bytes == len(data)
        assert not timeline.warnings


def test_only_complete_events_count_and_spans_give_the_window(tmp_path):
    trace = [
        event("kept"),
        event("flow", ph="s"),
        event("instant", ph="i"),
        event("PyTorch Profiler (0)", cat="Trace", pid="Spans", tid="PyTorch Profiler", ts=2.5,
              dur=100.25),
        event("ProfilerStep#3", cat="user_annotation"),
    ]  # fmt: skip
    timeline = read_timeline(write(tmp_path, {"traceEvents": trace}))
    assert names_of(timeline) == ["kept", "ProfilerStep#3"]
    assert timeline.window == (2500, 102750)


def test_tracks_have_thread_names_devices_and_streams(tmp_path):
    name = {"ph": "M", "name": "thread_name", "ts": 1, "pid": 7, "tid": 8,
            "args": {"name": "thread 8 (pt_gloo_runloop)"}}  # fmt: skip
    again = name | {"args": {"name": "thread 8 (python3.11)"}}
    events = [
        name, again, event(tid=8), event(cat="kernel", pid=3, tid=21), event(cat="kernel", pid=0,
        tid="stream 7"), event(tid=-12),
    ]  # fmt: skip
    timeline = read_timeline(write(tmp_path, {"traceEvents": events}))
    host, kernel, old, negative = timeline.tracks
    assert (host.name, host.is_device) == ("thread 8 (pt_gloo_runloop)", False)
    assert (kernel.is_device, kernel.device, kernel.stream) == (True, 3, 21)
    assert (old.device, old.stream) == (0, 7)
    assert negative.tid == "12"


def test_one_name_in_two_spellings_is_one_name(tmp_path):
    text = json.dumps({"traceEvents": [event("FIRST"), event("SECOND")]})
    text = text.replace("FIRST", r"\u00e9/a").replace("SECOND", r"é\/a")
    timeline = read_timeline(write(tmp_path, text))
    assert timeline.names == ("é/a",)
    assert timeline.name_id_E.tolist() == [0, 0]


def test_links_and_python_frames_are_kept(tmp_path):
    events = [
        event(cat="python_function", args={"Python id": 5, "Python parent id": None}),
        event(cat="python_function", args={"Python parent id": 5, "Python id": 6}),
        event(cat="kernel", args={"correlation": 4242, "grid": [1, 2, 3]}),
        event(args={"Comms Id": 10159970886766084423, "correlation": 2**64}),
    ]
    timeline = read_timeline(write(tmp_path, {"traceEvents": events}))
    assert timeline.python_id_E.tolist() == [5, 6, -1, -1]
    assert timeline.python_parent_E.tolist() == [-1, 5, -1, -1]
    assert timeline.correlation_E.tolist() == [-1, -1, 4242, -1]


@pytest.mark.parametrize("category", ["mtia_ccp_events", "xpu_runtime", "hpu_op", "never_seen"])
def test_any_category_loads(tmp_path, category):
    timeline = read_timeline(write(tmp_path, {"traceEvents": [event(cat=category)]}))
    assert timeline.categories == (category,)


# --- rank, world, groups ------------------------------------------------------------------------


def test_rank_from_the_file_else_its_name_else_nothing(tmp_path):
    info = {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}}
    events = {"traceEvents": [event()]}
    assert read_timeline(write(tmp_path, info | events, "rank5.json")).rank == 3
    assert read_timeline(write(tmp_path, events | info, "rank5.json")).world_size == 8
    assert read_timeline(write(tmp_path, events, "rank-5.json")).rank == 5
    assert read_timeline(write(tmp_path, events, "worker7_step_12.123.pt.trace.json")).rank == 7
    assert read_timeline(write(tmp_path, events, "host_1234.pt.trace.json")).rank is None
    assert read_timeline(write(tmp_path, info | events, "rank5.json"), rank=1).rank == 1


def test_a_glance_tells_what_reading_tells(tmp_path):
    info = {"distributedInfo": {"backend": "nccl", "rank": "3", "world_size": 8}}
    padding = {"traceEvents": [event("x" * 1000) for _ in range(400)]}
    for name, content in {"front.json": info | padding, "back.json": padding | info}.items():
        head = sniff(write(tmp_path, content, name))
        assert head is not None and (head.rank, head.world_size) == (3, 8), name
        packed = tmp_path / (name + ".gz")
        packed.write_bytes(gzip.compress((tmp_path / name).read_bytes()))
        assert sniff(packed).rank == 3
    assert sniff(write(tmp_path, [event()], "rank2.json")).rank == 2


def test_other_files_are_no_traces(tmp_path):
    others = {
        "dump.json": {"version": "2.10", "pg_config": {}, "entries": []},
        "stack.json": [{"pid": 1, "thread_id": 2, "frames": [{"name": "f"}]}],
        "text.json": "Traceback (most recent call last):",
        "empty.json": "",
        "lfs.json": "version https://git-lfs.github.com/spec/v1\noid sha256:0",
    }
    for name, content in others.items():
        path = write(tmp_path, content, name)
        assert sniff(path) is None, name
        with pytest.raises(InputError):
            read_timeline(path)


def test_groups_from_the_job_and_from_the_calls(tmp_path):
    info = {"distributedInfo": {"rank": 0, "pg_config": [
        {"pg_name": "0", "ranks": [0, 1]}, {"pg_name": "1", "ranks": "[0, 2, ...]"},
    ]}}  # fmt: skip
    args = {"Collective name": "allreduce", "Process Group Name": "9", "Group size": 3,
            "Process Group Ranks": "[0, 4, ...", "Global rank start": 0,
            "Global rank stride": 4}  # fmt: skip
    trace = info | {"traceEvents": [event("record_param_comms", args=args)]}
    assert read_timeline(write(tmp_path, trace)).groups == {"0": (0, 1), "1": (), "9": (0, 4, 8)}


# --- collectives --------------------------------------------------------------------------------

METADATA = {"Collective name": "_allgather_base", "In msg nelems": 100, "Out msg nelems": 800,
            "dtype": "BFloat16", "Process Group Name": "3", "Seq": 17}  # fmt: skip


def test_a_kernel_is_what_the_record_around_its_launch_says(tmp_path):
    events = [
        event("record_param_comms", ts=100, dur=50, args=METADATA),
        event("cudaLaunchKernel", cat="cuda_runtime", ts=120, dur=5, args={"correlation": 8}),
        event("cudaLaunchKernel", cat="cuda_runtime", ts=300, dur=5, args={"correlation": 9}),
        event("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", cat="kernel", pid=0,
              tid=7, ts=500, args={"correlation": 8}),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)", cat="kernel", pid=0, tid=7, ts=400,
              args={"correlation": 9}),
    ]  # fmt: skip
    timeline = read_timeline(write(tmp_path, {"traceEvents": events}))
    assert calls_of(timeline) == [
        (4, "all_reduce", "", -1, -1),
        (3, "all_gather", "3", 17, 1600),
    ]


def test_metadata_on_the_kernel_itself_needs_no_link(tmp_path):
    kernel = event("ncclDevKernel_Generic(x)", cat="kernel", pid=0, tid=7, args=METADATA)
    timeline = read_timeline(write(tmp_path, {"traceEvents": [kernel]}))
    assert calls_of(timeline) == [(0, "all_gather", "3", 17, 1600)]


def test_an_annotation_on_the_stream_names_a_kernel_without_a_link(tmp_path):
    events = [
        event("nccl:broadcast", cat="gpu_user_annotation", pid=2, tid=4, ts=99.999, dur=10.002),
        event("ncclDevKernel_Generic(x)", cat="kernel", pid=2, tid=4, ts=100, dur=10),
    ]
    timeline = read_timeline(write(tmp_path, {"traceEvents": events}))
    assert [call[:2] for call in calls_of(timeline)] == [(1, "broadcast")]


def test_old_kernel_names_tell_the_operation(tmp_path):
    names = {
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": "all_reduce",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)": "reduce_scatter",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)": "send_recv",
        "ncclDevKernel_Broadcast_RING_LL(x)": "broadcast",
        "ncclKernel_AllReduce": "all_reduce",
        "void vllm::cross_device_reduce_1stage<float, 2>(x)": "all_reduce",
    }
    events = [event(n, cat="kernel", ts=i) for i, n in enumerate(names)]
    timeline = read_timeline(write(tmp_path, {"traceEvents": events}))
    assert [call[1] for call in calls_of(timeline)] == list(names.values())


def test_gloo_annotations_are_the_collectives_of_a_host_job(tmp_path):
    info = {"distributedInfo": {"backend": "gloo", "pg_config": [{"pg_name": "0", "ranks": [0]}]}}
    args = {"Input Dims": [[10, 20]], "Input type": ["float"]}
    events = [
        event("gloo:all_reduce", cat="user_annotation", tid=9, args=args),
        event("c10d::allreduce_"),
        event("nccl:all_reduce", cat="user_annotation", args=args),  # the launch, not the transfer
    ]
    timeline = read_timeline(write(tmp_path, info | {"traceEvents": events}))
    assert calls_of(timeline) == [(0, "all_reduce", "0", -1, 800)]


def test_operations_have_the_names_of_torch():
    assert {name: normalize_op(name) for name in (
        "_allgather_base", "all_gather_into_tensor_coalesced", "nccl:_reduce_scatter_base",
        "allreduce_coalesced", "alltoall_base", "all_to_allv", "send 0->1", "recv", "barrier",
        "nccl:all_reduce_barrier", "broadcast",
    )} == {
        "_allgather_base": "all_gather",
        "all_gather_into_tensor_coalesced": "all_gather",
        "nccl:_reduce_scatter_base": "reduce_scatter",
        "allreduce_coalesced": "all_reduce",
        "alltoall_base": "all_to_all",
        "all_to_allv": "all_to_all",
        "send 0->1": "send_recv",
        "recv": "send_recv",
        "barrier": "barrier",
        "nccl:all_reduce_barrier": "barrier",
        "broadcast": "broadcast",
    }  # fmt: skip


# --- real files ---------------------------------------------------------------------------------


def test_a_gloo_trace_of_rank_34():
    timeline = read_timeline(GLOO)
    timeline.self_check()
    assert (timeline.rank, timeline.world_size, timeline.backend) == (34, 300, "gloo")
    assert len(timeline.groups["0"]) == 300
    assert [call[1] for call in calls_of(timeline)] == ["all_reduce"] * 10
    assert {call[4] for call in calls_of(timeline)} == {321271 * 4, 2082411 * 4}


def test_a_rocm_trace():
    timeline = read_timeline(ROCM)
    timeline.self_check()
    assert categories_of(timeline).count("kernel") == 14
    assert timeline.base_ns == 1735632360000000000
    assert timeline.window == (4203669603018756, 4203669603018756 + 9761878)
    kernels = [t for t in timeline.tracks if t.is_device]
    assert kernels and all(track.stream is not None for track in kernels)


def kineto_files() -> list[Path]:
    return sorted((SHARED / "kineto").rglob("*.gz")) if SHARED.is_dir() else []


@needs_shared
@pytest.mark.parametrize(
    "path", [p for p in kineto_files() if p.stat().st_size < 200_000], ids=lambda p: p.name
)
def test_every_small_real_trace_has_the_events_json_sees(path):
    timeline = read_timeline(path)
    timeline.self_check()
    assert not timeline.warnings
    document = json.loads(gzip.decompress(path.read_bytes()))
    events = document["traceEvents"] if isinstance(document, dict) else document
    wanted = [e for e in events if e["ph"] == "X" and e.get("pid") not in ("Spans", "Traces")]
    assert names_of(timeline) == [e["name"] for e in wanted]
    seen = timeline.duration_ns_E / 1000
    np.testing.assert_allclose(seen, [float(e["dur"]) for e in wanted], rtol=0, atol=1e-3)
    assert timeline.correlation_E.tolist() == [
        e.get("args", {}).get("correlation", -1) for e in wanted
    ]


@needs_shared
def test_lateness_on_the_dlrm_ranks_is_what_the_reference_says():
    late_of = {}
    for line in (SHARED / "reference/dlrm/collective_arrival_own.csv").read_text().splitlines()[1:]:
        index, rank, *_, late = [line.split(",")[0], *line.rsplit(",", 5)[1:]]
        late_of[int(index), int(rank)] = int(late)
    timelines = [read_timeline(p) for p in sorted((SHARED / "kineto/dlrm_8ranks_v100").iterdir())]
    starts_RC = np.array([t.start_ns_E[t.collectives.event_C] for t in timelines]) // 1000
    late_RC = starts_RC - starts_RC.min(axis=0)
    assert late_RC.shape == (8, 8)
    for rank, timeline in enumerate(timelines):
        assert timeline.rank == rank
        for index in range(8):
            assert late_RC[rank, index] == late_of[index, rank]
    for timeline in timelines:  # SendRecv kernels that are all_to_all
        assert [call[1] for call in calls_of(timeline)].count("all_to_all") == 5


# --- broken files -------------------------------------------------------------------------------

DEFECTS = {  # file: events that can be read, what the warning says
    "01_truncated_plain.json": (226, "the file ends here"),
    "02_truncated_gzip.json.gz": (196, "gzip stream breaks off"),
    "03_unescaped_quotes_in_name.json": (389, "unescaped quotes"),
    "04_windows_backslashes.json": (389, "invalid escapes"),
    "05_control_and_non_utf8_bytes.json": (389, "non-UTF-8"),
    "06_bare_NA_value.json": (389, "not JSON (N/A"),
    "07_NaN_Infinity.json": (386, "duration is not a number"),
    "08_trailing_comma.json": (389, "metadata is damaged"),
    "09_empty_args_comma.json": (389, "comma too many"),
    "10_bad_numbers_negdur_hugedur_ts0_negtid.json": (385, "negative or endless"),
    "11_toplevel_list.json": (35, "negative or endless"),
    "20_two_docs_concatenated.json": (389, "second document"),
}


@needs_shared
@pytest.mark.parametrize("name", DEFECTS)
def test_a_malformed_trace_is_read_as_far_as_it_is_whole(name):
    timeline = read_timeline(SHARED / "malformed" / name)
    timeline.self_check()
    num_events, told = DEFECTS[name]
    assert timeline.num_events == num_events
    assert all(w.file == timeline.path for w in timeline.warnings)
    found = [w.what for w in timeline.warnings if told in w.what]
    assert found and found[0].startswith("byte ")


@needs_shared
@pytest.mark.parametrize(
    ("name", "told"),
    [("14_empty.json", "it is empty"), ("15_no_events.json", "empty list of events"),
     ("16_lfs_pointer.json.gz", "Git LFS pointer")],
)  # fmt: skip
def test_a_file_with_nothing_in_it_is_refused_by_name(name, told):
    with pytest.raises(InputError) as caught:
        read_timeline(SHARED / "malformed" / name)
    assert name in str(caught.value) and told in str(caught.value)


def test_an_event_with_bare_quotes_is_read_by_its_fields(tmp_path):
    broken = json.dumps(event("MARK", args={"correlation": 12})).replace(
        "MARK", '<eval>.{"device": "cpu"}(3): forward'
    )
    text = f'{{"traceEvents": [{json.dumps(event("a"))}, {broken}, {json.dumps(event("b"))}]}}'
    timeline = read_timeline(write(tmp_path, text))
    assert names_of(timeline) == ["a", '<eval>.{"device": "cpu"}(3): forward', "b"]
    assert timeline.correlation_E.tolist() == [-1, 12, -1]
    position = text.index(broken)
    assert [w.what.split(":")[0] for w in timeline.warnings] == [f"byte {position}"]


def test_a_damaged_event_at_the_end_of_a_list_is_read_too(tmp_path):
    broken = json.dumps(event("MARK")).replace("MARK", 'a"b')
    timeline = read_timeline(write(tmp_path, f"[{json.dumps(event('first'))}, {broken}]"))
    assert names_of(timeline) == ["first", 'a"b']
    assert len(timeline.warnings) == 1


def test_damage_costs_one_event_not_the_rest(tmp_path):
    parts = [json.dumps(event(f"e{i}")) for i in range(5)]
    parts[2] = '{"ph": "X", "name": "e2", "ts": 1 "dur": }'
    timeline = read_timeline(write(tmp_path, '{"traceEvents": [' + ",\n".join(parts) + "]}"))
    assert names_of(timeline) == ["e0", "e1", "e3", "e4"]
    assert "1 x damaged event, left out" in timeline.warnings[0].what


def test_damaged_metadata_still_tells_rank_and_base(tmp_path):
    text = (
        '{"job": "a"b", "distributedInfo": {"backend": "nccl", "rank": 4, "world_size": 8}, '
        f'"baseTimeNanoseconds": 1790857026000000000, "traceEvents": [{json.dumps(event())}]}}'
    )
    timeline = read_timeline(write(tmp_path, text))
    assert (timeline.rank, timeline.world_size) == (4, 8)
    assert timeline.base_ns == 1790857026000000000
    assert "metadata is damaged" in timeline.warnings[0].what


def test_kernels_longer_than_the_recording_are_left_out(tmp_path):
    span = event("PyTorch Profiler (0)", cat="Trace", pid="Spans", tid="p", ts=0, dur=1000)
    events = [span, event(cat="kernel", dur=50), event(cat="kernel", dur=4_000_000)]
    timeline = read_timeline(write(tmp_path, {"traceEvents": events}))
    assert timeline.duration_ns_E.tolist() == [50_000]
    assert "longer than was recorded" in timeline.warnings[0].what


def test_a_string_never_closed_does_not_swallow_the_file(tmp_path):
    good = ",\n".join(json.dumps(event(f"e{i}")) for i in range(50))
    text = '{"traceEvents": [{"ph": "X", "name": "open,\n' + good + "]}"
    timeline = read_timeline(write(tmp_path, text))
    assert names_of(timeline) == [f"e{i}" for i in range(50)]
    assert [w.what for w in timeline.warnings] == ["byte 17: 1 x damaged event, left out"]


@pytest.mark.parametrize("source", [GLOO, ROCM], ids=lambda p: p.name[:6])
@pytest.mark.parametrize("block_bytes", [1 << 22, 997])
def test_flipped_bytes_and_cuts_end_in_warnings_or_a_clear_error(tmp_path, source, block_bytes):
    data = gzip.decompress(source.read_bytes())
    whole = read_timeline(source).num_events
    chance = random.Random(7)
    for round_number in range(60):
        broken = bytearray(data)
        for _ in range(chance.choice((1, 3, 30))):
            broken[chance.randrange(len(broken))] = chance.choice(b'"{}[],:\\\n\x00\xff09-eX')
        if round_number % 3 == 0:
            del broken[chance.randrange(len(broken)) :]
        packed = gzip.compress(bytes(broken), 1) if round_number % 2 else bytes(broken)
        if round_number % 4 == 1:
            packed = packed[: chance.randrange(len(packed))]
        path = tmp_path / f"{round_number}.json"
        path.write_bytes(packed)
        try:
            timeline = read_timeline(path, block_bytes=block_bytes)
        except InputError as error:
            assert str(path) in str(error)
            continue
        timeline.self_check()
        assert timeline.num_events <= whole
        if len(broken) < len(data):
            assert timeline.warnings
