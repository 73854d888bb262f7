"""Nsight Systems exports: schemas that differ, tables that miss, files that are damaged."""

import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.read.nccl import op_of_kernel
from eroica.read.nsys import is_nsys, list_ranks, read_timeline

DATA = Path(__file__).parent / "data" / "read"
SHARED = Path(os.environ.get("EROICA_SHARED", Path(__file__).parents[2] / "shared")) / "data"
REAL = sorted((SHARED / "nsys").glob("*.sqlite"))
NS = 1_000_000


def make(path, statements):
    database = sqlite3.connect(path)
    database.executescript(";".join(statements))
    database.commit()
    database.close()
    return path


KERNELS = [
    "CREATE TABLE StringIds (id INTEGER, value TEXT)",
    "INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)')",
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,"
    " streamId INTEGER, correlationId INTEGER, globalPid INTEGER, shortName INTEGER)",
]


def kernel(start, end, *, device=0, pid=5, name=1, stream=7):
    values = (start, end, device, stream, start, pid << 24, name)
    return f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES {values}"


def test_kernels_collectives_and_tracks_of_one_process(tmp_path):
    path = make(
        tmp_path / "report_rank3.sqlite",
        [*KERNELS, kernel(10, 30), kernel(40, 100, name=2, stream=9), kernel(5, 8, name=2)],
    )
    assert list_ranks(path, rank=3) == [3]
    timeline = read_timeline(path)
    timeline.self_check()
    assert timeline.rank == 3 and timeline.num_events == 3
    assert timeline.start_ns_E.tolist() == [10, 40, 5]
    assert timeline.duration_ns_E.tolist() == [20, 60, 3]
    assert timeline.names[timeline.name_id_E[0]] == "gemm"
    assert timeline.collectives.event_C.tolist() == [2, 1]  # in the order they ran
    assert timeline.collectives.ops == ("all_reduce",)
    assert {(track.device, track.stream) for track in timeline.tracks} == {(0, 7), (0, 9)}


def test_processes_become_ranks_in_the_order_of_their_devices(tmp_path):
    path = make(
        tmp_path / "job.sqlite",
        [*KERNELS, kernel(1, 2, device=1, pid=5), kernel(3, 9, device=0, pid=6)],
    )
    assert list_ranks(path) == [0, 1]
    assert read_timeline(path, rank=0).duration_ns_E.tolist() == [6]
    assert read_timeline(path, rank=1).duration_ns_E.tolist() == [1]
    with pytest.raises(InputError, match="holds no rank 2"):
        read_timeline(path, rank=2)


def test_nvtx_ranges_of_operators_lose_their_numbers(tmp_path):
    path = make(
        tmp_path / "x.sqlite",
        [
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, globalTid INTEGER)",
            "INSERT INTO NVTX_EVENTS VALUES (1, 5, 'aten::add, seq = 3, op_id = 9', 1)",
            "INSERT INTO NVTX_EVENTS VALUES (6, 8, 'aten::add, op_id = 10', 1)",
            "INSERT INTO NVTX_EVENTS VALUES (9, 11, 'my range', 1), (12, NULL, 'open', 1)",
            "INSERT INTO NVTX_EVENTS VALUES (20, 15, 'backwards', 1)",
        ],
    )
    timeline = read_timeline(path)
    names = [timeline.names[number] for number in timeline.name_id_E]
    assert names == ["aten::add", "aten::add", "my range"]
    assert [timeline.categories[c] for c in timeline.category_id_E] == [
        "cpu_op",
        "cpu_op",
        "user_annotation",
    ]
    assert "1 rows that end before they start" in timeline.warnings[0].what


def test_an_mpi_rank_is_taken_from_its_thread_name(tmp_path):
    path = make(
        tmp_path / "x.sqlite",
        [
            *KERNELS,
            kernel(1, 2),
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, globalTid INTEGER)",
            "INSERT INTO NVTX_EVENTS VALUES (1, NULL, 'MPI Rank 6', 1)",
        ],
    )
    assert list_ranks(path) == [6]


def test_an_export_of_an_old_and_small_schema_is_read():
    timeline = read_timeline(DATA / "healthy_1pct.710487.sqlite")
    timeline.self_check()
    assert timeline.num_events == 800
    device = np.array([track.is_device for track in timeline.tracks])[timeline.track_id_E]
    assert int(device.sum()) == 400


@pytest.mark.skipif(not REAL, reason="the shared data is not there")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_real_exports_give_every_row_that_has_an_end(path):
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    wanted = 0
    for table in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME"):
        if f"CUPTI_ACTIVITY_KIND_{table}" in tables:
            query = f"SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_{table}"
            wanted += database.execute(query).fetchone()[0]
    for table in ("NVTX_EVENTS", "OSRT_API"):
        if table in tables:
            query = f"SELECT COUNT(*) FROM {table} WHERE end >= start"
            wanted += database.execute(query).fetchone()[0]
    database.close()
    timelines = [read_timeline(path, rank=rank) for rank in list_ranks(path)]
    for timeline in timelines:
        timeline.self_check()
    assert sum(timeline.num_events for timeline in timelines) == wanted


@pytest.mark.skipif(not REAL, reason="the shared data is not there")
def test_two_gpus_of_one_export_are_two_ranks_with_their_own_kernels():
    (path,) = [path for path in REAL if path.name.startswith("mfu_2gpu")]
    assert list_ranks(path) == [0, 1]
    for rank, kernels in ((0, 1993), (1, 2017)):
        timeline = read_timeline(path, rank=rank)
        kernel_id = timeline.categories.index("kernel")
        assert int((timeline.category_id_E == kernel_id).sum()) == kernels
        assert timeline.collectives.ops == ("send_recv",)
        assert len(timeline.collectives.event_C) == 33
        assert timeline.host == "modal" and timeline.base_ns == 1779782330176752435


def test_views_and_virtual_tables_are_not_run(tmp_path):
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"
    path = make(
        tmp_path / "x.sqlite",
        [
            "CREATE TABLE StringIds (id INTEGER, value TEXT)",
            f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless} x AS start, x AS end,"
            " 0 AS deviceId, 1 AS globalPid, 0 AS streamId FROM n",
        ],
    )
    assert is_nsys(path)
    with pytest.raises(InputError, match="holds no activity"):
        read_timeline(path)


def test_values_of_the_wrong_type_do_not_stop_it(tmp_path):
    path = make(
        tmp_path / "x.sqlite",
        [*KERNELS, kernel(1, 4), "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES"
         " ('a', x'00ff', 'x', NULL, 1e300, 'p', 'q')"],
    )  # fmt: skip
    timeline = read_timeline(path)
    timeline.self_check()
    assert 4 - 1 in timeline.duration_ns_E.tolist()


def test_what_is_no_export_is_refused(tmp_path):
    other = make(tmp_path / "x.sqlite", ["CREATE TABLE users (name TEXT)"])
    assert not is_nsys(other)
    garbage = tmp_path / "y.sqlite"
    garbage.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    assert not is_nsys(garbage)
    for path in (other, garbage, tmp_path / "none.sqlite"):
        with pytest.raises(InputError):
            read_timeline(path)


def test_reading_leaves_no_file_behind(tmp_path):
    path = make(tmp_path / "x.sqlite", [*KERNELS, kernel(1, 2)])
    before = path.read_bytes()
    path.chmod(0o444)
    read_timeline(path)
    assert [item.name for item in tmp_path.iterdir()] == ["x.sqlite"]
    assert path.read_bytes() == before


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_flipped_and_cut_exports_end_in_a_timeline_or_an_input_error(tmp_path, data):
    raw = bytearray((DATA / "healthy_1pct.710487.sqlite").read_bytes())
    for _ in range(data.draw(st.integers(0, 20))):
        raw[data.draw(st.integers(16, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "x.sqlite"
    path.write_bytes(raw[: data.draw(st.integers(100, len(raw)))])
    try:
        read_timeline(path).self_check()
    except InputError:
        return


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "send_recv"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgs)", "unknown"),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32(ncclSymkDevWorkArgs4K)", "all_reduce"),
        ("ncclSymDevKernel_AllGather_LL(x)", "all_gather"),
        ("void ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "all_reduce"),
        ("void cross_device_reduce_1stage<float, 2>(x)", "all_reduce"),
        ("my_ncclKernel_x", ""),
        ("ampere_sgemm_128x64_nn", ""),
    ],
)
def test_collectives_by_kernel_name(name, op):
    assert op_of_kernel(name) == op


def test_a_schema_that_is_no_text_is_a_damaged_export(tmp_path):
    path = make(tmp_path / "report_rank3.sqlite", [*KERNELS, kernel(10, 30)])
    path.write_bytes(path.read_bytes().replace(b"id INTEGER, value", b"id \xc6\xc6\xff(((( value"))
    assert not is_nsys(path)
    with pytest.raises(InputError, match="cannot be read as an Nsight Systems export"):
        list_ranks(path)
