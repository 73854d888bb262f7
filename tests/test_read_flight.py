"""Flight Recorder dumps: every version, gloo's ways, damage, and pickles that want to run code."""

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.read.flight import parse_flight, read_flight
from eroica.read.flight_groups import fill_groups
from eroica.read.names import host_of, rank_of
from eroica.read.unpickle import RefusedPickle, load_plain
from eroica.records import Place

DATA = Path(__file__).parent / "data" / "read"
FRAMES = [{"name": "step", "filename": "/srv/job/train.py", "line": 12}]


def entry(**changed):
    """An entry as torch 2.9 and later write it."""
    plain = {
        "record_id": 7,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 3,
        "p2p_seq_id": 0,
        "op_id": 4,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_001,
        "duration_ms": 1.5,
        "input_sizes": [[4, 5]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 5]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 1_700_000_000_100_000_001,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
        "frames": FRAMES,
        "thread_id": "1",
        "thread_name": "pt_main",
    }
    return {**plain, **changed}


def without(item, *keys):
    return {key: value for key, value in item.items() if key not in keys}


def dump(entries, version="2.10", **top):
    return pickle.dumps({"version": version, "entries": entries, **top}, protocol=2)


# --- versions ---------------------------------------------------------------------------------


def test_every_field_of_a_new_entry_is_read():
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    status = {"0": {"last_enqueued_collective": 3, "last_started_collective": -1}}
    record = parse_flight(dump([entry()], pg_config=config, pg_status=status), rank=1)
    (one,) = record.entries
    assert (record.rank, record.version, record.groups) == (1, "2.10", {"0": (0, 1)})
    assert record.status == {"0": {"last_enqueued": 3, "last_started": -1}}
    assert (one.op, one.backend, one.sequence, one.group) == ("all_reduce", "nccl", 3, "0")
    assert one.created_ns == 1_700_000_000_000_000_001
    assert one.completed_ns == 1_700_000_000_100_000_001
    assert one.duration_ns == 1_500_000 and one.timeout_ms == 600000
    assert one.frames == (Place(name="step", file="/srv/job/train.py", line=12),)
    assert one.input_sizes == ((4, 5),) and one.input_dtypes == ("Float",)


def test_torch_2_2_is_a_bare_list_with_microseconds():
    old = {
        "seq_id": 9,
        "profiling_name": "nccl:broadcast",
        "time_created_us": 1_700_000_000_000_000,
        "input_sizes": [[2]],
        "output_sizes": [[2]],
        "state": "started",
        "frames": FRAMES,
    }
    record = parse_flight(pickle.dumps([old, old], protocol=2), rank=0)
    assert record.version == "" and len(record.entries) == 2
    assert record.entries[1].sequence == 9 and record.entries[1].record_id == 1
    assert record.entries[0].created_ns == 1_700_000_000_000_000_000


def test_version_1_4_has_seq_id_and_no_process_group():
    old = without(
        entry(seq_id=5, pg_id=2), "collective_seq_id", "process_group", "input_dtypes", "is_p2p"
    )
    config = {"2": {"name": "2", "desc": "tp", "ranks": [0, 3]}}
    record = parse_flight(dump([old], "1.4", pg_config=config))
    assert record.entries[0].sequence == 5 and record.entries[0].group == "2"
    assert record.groups == {"2": (0, 3)} and record.group_descriptions == {"2": "tp"}
    assert record.entries[0].input_dtypes == ()


@pytest.mark.parametrize("version", ["2.1", "2.4", "2.9", "2.10"])
def test_later_versions_give_the_same_record(version):
    record = parse_flight(dump([entry()], version))
    assert record.version == version and record.entries[0].sequence == 3


def test_send_and_recv_tell_their_ends():
    send = entry(profiling_name="nccl:send 0->1", is_p2p=True)
    recv = entry(profiling_name="nccl:recv 3<-0", is_p2p=True)
    first, second = parse_flight(dump([send, recv])).entries
    assert (first.source_rank, first.destination_rank, first.is_p2p) == (0, 1, True)
    assert (second.source_rank, second.destination_rank, second.op) == (0, 3, "recv 3<-0")


def test_json_with_text_status_and_zero_times_equals_the_pickle():
    from_json = read_flight(DATA / "_dump_fr_trace_json_rank1.json")
    from_pickle = read_flight(DATA / "_dump_fr_trace_rank1.pickle")
    assert from_json.rank == from_pickle.rank == 1
    assert from_json.status == from_pickle.status and from_json.groups == from_pickle.groups
    assert len(from_json.entries) == len(from_pickle.entries) == 11
    assert all(not one.frames and one.started_ns is None for one in from_json.entries)
    keys = [(e.op, e.sequence, e.is_retired, e.created_ns) for e in from_json.entries]
    assert keys == [(e.op, e.sequence, e.is_retired, e.created_ns) for e in from_pickle.entries]


def test_gloo_group_with_an_empty_key_gets_its_name_and_retired_is_kept():
    record = read_flight(DATA / "_dump_fr_trace_rank0.pickle")
    assert record.groups == {"0": (0, 1, 2, 3)}
    assert record.group_descriptions["0"] == "default_pg"
    assert {entry.state for entry in record.entries} == {"scheduled"}
    assert [entry.is_retired for entry in record.entries] == [True] * 10 + [False]
    assert record.entries[-1].op == "barrier" and not record.only_active


def test_two_nameless_gloo_groups_are_not_confused():
    entries = [entry(process_group=("0", "default_pg")), entry(process_group=("1", "pair"))]
    config = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
    record = parse_flight(dump(entries, pg_config=config))
    assert record.groups == {"": (0, 1)}


def test_groups_of_gloo_without_ranks_are_filled_from_all_dumps():
    """As torch 2.13 writes it with more than one gloo group."""
    config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    default = entry(profiling_name="gloo:all_reduce")
    pair = entry(process_group=("2", "undefined"), pg_id=1)
    records = {
        rank: parse_flight(dump(entries, pg_config=config), rank=rank)
        for rank, entries in enumerate([[default], [default, pair], [default, pair]])
    }
    assert records[1].groups == {} and records[1].entries[1].group_id == "1"
    filled = fill_groups(records, 4)
    assert filled[0].groups == {"0": (0, 1, 2, 3)}
    assert filled[2].groups == {"0": (0, 1, 2, 3), "2": (1, 2)}
    assert fill_groups(records, 4, {"2": (1, 2, 3)})[1].groups["2"] == (1, 2, 3)


def test_a_rank_that_holds_its_gil_has_no_entries_but_its_status():
    record = read_flight(DATA / "nccl_lock_gil_dump_9")
    assert record.rank == 9 and record.entries == () and record.only_active
    assert record.status["5"]["last_enqueued"] == 88683
    assert record.groups["37"] == (8, 9, 10, 11)
    assert read_flight(DATA / "nccl_lock_gil_dump_10").only_active


# --- ranks and hosts by name ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("_dump_3", 3),
        ("fr_trace_2", 2),
        ("_dump_fr_trace_json_rank3.json", 3),
        ("nccl_trace_rank_7", 7),
        ("nccl_trace_rank_container-node02_5", 5),
        ("rank-00012.pickle.gz", 12),
        ("local_rank1_dump_9", 9),
        ("dump.pickle", None),
    ],
)
def test_rank_comes_from_the_name(name, rank):
    assert rank_of(Path("job") / name, trailing=True) == rank


def test_only_a_folder_that_is_a_rank_counts_as_one():
    assert rank_of(Path("rank3/stderr.log")) == 3
    assert rank_of(Path("evidence/rank-00003/stacks.json")) == 3
    assert rank_of(Path("stuck_in_rank3/stdout.log")) is None


def test_host_comes_from_the_name():
    assert host_of(Path("nccl_trace_rank_container-node02_5")) == "container-node02"
    assert host_of(Path("host-n7/rank3/x")) == "n7"
    assert host_of(Path("_dump_3")) == ""


def test_a_rank_that_is_asked_for_wins():
    assert read_flight(DATA / "nccl_lock_gil_dump_9", rank=4).rank == 4


# --- damage -----------------------------------------------------------------------------------


def test_a_cut_off_pickle_gives_its_whole_entries_and_says_where_it_ends():
    record = read_flight(DATA / "30_fr_truncated_pickle_0")
    assert [entry.sequence for entry in record.entries] == list(range(1, 9))
    assert "ends early at byte 4757 of 4828" in record.warnings[0].what
    assert record.warnings[1].what == "1 of 9 entries are incomplete and dropped"


def test_every_cut_of_a_pickle_gives_a_prefix_or_a_clear_error():
    data = (DATA / "_dump_fr_trace_rank0.pickle").read_bytes()
    whole = parse_flight(data).entries
    for end in range(0, len(data), 37):
        try:
            part = parse_flight(data[:end])
        except InputError as error:
            assert error.found or not end
            continue
        assert part.entries == whole[: len(part.entries)]
        assert part.warnings


def test_cut_off_json_gives_a_prefix(tmp_path):
    data = (DATA / "_dump_fr_trace_json_rank1.json").read_bytes()
    record = parse_flight(data[: len(data) // 2])
    assert 0 < len(record.entries) < 11 and "broken at byte" in record.warnings[0].what


def test_two_dumps_in_one_file_give_the_first_and_a_warning():
    one = dump([entry()])
    record = parse_flight(one + dump([entry(), entry()]))
    assert len(record.entries) == 1
    assert f"at byte {len(one)}" in record.warnings[0].what


def test_empty_lfs_and_foreign_files_are_refused_in_words(tmp_path):
    for content, words in [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (pickle.dumps({"loss": 1.0}, protocol=2), "no Flight Recorder dump"),
        (b'{"a": 1}', "no Flight Recorder dump"),
    ]:
        path = tmp_path / "x_0"
        path.write_bytes(content)
        with pytest.raises(InputError, match=words):
            read_flight(path)


# --- hostile ----------------------------------------------------------------------------------


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil_was_run",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_is_refused_by_name_and_not_run(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps({"version": "2.10", "entries": [Evil()]}, protocol=protocol)
    if protocol < 2:  # text opcodes are no part of a dump at all
        with pytest.raises(InputError):
            parse_flight(data)
    else:
        with pytest.raises(RefusedPickle, match="mkdir"):
            parse_flight(data)
    assert not list(tmp_path.iterdir())


def test_the_file_that_reads_the_environment_is_refused():
    with pytest.raises(RefusedPickle, match=r"os\.getenv"):
        read_flight(DATA / "31_fr_pickle_with_reduce_0")


@pytest.mark.parametrize(
    "body",
    [
        b"](" * 100_000 + b"e" * 100_000 + b".",  # lists in lists
        b")" + b"\x85" * 300_000 + b".",  # tuples in tuples
        b"}" + b")" + b"\x85" * 300_000 + b"Ns.",  # ... as a key, which must not be hashed
        b"]r\xff\xff\xff\xff.",  # a memo entry of four billion
        b"X\xff\xff\xff\x7fab.",  # a string of two gigabytes
        b"\x8b\xff\xff\xff\x7f.",
        b"]q\x00h\x00a.",  # a list that holds itself
        b"h\x05.",
        b"u.",
        b".",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    ],
)
def test_hostile_pickles_end_quickly_in_a_clear_error(body):
    with pytest.raises(InputError):
        parse_flight(b"\x80\x02" + body)


def test_references_to_one_big_list_do_not_grow_it():
    """A list of frames used by every entry must not be copied as often as it is named."""
    frames = b"](" + b"}" * 100_000 + b"e"
    plain = b"}(" + b"X\x0e\x00\x00\x00profiling_nameX\x01\x00\x00\x00a"
    plain += b"X\x05\x00\x00\x00stateX\x01\x00\x00\x00s" + b"X\x06\x00\x00\x00framesh\x00u"
    body = b"}(X\x07\x00\x00\x00entries](" + frames + b"q\x000" + plain * 1500 + b"eu."
    record = parse_flight(b"\x80\x02" + body)
    assert len(record.entries) == 1500 and len(record.entries[0].frames) == 512


plain_data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.tuples(inner, inner)
        | st.tuples(inner)
    ),
    max_leaves=30,
)


@given(plain_data, st.sampled_from([2, 3, 4, 5]))
def test_plain_data_comes_out_as_it_went_in(value, protocol):
    loaded = load_plain(pickle.dumps(value, protocol=protocol))
    assert loaded.value == value and not loaded.defect


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_flipped_bytes_end_in_a_record_or_an_input_error(data):
    name = data.draw(st.sampled_from(["_dump_fr_trace_rank0.pickle", "nccl_lock_gil_dump_10",
                                      "_dump_fr_trace_json_rank1.json"]))  # fmt: skip
    raw = bytearray((DATA / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        record = parse_flight(bytes(raw))
    except InputError:
        return
    assert all(isinstance(one.op, str) for one in record.entries)


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_record_or_an_input_error(raw):
    for prefix in (b"", b"\x80\x02", b"\x80\x02}(", b"{", b"["):
        try:
            parse_flight(prefix + raw)
        except InputError:
            continue


def test_a_dump_that_begins_late_with_nothing_done_holds_unfinished_calls_only():
    waiting = {"state": "scheduled", "retired": False}
    late, whole = (parse_flight(dump([entry(**waiting, record_id=n)])) for n in (7, 0))
    assert late.only_active and not whole.only_active
    done = [entry(record_id=7, state="completed", retired=True), entry(**waiting, record_id=8)]
    assert not parse_flight(dump(done)).only_active
