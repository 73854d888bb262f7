"""A thread pool whose tasks wait for tasks of the same pool."""

from pathlib import Path

import pytest

from eroica.localize.stuck import localize_stuck
from eroica.records import JobEvidence, Place, ProcessStacks, RankEvidence, ThreadStack

STD = "/usr/lib/python3.11"
FUTURE = (
    Place(name="Condition.wait", file=f"{STD}/threading.py", line=1),
    Place(name="Future.result", file=f"{STD}/concurrent/futures/_base.py", line=1),
)
FUTURE_WORKER = (Place(name="_worker", file=f"{STD}/concurrent/futures/thread.py", line=1),)
POOL = (
    Place(name="Event.wait", file=f"{STD}/threading.py", line=1),
    Place(name="ApplyResult.wait", file=f"{STD}/multiprocessing/pool.py", line=1),
    Place(name="ApplyResult.get", file=f"{STD}/multiprocessing/pool.py", line=1),
)
POOL_WORKER = (Place(name="worker", file=f"{STD}/multiprocessing/pool.py", line=1),)
BACKWARD = (Place(name="_engine_run_backward", file="/lib/site-packages/torch/autograd/graph.py"),)
TEXT = """
def part(i): ...
def document(d):
    return [f.result() for f in [POOL.submit(part, i) for i in range(3)]]
def main():
    POOL.submit(document, 1).result()
    loss.backward()
"""


def diagnose(folder: Path, wait, worker, *, idle: bool):
    (folder / "job.py").write_text(TEXT)
    file = str(folder / "job.py")
    inner = Place(name="document", file=file, line=4)
    outer = Place(name="main", file=file, line=6)
    threads = [
        ThreadStack(frames=(*wait, outer), name="MainThread", is_main=True),
        ThreadStack(frames=(*wait, inner, *worker), name="pool-0"),
        ThreadStack(frames=worker if idle else (*wait, inner, *worker), name="pool-1"),
    ]
    peer = ThreadStack(
        frames=(*BACKWARD, Place(name="main", file=file, line=7)), name="MainThread", is_main=True
    )
    ranks = (
        RankEvidence(rank=0, stacks=(ProcessStacks(threads=(peer,)),)),
        RankEvidence(rank=1, stacks=(ProcessStacks(threads=tuple(threads)),)),
    )
    evidence = JobEvidence(ranks=ranks, world_size=2, source_root=str(folder), symptom_hint="stuck")
    return localize_stuck(evidence).causes


@pytest.mark.parametrize(
    ("wait", "worker"),
    [(FUTURE, FUTURE_WORKER), (POOL, POOL_WORKER)],
    ids=["futures", "ThreadPool"],
)
def test_a_pool_full_of_tasks_that_wait_for_the_pool_is_a_deadlock(tmp_path, wait, worker):
    (cause,) = diagnose(tmp_path, wait, worker, idle=False)
    assert (cause.category, cause.ranks) == ("thread_lock_deadlock", (1,))
    assert [(f.name, f.line) for f in cause.functions] == [("document", 4), ("main", 6)]
    assert "thread pool whose threads all wait" in cause.summary


def test_a_pool_with_an_idle_thread_is_not_full(tmp_path):
    causes = diagnose(tmp_path, FUTURE, FUTURE_WORKER, idle=True)
    assert not [c for c in causes if "threads all wait" in c.summary]


SCORER = """
def score(words, future):
    try:
        future.set_result(sum(TABLE[w] for w in words))
    except KeyError:
        {handler}
def main():
    submit(score, words).result()
    loss.backward()
"""


def result_of(folder: Path, handler: str):
    (folder / "job.py").write_text(SCORER.format(handler=handler))
    file = str(folder / "job.py")
    waits = ThreadStack(
        frames=(*FUTURE, Place(name="main", file=file, line=8)), name="MainThread", is_main=True
    )
    peer = ThreadStack(
        frames=(*BACKWARD, Place(name="main", file=file, line=9)), name="MainThread", is_main=True
    )
    stacks = [
        RankEvidence(rank=r, stacks=(ProcessStacks(threads=(t,)),))
        for r, t in enumerate((peer, waits))
    ]
    evidence = JobEvidence(
        ranks=tuple(stacks), world_size=2, source_root=str(folder), symptom_hint="stuck"
    )
    return localize_stuck(evidence).causes[0]


def test_a_result_that_a_swallowed_error_kept_from_coming_is_placed_at_the_handler(tmp_path):
    cause = result_of(tmp_path, "pass")
    assert (cause.category, cause.ranks) == ("exception_swallowed", (1,))
    assert [(f.name, f.line) for f in cause.functions] == [("score", 6), ("main", 8)]


def test_a_handler_that_passes_the_error_on_is_not_blamed(tmp_path):
    assert result_of(tmp_path, "future.set_exception(error)").category == "thread_lock_deadlock"
