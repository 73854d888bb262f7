"""The collectives gate: calls of libraries that share a name with the project's own are not it."""

import pytest

from eroica.fix.diff import file_edit
from eroica.fix.gates import MAX_LINES, check

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
