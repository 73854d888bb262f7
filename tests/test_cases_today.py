"""The rules by which today's tools are judged, on outputs written by hand."""

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CASE = {
    "world_size": 3,
    "expected_category": "rank_conditional_collective",
    "guilty_ranks": [1],
    "guilty_file_line": {"file": "train.py", "function": "save", "line": 10},
}


@pytest.fixture
def today(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("today")
    for name in ("today", "cases", "judging"):
        sys.modules.pop(name, None)


def frame(name, line, file="/jobs/a/train.py"):
    return {"file": file, "name": name, "line": line}


def test_py_spy_is_right_where_the_place_is_on_the_guilty_ranks_stack_and_on_no_other(today):
    waits = [frame("all_reduce", 900, "/torch/distributed_c10d.py"), frame("main", 40)]
    stacks = {0: waits, 1: [frame("save", 11), frame("main", 40)], 2: waits}
    assert today.by_stacks(stacks, CASE)
    assert not today.by_stacks(stacks | {2: [frame("save", 12)]}, CASE)
    assert not today.by_stacks(stacks | {1: waits}, CASE)


def test_of_a_py_spy_dump_the_main_thread_counts(today):
    threads = [
        {"thread_name": "saver", "frames": [{"filename": "x.py", "name": "g", "line": 2}]},
        {"thread_name": "MainThread", "frames": [{"filename": "t.py", "name": "f", "line": 1}]},
    ]
    assert today.frames_of(json.dumps(threads)) == [frame("f", 1, "t.py")]
    assert today.frames_of("[]") == []


def test_detail_names_the_rank_with_another_collective_than_most(today):
    said = "Rank {} is running collective: CollectiveFingerPrint(SequenceNumber=4, OpType={})\n"
    text = "".join(
        said.format(r, op) for r, op in ((0, "ALLREDUCE"), (1, "BARRIER"), (2, "ALLREDUCE"))
    )
    assert today.odd_ranks(text) == {1}
    assert today.odd_ranks("step 1 loss 2\n") is None
    two = said.format(0, "ALLREDUCE") + said.format(1, "BARRIER")
    assert today.odd_ranks(two) == {0, 1}


def test_ranks_that_are_named_have_to_be_those_of_a_reading(today):
    assert today.fits({1}, CASE)
    assert not today.fits({0, 1}, CASE)
    assert not today.fits(set(), CASE)
    assert not today.fits({0, 1, 2}, CASE | {"guilty_ranks": "all"})


def test_the_table_counts_by_tool_and_says_which_is_not_there(today):
    rows = [{"id": "a", "symptom": "stuck", "py-spy": {"right": True, "said": "stacks of 3 ranks"}}]
    text = today.table(rows, {"a": True})
    assert "| py-spy | stuck | 1 | 1 |" in text
    assert "| HTA | slow, some ranks | 0 | not there |" in text
    assert "| eroica | stuck | 1 | 1 |" in text
    assert "| a |  |  | **right**: stacks of 3 ranks |  |" in text
