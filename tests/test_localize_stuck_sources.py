"""All ranks at one line, in a collective with a source that they do not agree about."""

import ast

import pytest

from eroica.localize.source import Project
from eroica.localize.stuck import localize_stuck
from eroica.localize.stuck_sources import is_unordered
from eroica.records import (
    CollectiveEntry,
    FlightRecord,
    JobEvidence,
    Place,
    ProcessStacks,
    RankEvidence,
    ThreadStack,
)

SET = """
class Owners:
    def __init__(self):
        self.active = set()

    def send(self, name):
        dist.broadcast(self.weights[name], self.owner[name])  # call

    def step(self):
        for name in self.active:  # loop
            self.send(name)  # caller
"""
LIST = SET.replace("set()", "[]")


def diagnose(folder, text, last, op="broadcast"):
    """``last`` is each rank's newest sequence number; None for one without a recorder."""
    path = folder / "job.py"
    path.write_text(text)
    lines = {line.split("# ")[1]: n for n, line in enumerate(text.splitlines(), 1) if "# " in line}
    frames = (
        Place(name=op, file="/venv/site-packages/torch/distributed/distributed_c10d.py", line=1),
        Place(name="Owners.send", file=str(path), line=lines["call"]),
        Place(name="Owners.step", file=str(path), line=lines["caller"]),
    )
    ranks = []
    for rank, sequence in enumerate(last):
        flight = None
        if sequence is not None:
            entry = CollectiveEntry(
                record_id=sequence,
                op=op,
                backend="gloo",
                group="0",
                sequence=sequence,
                input_sizes=((8,),),
                input_dtypes=("Float",),
                frames=frames[1:],
            )
            flight = FlightRecord(rank=rank, version="2.10", groups={}, entries=(entry,))
        stack = ThreadStack(frames=frames, name="MainThread", is_main=True)
        stacks = (ProcessStacks(threads=(stack,)),)
        ranks.append(RankEvidence(rank=rank, stacks=stacks, flight=flight))
    evidence = JobEvidence(
        ranks=tuple(ranks),
        world_size=len(ranks),
        source_root=str(folder),
        symptom_hint="stuck",
    )
    return localize_stuck(evidence).causes, lines


@pytest.mark.parametrize("last", [(242, 241, 241), (None, None, None), (241, 241, 241)])
def test_a_broadcast_for_each_of_a_set_has_another_order_in_each_process(tmp_path, last):
    causes, lines = diagnose(tmp_path, SET, last)
    assert (causes[0].category, causes[0].ranks) == ("collective_order_mismatch", "all")
    assert [f.line for f in causes[0].functions][:2] == [lines["call"], lines["loop"]]
    assert "goes through `self.active`" in " ".join(causes[0].why)
    assert causes[0].confidence == 0.85


def test_ranks_a_broadcast_apart_at_one_line_differ_about_the_source(tmp_path):
    causes, _ = diagnose(tmp_path, LIST, (242, 241, 241))
    assert (causes[0].category, causes[0].ranks) == ("collective_order_mismatch", "all")
    assert causes[0].confidence == 0.6
    assert causes[0].against


def test_a_row_in_one_order_with_nobody_ahead_is_no_disagreement(tmp_path):
    causes, _ = diagnose(tmp_path, LIST, (241, 241, 241))
    assert all(cause.category != "collective_order_mismatch" for cause in causes)


def test_a_collective_without_a_source_is_not_judged_so(tmp_path):
    causes, _ = diagnose(tmp_path, SET, (242, 241, 241), op="all_reduce")
    assert all("source" not in " ".join(cause.why) for cause in causes)


@pytest.mark.parametrize(
    ("text", "unordered"),
    [
        ("names = {'a', 'b'}\nfor x in names: pass", True),
        ("names = [n for n in {'a', 'b'}]\nfor x in sorted(names): pass", False),
        ("names = set(a) | set(b)\nfor x in list(names): pass", True),
        ("import os\nfor x in os.listdir('.'): pass", True),
        ("names = set(a)\nnames = sorted(names)\nfor x in names: pass", False),
        ("names = {}\nfor x in names: pass", False),
    ],
)
def test_an_order_of_the_process_is_told_from_one_of_the_program(tmp_path, text, unordered):
    body = "def main():\n" + "\n".join(f"    {line}" for line in text.splitlines())
    (tmp_path / "job.py").write_text(body)
    project = Project(tmp_path)
    function = next(f for f in project.functions if f.name == "main")
    loop = next(node for node in ast.walk(function.node) if isinstance(node, ast.For))
    assert is_unordered(loop.iter, function) is unordered
