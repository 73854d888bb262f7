"""Why some ranks passed a collective: each kind of reason on a small program of its own.

A program marks its places with comments: ``# W`` where most or some ranks wait, ``# S`` where
the others are, ``# W1``/``# S1`` for the frames above. Backward passes and collectives alike.
"""

import re
from pathlib import Path

import pytest

from eroica.localize.stuck import localize_stuck
from eroica.records import Cause, JobEvidence, Place, ProcessStacks, RankEvidence, ThreadStack

LIB = "/opt/venv/lib/python3.11/site-packages/torch"


def library(op: str) -> tuple[Place, ...]:
    if op == "backward":
        return (
            Place(name="_engine_run_backward", file=f"{LIB}/autograd/graph.py", line=979),
            Place(name="Tensor.backward", file=f"{LIB}/_tensor.py", line=623),
        )
    return (Place(name=op, file=f"{LIB}/distributed/distributed_c10d.py", line=10),)


def frames(folder: Path, text: str, mark: str) -> tuple[Place, ...]:
    """The user frames of a mark, innermost first: ``W``, then ``W1``, ``W2`` ..."""
    found = []
    lines = text.splitlines()
    for label in (mark, f"{mark}1", f"{mark}2"):
        for number, line in enumerate(lines, 1):
            if re.search(rf"#.*\b{label}\b", line):
                indent = len(line) - len(line.lstrip())
                name = next(
                    m[2]
                    for above in reversed(lines[: number - 1])
                    if (m := re.match(r"(\s*)def (\w+)", above)) and len(m[1]) < indent
                )
                found.append(Place(name=name, file=str(folder / "job.py"), line=number))
    return tuple(found)


def first_cause(
    folder: Path, text: str, waiting: tuple[int, ...], others: tuple[int, ...], *ops: str
) -> Cause:
    (folder / "job.py").write_text(text)
    ranks = []
    for numbers, mark, op in ((waiting, "W", ops[0]), (others, "S", ops[1])):
        stack = ThreadStack(
            frames=(*library(op), *frames(folder, text, mark)), name="MainThread", is_main=True
        )
        ranks += [RankEvidence(rank=n, stacks=(ProcessStacks(threads=(stack,)),)) for n in numbers]
    evidence = JobEvidence(
        ranks=tuple(ranks), world_size=len(ranks), source_root=str(folder), symptom_hint="stuck"
    )
    return localize_stuck(evidence).causes[0]


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


HOOKS = """
import torch.distributed as dist

class Saver:
    def on_step(self):
        dist.barrier()  # W

class Loop:
    def __init__(self):
        self.hooks = [Clock()]
        if dist.get_rank() == 0:
            self.hooks.append(Saver())

    def fit(self):
        for step in range(100):
            loss.backward()  # S
            for hook in self.hooks:
                hook.on_step()  # W1
"""

DISPATCH = """
import torch.distributed as dist

class Real:
    def log(self, value):
        dist.all_reduce(value)  # W

class Null:
    def log(self, value):
        pass

def make():
    return Real() if dist.get_rank() == 0 else Null()

def main():
    logger = make()
    for step in range(100):
        loss.backward()  # S
        logger.log(loss)  # W1
"""

FINALLY = """
import torch.distributed as dist

def main(loader):
    try:
        for batch in loader:
            loss = model(parse(batch))
            loss.backward()  # W
    finally:
        dist.barrier()  # S
"""

HANDLER = """
import torch.distributed as dist

def main(loader):
    try:
        for batch in loader:
            loss.backward()  # W
    except Exception as error:
        save_on_error(error)  # S1

def save_on_error(error):
    dist.broadcast(state, 0)  # S
"""

ITERATOR = """
import torch.distributed as dist

def main(loader):
    it = iter(loader)
    while True:
        try:
            batch = next(it)
        except StopIteration:
            break
        loss.backward()  # W
    dist.barrier()  # S
"""

POSITIVE = """
import torch.distributed as dist

def sync(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)  # W

def main(model):
    for step in range(100):
        loss.backward()
        sync(model)  # W1
        dist.all_gather(parts, loss)  # S
"""

ROOTED = """
import torch.distributed as dist

def score(x):
    dist.reduce(x, 0)
    return x.item()

def main():
    for epoch in range(10):
        loss.backward()  # S
        value = score(metric(epoch))
        if value > best:
            dist.barrier()  # W
            best = value
"""

EARLY_RETURN = """
import torch.distributed as dist

def train(files):
    if not files:
        return
    for f in files:
        loss.backward()  # W

def main(rank, world):
    train(sorted(glob("*.bin"))[rank::world])  # W1
    dist.barrier()  # S
"""

CLOCK = """
import time
import torch.distributed as dist

def run(budget):
    end = time.monotonic() + budget
    while time.monotonic() < end:
        loss.backward()  # W
    dist.barrier()  # S
"""

SUBGROUP = """
import torch.distributed as dist

class Average:
    def __init__(self, group):
        self.group = group

    def step(self, t):
        dist.all_reduce(t, group=self.group)
        dist.barrier()  # W

def main():
    rank = dist.get_rank()
    group = dist.new_group([1, 3])
    average = Average(group) if rank in (1, 3) else None
    for step in range(100):
        loss.backward()  # S
        if average:
            average.step(t)  # W1
"""


@pytest.mark.parametrize(
    ("text", "waiting", "others", "ops", "category", "ranks", "places"),
    [
        (HOOKS, (0,), (1, 2, 3), ("barrier", "backward"),
         "rank_conditional_collective", (0,), ("# W", "for hook in")),
        (DISPATCH, (0,), (1, 2, 3), ("all_reduce", "backward"),
         "rank_conditional_collective", (0,), ("# W", "logger.log")),
        (FINALLY, (0, 1, 3), (2,), ("backward", "barrier"),
         "exception_swallowed", (2,), ("# S",)),
        (HANDLER, (0, 1, 3), (2,), ("backward", "broadcast"),
         "exception_swallowed", (2,), ("except Exception",)),
        (ITERATOR, (0, 1, 3), (2,), ("backward", "barrier"),
         "uneven_inputs", "all", ("except StopIteration",)),
        (POSITIVE, (0, 1, 3), (2,), ("all_reduce", "all_gather"),
         "collective_count_mismatch", (2,), ("# W", "if p.grad")),
        (ROOTED, (0,), (1, 2, 3), ("barrier", "backward"),
         "divergent_control_flow", (0,), ("# W", "if value")),
        (EARLY_RETURN, (0, 1, 2), (3,), ("backward", "barrier"),
         "divergent_control_flow", (3,), ("if not files",)),
        (CLOCK, (1, 2), (0,), ("backward", "barrier"),
         "divergent_control_flow", (0,), ("while time",)),
        (SUBGROUP, (1, 3), (0, 2), ("barrier", "backward"),
         "rank_conditional_collective", (1, 3), ("# W", "if average")),
    ],
    ids=["hooks", "dispatch", "finally", "handler", "iterator", "positive", "rooted",
         "early-return", "clock", "subgroup"],
)  # fmt: skip
def test_the_reason_is_found_with_its_ranks_and_its_place(
    text: str,
    waiting: tuple[int, ...],
    others: tuple[int, ...],
    ops: tuple[str, str],
    category: str,
    ranks: object,
    places: tuple[str, ...],
    tmp_path: Path,
) -> None:
    cause = first_cause(tmp_path, text, waiting, others, *ops)
    assert (cause.category, cause.ranks) == (category, ranks)
    assert [p.line for p in cause.functions[: len(places)]] == [line_of(text, p) for p in places]


AGREED = """
import torch.distributed as dist

def main():
    for epoch in range(10):
        loss.backward()  # W
        flag = torch.tensor([float(local() > 3)])
        dist.all_reduce(flag)
        if flag.item() > 0:
            break
    dist.barrier()  # S
"""


GENERATOR = """
import os
import torch.distributed as dist

def steps(batches):
    for batch in batches:
        loss(batch).backward()  # S
        yield batch

def main():
    for number, _ in enumerate(steps(load())):  # S1
        if number == 300 and os.environ["RANK"] == "0":
            dist.barrier()  # W
"""


def test_a_loop_inside_a_generator_is_not_left_by_who_uses_what_it_yields(tmp_path: Path) -> None:
    cause = first_cause(tmp_path, GENERATOR, (0,), (1, 2, 3), "barrier", "backward")
    assert (cause.category, cause.ranks) == ("rank_conditional_collective", (0,))
    assert cause.functions[0].line == line_of(GENERATOR, "# W")


def test_a_break_on_an_agreed_flag_is_no_reason(tmp_path: Path) -> None:
    cause = first_cause(tmp_path, AGREED, (0, 1, 3), (2,), "backward", "barrier")
    assert "flag.item" not in cause.summary
    assert cause.confidence <= 0.6


def test_the_forgotten_group_is_pointed_out(tmp_path: Path) -> None:
    cause = first_cause(tmp_path, SUBGROUP, (1, 3), (0, 2), "barrier", "backward")
    assert any("name a group" in text for text in cause.why)


def test_a_program_that_left_while_a_thread_keeps_it_alive_is_named(tmp_path: Path) -> None:
    text = "def beat():\n    time.sleep(1)\n\ndef main():\n    loss.backward()\n"
    (tmp_path / "job.py").write_text(text)
    file = str(tmp_path / "job.py")
    gone = ThreadStack(
        frames=(Place(name="_shutdown", file="/usr/local/lib/python3.11/threading.py", line=1590),),
        name="MainThread", is_main=True, os_thread_id=1,
    )  # fmt: skip
    helper = ThreadStack(
        frames=(Place(name="beat", file=file, line=2),), name="beat", os_thread_id=2
    )
    waits = ThreadStack(
        frames=(*library("backward"), Place(name="main", file=file, line=5)),
        name="MainThread", is_main=True,
    )  # fmt: skip
    ranks = (
        RankEvidence(rank=0, stacks=(ProcessStacks(threads=(gone, helper)),)),
        RankEvidence(rank=1, stacks=(ProcessStacks(threads=(waits,)),)),
    )
    evidence = JobEvidence(ranks=ranks, world_size=2, source_root=str(tmp_path))
    cause = localize_stuck(evidence).causes[0]
    assert (cause.category, cause.ranks, cause.victims) == ("rank_exited", (0,), (1,))
