"""Units of a sharded model: many tiny ones are a cause, few or large ones are not."""

import pytest

from eroica.localize import localize_slow
from tests.make_slow import FRAMES, Program, flight, job, samples, steps

SOURCE = """
import torch
from torch.distributed.fsdp import fully_shard


def shard(net):
    for layer in net.modules():
        fully_shard(layer)  # unit
    return fully_shard(net)  # root


def main():
    net = shard(build())  # shard
    for x in batches:
        net(x).backward()  # backward
        optimizer.step()  # step
"""
GATHER = "main:backward backward fsdp"


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setitem(
        FRAMES, "fsdp", ("FSDPParamGroup.unshard", "torch/distributed/fsdp/_fully_shard/_group.py")
    )
    return Program(tmp_path, SOURCE)


def diagnose(program, *, units, elements):
    calls = [("all_gather", GATHER, elements)] * units
    rows = [(120, 10, "main:backward backward engine"), (60, 60, "main:step optimizer")]
    ranks = [
        {
            "samples": samples(program, rows),
            "flight": flight(program, rank, calls),
            "steps": steps([50.0] * 20),
        }
        for rank in range(2)
    ]
    return localize_slow([], evidence=job(program, ranks))


def test_a_unit_a_layer_is_many_small_collectives_at_the_call_that_makes_the_units(program):
    verdict = diagnose(program, units=40, elements=150)
    cause = verdict.causes[0]
    assert (cause.category, cause.ranks) == ("excessive_small_collectives", "all")
    assert [(f.name, f.line) for f in cause.functions] == [
        ("shard", program.lines["unit"]),
        ("shard", program.lines["root"]),
    ]
    assert cause.share == pytest.approx(110 / 180 * (1 - 6 / 40), abs=0.01)


@pytest.mark.parametrize(("units", "elements"), [(9, 150), (40, 400_000)])
def test_few_or_large_units_are_no_cause(program, units, elements):
    assert not diagnose(program, units=units, elements=elements).causes
