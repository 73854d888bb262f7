"""Comparisons that decide over ranks and confidence in stuck jobs, on either side of each edge."""

from pathlib import Path

import pytest

from eroica.localize.collectives import first_apart, histories
from eroica.localize.source import Project
from eroica.localize.stuck import _few
from eroica.localize.stuck_failed import deaths
from eroica.localize.stuck_suspect import Suspect
from eroica.localize.stuck_view import view, views
from eroica.records import (
    CollectiveEntry,
    FlightRecord,
    JobEvidence,
    Place,
    ProcessStacks,
    RankEvidence,
    RankExit,
)
from tests.test_localize_stuck import BACKWARD, Program, collective, localize, rank, stack

NOWHERE = Project(None)


def history(rank_number: int, *lines: int) -> FlightRecord:
    """A recorder whose calls come from these lines, numbered from 1."""
    entries = tuple(
        CollectiveEntry(
            record_id=number,
            op="all_reduce",
            group="0",
            sequence=number,
            frames=(Place(name="f", file="a.py", line=line),),
        )
        for number, line in enumerate(lines, 1)
    )
    return FlightRecord(rank=rank_number, version="2.10", groups={}, entries=entries)


def apart(*records: FlightRecord):
    known = histories({record.rank or 0: record for record in records})
    return first_apart(known, lambda e: e.frames[0].line, lambda a, b: False)


def test_histories_come_apart_after_the_last_call_they_have_in_common():
    found = apart(history(0, 3, 4, 5, 6), history(1, 3, 4, 9, 6))
    assert found is not None
    assert (found.before.sequence, found.sequence) == (2, 3)
    assert {r: e.frames[0].line for r, e in found.entries.items()} == {0: 5, 1: 9}


def test_histories_that_begin_apart_say_nothing_though_they_meet_later():
    """The ring has wrapped: which calls belong together is not known."""
    assert apart(history(0, 7, 4, 5), history(1, 3, 4, 9)) is None
    assert apart(history(0, 3, 4), history(1, 3, 4)) is None


def waits_under(folder: Path, test: str, waiter: int, *others: int):
    """One rank waits in a barrier under a condition, the others are past it."""
    text = f"def main(rank, ready):\n    if {test}:\n        dist.barrier()\n    loss.backward()\n"
    job = Program(folder, "import torch.distributed as dist\n" + text)
    odd = rank(waiter, stack(*collective("barrier"), job.at("dist.barrier", "main")))
    past = (*BACKWARD, job.at("loss.backward", "main"))
    return localize([odd, *(rank(r, stack(*past)) for r in others)], folder).causes[0]


def test_a_condition_that_also_lets_a_rank_in_that_passed_is_no_reason(tmp_path):
    assert waits_under(tmp_path, "rank == 1", 1, 0, 2).confidence == 0.97
    assert waits_under(tmp_path, "rank >= 1", 1, 0, 2).confidence == 0.5


def test_a_condition_is_proven_by_the_ranks_it_keeps_out_though_more_lets_one_in(tmp_path):
    assert waits_under(tmp_path, "rank == 1 and ready", 1, 0, 2).confidence == 0.97
    assert waits_under(tmp_path, "rank == team and ready", 1, 0, 2).confidence == 0.85


def two_threads(folder: Path, inside: int, world: int, *, beside: bool):
    """Some ranks have a thread that issues collectives, beside a training thread that does, or
    reads."""
    text = """
import time
import torch.distributed as dist

def beat():
    dist.barrier()

def main():
    dist.all_reduce(x)
    time.sleep(1)
"""
    job = Program(folder, text)
    trains = stack(*collective("all_reduce"), job.at("dist.all_reduce", "main"))
    sleeps = stack(job.at("time.sleep", "main"))
    other = stack(*collective("barrier"), job.at("dist.barrier", "beat"), name="beat", tid=2)
    ranks = [rank(r, trains if beside else sleeps, other) for r in range(inside)]
    ranks += [rank(r, trains) for r in range(inside, world)]
    causes = localize(ranks, folder).causes
    return next(c for c in causes if c.category == "collective_order_mismatch")


@pytest.mark.parametrize(
    ("inside", "world", "ranks"), [(2, 4, "all"), (1, 2, "all"), (1, 4, (0,)), (2, 5, (0, 1))]
)
def test_a_second_thread_on_half_of_the_ranks_is_everybodys(tmp_path, inside, world, ranks):
    assert two_threads(tmp_path, inside, world, beside=True).ranks == ranks


def test_two_threads_are_sure_where_both_are_seen_in_collectives(tmp_path):
    assert two_threads(tmp_path, 2, 4, beside=True).confidence == 0.92
    assert two_threads(tmp_path, 2, 4, beside=False).confidence == 0.6


def test_of_two_ends_the_one_that_is_told_of_comes_first():
    silent = RankEvidence(rank=0, exit=RankExit(exit_code=1, time_ns=5))
    told = RankEvidence(rank=1, exit=RankExit(exit_code=1, message="boom", time_ns=9))
    later = RankEvidence(rank=2, exit=RankExit(exit_code=1, message="bang", time_ns=10))
    evidence = JobEvidence(ranks=(silent, later, told), world_size=3)
    assert [d.rank for d in deaths(evidence, views(evidence, NOWHERE))] == [1, 2, 0]


@pytest.mark.parametrize(
    ("before", "now", "same_place", "moves"),
    [
        (True, True, True, True),
        (False, True, True, False),
        (True, False, True, False),
        (False, False, False, True),
    ],
)
def test_a_rank_moves_that_is_on_cpu_in_both_samples_or_elsewhere_in_the_second(
    before, now, same_place, moves
):
    here = Place(name="f", file="/home/u/a.py", line=1)
    there = here if same_place else Place(name="f", file="/home/u/a.py", line=2)
    samples = tuple(
        ProcessStacks(threads=(stack(place, active=active),))
        for place, active in ((here, before), (there, now))
    )
    assert view(RankEvidence(rank=0, stacks=samples), NOWHERE).is_moving is moves
    assert not view(RankEvidence(rank=0, stacks=samples[1:]), NOWHERE).is_moving


def suspect(confidence: float, *ranks: int, category: str = "blocked_io") -> Suspect:
    return Suspect(category, ranks, (), confidence, "summary")


def test_beside_a_sure_answer_only_what_is_at_least_even_odds_is_said():
    sure, even, odd = suspect(0.9, 0), suspect(0.5, 1), suspect(0.49, 2)
    assert _few([sure, even, odd]) == [sure, even]
    unsure = suspect(0.89, 0)
    assert _few([unsure, even, odd]) == [unsure, even, odd]


def test_the_same_ranks_in_the_same_family_are_said_once():
    first = suspect(0.8, 0, category="rank_conditional_collective")
    again = suspect(0.7, 0, category="collective_count_mismatch")
    ended = suspect(0.7, 0, category="rank_exited")
    other = suspect(0.7, 1, category="collective_count_mismatch")
    lock = suspect(0.7, 0, category="thread_lock_deadlock")
    assert _few([first, again, ended, other, lock]) == [first, other, lock]
