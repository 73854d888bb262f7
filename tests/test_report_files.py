"""What leaves as a file: the Perfetto trace, bundles, comparisons."""

import gzip
import json
import stat
import tarfile
from dataclasses import replace

import msgspec
import pytest
from make_patterns import make_patterns

from eroica.errors import InputError
from eroica.incident import IncidentFolder
from eroica.records import Breakdown
from eroica.report import compare
from eroica.report.bundle import bundle, reveal
from eroica.report.material import load
from eroica.report.perfetto import chosen_ranks, write_perfetto
from eroica.summarize import read_parquet, write_parquet

OWN = ("json.loads", "dataset.py", "train_step", "train.py")


@pytest.fixture
def slow(saved_incident):
    """A slow incident with patterns, as traces leave one."""
    folder = saved_incident("slow")
    write_parquet(folder.patterns_path, make_patterns(8, (2,)))
    return folder


def trace_of(path):
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    return json.loads(data)["traceEvents"]


def kineto(rank, start_us):
    events = [
        {"ph": "X", "cat": "python_function", "name": "json.loads", "pid": 1, "tid": 1,
         "ts": start_us + 10, "dur": 90, "args": {"Python id": 1}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7,
         "ts": start_us + 20, "dur": 30, "args": {"stream": 7}},
    ]  # fmt: skip
    info = {"rank": rank, "world_size": 8, "backend": "nccl"}
    return {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}


def test_the_trace_holds_a_guilty_and_a_healthy_rank(slow, tmp_path):
    for rank in range(8):
        name = f"rank{rank}.pt.trace.json"
        (tmp_path / name).write_text(json.dumps(kineto(rank, 1000 + rank)))
    out = write_perfetto(slow, [tmp_path], tmp_path / "out.json")
    events = trace_of(out)
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"rank 2 (guilty)", "rank 0 (healthy)"} <= names
    assert {e["pid"] for e in events if e["ph"] == "X"} == {0, 2, 1_000_000}
    marked = [e for e in events if e.get("args", {}).get("eroica") == "C1"]
    assert {e["name"] for e in marked} == {"json.loads"}
    [cause] = [e for e in events if e.get("cat") == "cause"]
    assert cause["name"].startswith("C1 straggler_data_loading")
    assert set(cause["args"]) == {"confidence", "action", "F1", "F2"}
    assert min(e["ts"] for e in events if "ts" in e) == 0


def refused_by_perfetto(events):
    """What Perfetto's importer would drop or misread, by the rules of its public source.

    src/trace_processor/importers/json and importers/common/slice_tracker.cc: whole numbers as
    ids, microseconds as numbers, ``dur`` on every complete event, slices of a thread nest, thread
    0 is the idle one, metadata carries ``args``. It was not opened in Perfetto itself.
    """
    wrong, open_ends = [], {}
    for event in events:
        ids = [event["pid"], *([event["tid"]] if "tid" in event else [])]
        if not all(type(one) is int and 0 <= one < 2**32 for one in ids):
            wrong.append(("id", event))
        if not isinstance(event.get("name"), str) or event["ph"] not in ("X", "M"):
            wrong.append(("kind", event))
        if event["ph"] == "M":
            key = "sort_index" if event["name"].endswith("sort_index") else "name"
            if key not in event["args"] or "ts" in event:
                wrong.append(("metadata", event))
        elif not (event["ts"] >= 0 and event["dur"] >= 0 and event["tid"] > 0):
            wrong.append(("time", event))
    slices = [event for event in events if event["ph"] == "X"]
    for one in sorted(slices, key=lambda e: (e["pid"], e["tid"], e["ts"], -e["dur"])):
        ends = open_ends.setdefault((one["pid"], one["tid"]), [])
        begin = round(one["ts"] * 1e3)
        end = begin + round(one["dur"] * 1e3)
        while ends and ends[-1] <= begin:
            ends.pop()
        if ends and end > ends[-1]:
            wrong.append(("overlap", one))
        ends.append(end)
    return wrong


def test_perfetto_would_take_every_event(slow, saved_incident, tmp_path):
    for rank in range(8):
        trace = kineto(rank, 1000 + rank)
        first = trace["traceEvents"][0]
        trace["traceEvents"] += [
            first | {"name": f"crosses {n}", "ts": first["ts"] + 40.001 * n, "dur": 95.0005}
            for n in range(1, 4)
        ]
        (tmp_path / f"rank{rank}.pt.trace.json").write_text(json.dumps(trace))
    traced = trace_of(write_perfetto(slow, [tmp_path], tmp_path / "out.json"))
    drawn = [e["name"] for e in traced if e["ph"] == "X" and e["pid"] == 2]
    assert sorted(drawn) == ["crosses 1", "crosses 2", "crosses 3", "gemm", "json.loads"]
    assert refused_by_perfetto(traced) == []
    names = {(e["pid"], e["tid"]) for e in traced if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in traced if e["ph"] == "X"} <= names
    for folder in (slow, saved_incident("stuck")):
        assert refused_by_perfetto(trace_of(write_perfetto(folder, [], tmp_path / "a.json"))) == []


def test_the_rules_of_that_test_find_what_is_wrong():
    good = {"ph": "X", "pid": 1, "tid": 1, "ts": 0.0, "dur": 5.0, "name": "a"}
    assert refused_by_perfetto([good]) == []
    assert refused_by_perfetto([good, good | {"ts": 3.0}])[0][0] == "overlap"
    assert refused_by_perfetto([good | {"tid": 0}])[0][0] == "time"
    assert refused_by_perfetto([good | {"pid": "rank 1"}])[0][0] == "id"


def test_without_traces_steps_and_collectives_are_drawn(slow, saved_incident, tmp_path):
    events = trace_of(write_perfetto(slow, [], tmp_path / "a.json.gz"))
    assert {e["name"] for e in events if e["ph"] == "X" and e["pid"] == 2} == {
        f"dp|all_reduce|{n}" for n in range(40)
    }
    stuck = trace_of(write_perfetto(saved_incident("stuck"), [], tmp_path / "b.json"))
    steps = [e["name"] for e in stuck if e["ph"] == "X" and e["pid"] == 0]
    assert steps[0] == "step 1" and len(steps) == 20


def test_nothing_to_draw_is_an_input_error(saved_incident, tmp_path):
    with pytest.raises(InputError, match="no times to draw"):
        write_perfetto(saved_incident("hardware"), [], tmp_path / "x.json")


def test_a_cause_on_all_ranks_has_no_healthy_rank(slow):
    incident = slow.read_incident()
    cause = msgspec.structs.replace(incident.causes[0], ranks="all")
    assert chosen_ranks(msgspec.structs.replace(incident, causes=(cause,))) == {0: "any"}


def test_an_answer_to_a_bundle_gets_the_owners_names_back(slow):
    bundle(slow)
    names = json.loads((slow.path / "pseudonyms.json").read_bytes())
    token, real = next((token, real) for token, real in names.items() if token[:4] == "node")
    assert reveal(slow, f"drain {token}.") == f"drain {real}."
    answered = reveal(slow, json.dumps({"hosts": [token], token: 'a "quoted" one'}))
    assert json.loads(answered) == {"hosts": [real], real: 'a "quoted" one'}
    assert reveal(slow, "17") == "17"


def test_where_nothing_was_replaced_there_is_nothing_to_reveal(slow):
    with pytest.raises(InputError, match="no names to put back"):
        reveal(slow, "node-1")


def test_control_characters_do_not_reach_the_trace(slow, tmp_path):
    incident = slow.read_incident()
    slow.write_incident(msgspec.structs.replace(incident, headline="a\x1b[2Jb"))
    assert b"\\u001b" not in write_perfetto(slow, [], tmp_path / "a.json").read_bytes()


# --- bundles --------------------------------------------------------------------------------


def unpacked(path, tmp_path):
    with tarfile.open(path) as archive:
        assert all(m.isfile() and m.uname == "" and m.mtime == 0 for m in archive.getmembers())
        archive.extractall(tmp_path / "got", filter="data")
    [folder] = (tmp_path / "got").iterdir()
    return IncidentFolder(folder)


def everything(folder):
    return b"".join(p.read_bytes() for p in folder.path.rglob("*") if p.is_file())


def test_a_bundle_is_an_incident_without_names(saved_incident, tmp_path):
    folder = saved_incident("stuck")
    folder.transcript_path.write_text("{}")
    got = unpacked(bundle(folder), tmp_path)
    assert got.read_incident().causes[0].category == "rank_conditional_collective"
    assert got.read_evidence().ranks[0].host == "node-1"
    assert got.read_patches()[0].id == "P1" and got.read_decisions()[0].by == "user-1"
    for name in (b"gpu-003", b"/home/ada", b'"ada"'):
        assert name not in everything(got)
    assert not (got.path / "model.jsonl").exists()
    assert not (got.path / "pseudonyms.json").exists()


def test_shared_patterns_hold_numbers_and_no_names_or_source(slow, tmp_path):
    got = unpacked(bundle(slow, share="patterns"), tmp_path)
    names = sorted(path.name for path in got.path.iterdir())
    assert names == ["bundle.json", "incident.json", "patterns.parquet"]
    patterns = read_parquet(got.patterns_path)
    seen = json.dumps(
        [[f.name, f.file, f.id, f.group] for one in patterns for f in one.functions]
        + [[one.host, one.source, one.proxy] for one in patterns]
        + [list(one.arrivals.key_C) for one in patterns]
    )
    for name in (*OWN, "gpu-000", "dp|", '"dp"', '"d1"', '"c1"'):
        assert name not in seen
        assert name.encode() not in (got.path / "incident.json").read_bytes()
    before = {one.rank: one for one in load(slow).patterns}
    for one in patterns:
        assert one.beta_F.tolist() == before[one.rank].beta_F.tolist()
        assert one.arrivals.end_ns_C.tolist() == before[one.rank].arrivals.end_ns_C.tolist()


def test_the_same_function_keeps_its_id_over_ranks_and_bundles(slow, tmp_path):
    first = read_parquet(unpacked(bundle(slow, share="patterns"), tmp_path / "a").patterns_path)
    again = read_parquet(unpacked(bundle(slow, share="patterns"), tmp_path / "b").patterns_path)
    ids = {tuple(f.id for f in one.functions) for one in (*first, *again)}
    assert len(ids) == 1


def test_the_owner_turns_the_providers_answer_back(slow, tmp_path):
    got = unpacked(bundle(slow, share="patterns"), tmp_path)
    [function] = [
        f for f in read_parquet(got.patterns_path)[0].functions if "file-" in str(f.file)
    ][:1]
    said = f"rank 2 is slow in {function.name} at {function.file}"
    assert reveal(slow, said) == "rank 2 is slow in json.loads at dataset.py"
    key = slow.path / "pseudonyms.json"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((slow.path / "bundle.key").stat().st_mode) == 0o600


def test_an_incident_without_patterns_cannot_share_them(saved_incident):
    with pytest.raises(InputError, match="--share all"):
        bundle(saved_incident("stuck"), share="patterns")


def test_an_unknown_level_is_an_input_error(saved_incident):
    with pytest.raises(InputError, match="all or patterns"):
        bundle(saved_incident("stuck"), share="some")


# --- comparisons ----------------------------------------------------------------------------


def test_a_cured_job_shows_what_went(saved_incident, golden):
    slow, healthy = saved_incident("slow"), saved_incident("healthy")
    text = compare.compare(slow, healthy)
    assert "Gone:" in text and "New:" not in text
    golden("golden_reports/compare.md", text)


def test_the_change_of_each_function_is_shown(slow):
    before = load(slow)
    after = replace(before, patterns=make_patterns(8, ()))
    text = compare.compare_documents(before, after)
    [table] = [b for s in text.sections if s.id == "functions" for b in s.blocks]
    assert table.rows[0][0] in ("json.loads", "all_reduce")
    assert table.rows[0][3].endswith("points")


def test_an_edit_above_does_not_make_another_trouble(saved_incident):
    incident = saved_incident("stuck").read_incident()
    place = msgspec.structs.replace(incident.causes[0].functions[0], line=99)
    cause = msgspec.structs.replace(incident.causes[0], functions=(place,))
    moved = msgspec.structs.replace(incident, causes=(cause,))
    assert compare.fingerprint(moved) == compare.fingerprint(incident)


def test_repeated_incidents_are_one_group(saved_incident, tmp_path):
    folders = []
    for n, name in enumerate(("stuck", "slow", "stuck2", "stuck3")):
        source = saved_incident("slow" if name == "slow" else "stuck") if n < 2 else folders[0]
        folder = IncidentFolder(tmp_path / f"2026-{n}")
        folder.write_incident(source.read_incident())
        folders.append(folder)
    groups = compare.group(folders)
    assert [len(group.folders) for group in groups] == [1, 3]
    assert groups[1].text == "seen 3 times since 2026-11-29T03:12:39Z"
    assert groups[0].text == ""


def test_two_incidents_without_causes_compare(saved_incident):
    folder = saved_incident("healthy")
    incident = msgspec.structs.replace(
        folder.read_incident(), breakdown=(Breakdown(rank=0, compute=1.0),)
    )
    material = replace(load(folder), incident=incident)
    made = compare.compare_documents(material, material)
    assert made.title == "a step takes as long as before"
