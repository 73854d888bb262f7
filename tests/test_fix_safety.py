"""The collectives gate: calls of libraries that share a name with the project's own are not it."""

import pytest

from eroica.fix.diff import file_edit
from eroica.fix.gates import MAX_LINES, check
from eroica.fix.matcher import NoMatch, apply_edits
from eroica.fix.patches import Edit

HEAD = """\
import json
import os

import numpy as np
import torch
import torch.distributed as dist


def save(model):
    dist.barrier()


class Trainer:
    def save(self):
        dist.barrier()

    def run(self, rank, model, trainer):
"""
BEFORE = HEAD + "        pass\n"


def gate(name, after, before=BEFORE):
    found = {one.name: one for one in check([file_edit("train.py", before, after)])}
    return found[name]


@pytest.mark.parametrize("owner", ["torch", "np", "os", "json", "torch.jit"])
def test_a_librarys_call_of_the_same_name_is_not_the_projects(owner):
    after = HEAD + f"        if rank == 0:\n            {owner}.save(model)\n"
    assert gate("collectives", after).passed


@pytest.mark.parametrize("call", ["save(model)", "self.save()", "trainer.save()"])
def test_a_call_that_leads_to_a_collective_on_some_ranks_is_refused(call):
    after = HEAD + f"        if rank == 0:\n            {call}\n"
    found = gate("collectives", after)
    assert not found.passed
    assert "rank == 0" in found.reason


@pytest.mark.parametrize("call", ["save(model)", "self.save()"])
def test_the_same_call_on_all_ranks_passes(call):
    assert gate("collectives", HEAD + f"        {call}\n").passed


def test_a_patch_has_at_most_so_many_lines_and_not_one_more():
    lines = [f"x{n} = {n}\n" for n in range(MAX_LINES)]
    assert gate("size", "".join(lines), "").passed
    assert not gate("size", "".join([*lines, "y = 1\n"]), "").passed
    assert gate("size", "", "".join(lines)).passed
    assert not gate("size", "", "".join([*lines, "y = 1\n"])).passed


ALIASED = """\
import torch as th
import torch.distributed as td
from torch import distributed as tdist
from torch.distributed import all_reduce, barrier as wait_for_all


def run(rank, x):
"""


@pytest.mark.parametrize(
    "call",
    [
        "td.barrier()",
        "tdist.all_reduce(x)",
        "th.distributed.broadcast(x, 0)",
        "all_reduce(x)",
        "wait_for_all()",
    ],
)
def test_a_collective_is_seen_under_any_name_it_was_imported_by(call):
    before = ALIASED + "    pass\n"
    found = gate("collectives", ALIASED + f"    if rank == 0:\n        {call}\n", before)
    assert not found.passed
    assert gate("collectives", ALIASED + f"    {call}\n", before).passed


@pytest.mark.parametrize(
    "line",
    [
        "y = dist.all_reduce(model) if rank == 0 else None",
        "rank == 0 and dist.barrier()",
        "y = [rank == 0 and dist.barrier()]",
        "match rank:\n            case 0:\n                dist.barrier()",
        "match model:\n            case _ if rank == 0:\n                dist.barrier()",
    ],
)
def test_a_collective_is_guarded_by_every_form_of_a_condition_on_the_rank(line):
    assert not gate("collectives", HEAD + f"        {line}\n").passed


@pytest.mark.parametrize(
    "line", ["y = 1 if dist.all_reduce(model) else 2", "dist.barrier() or rank == 0"]
)
def test_what_is_asked_first_is_reached_by_all(line):
    assert gate("collectives", HEAD + f"        {line}\n").passed


def test_a_file_that_the_patch_leaves_alone_is_read_where_its_calls_come_to_lead_to_a_collective():
    other = "from train import note\n\ndef go(rank):\n    if rank == 0:\n        note()\n"
    before = "import torch.distributed as dist\n\ndef note():\n    pass\n"
    after = before.replace("pass", "dist.barrier()")
    edits = [file_edit("train.py", before, after)]
    found = next(g for g in check(edits, sources={"main.py": other}) if g.name == "collectives")
    assert not found.passed
    assert found.reason.startswith("main.py:5 note() would depend on the rank")


@pytest.mark.parametrize("name", ["main", "forward"])
def test_names_that_every_project_has_lead_nowhere_by_themselves(name):
    other = f"import torch.distributed as dist\n\ndef {name}(x):\n    dist.barrier()\n"
    head = "def run(rank, net):\n"
    edits = [
        file_edit(
            "run.py", f"{head}    pass\n", f"{head}    if rank == 0:\n        net.{name}(1)\n"
        )
    ]
    found = next(g for g in check(edits, sources={"a.py": other}) if g.name == "collectives")
    assert found.passed


DEEP = "x = " + " + ".join(["1"] * 9000) + "\n"


def test_a_patch_that_is_nested_too_deeply_does_not_compile_and_nothing_breaks():
    gates = {one.name: one for one in check([file_edit("a.py", "x = 1\n", DEEP)])}
    assert not gates["compiles"].passed
    assert gates["names"].passed and gates["collectives"].passed


def test_a_function_of_an_answer_that_is_nested_too_deeply_has_no_place():
    edit = Edit("a.py", "function", text=f"def f():\n    {DEEP}")
    with pytest.raises(NoMatch, match="does not parse"):
        apply_edits("def f():\n    pass\n", [edit])
