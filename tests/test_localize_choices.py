"""Conditions on a collective that are no ``if`` statement, and the thread that trains."""

from pathlib import Path

import pytest

from eroica.localize.source import Project
from eroica.localize.source_choices import case_choices, inline_choices, rank_decorators
from eroica.records import Place
from tests.test_localize_stuck import BACKWARD, Program, collective, localize, rank, stack

LIBRARY = "/usr/lib/python3.11/site-packages/"


def program(folder: Path, body: str) -> Program:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    text = (
        "import torch.distributed as dist\n\ndef main(rank, ready):\n"
        f"    for step in range(100):\n        loss.backward()\n{lines}"
    )
    return Program(folder, text)


INLINE = [
    "dist.barrier() if rank == 1 else None",
    "None if rank != 1 else dist.barrier()",
    "rank == 1 and dist.barrier()",
    "rank != 1 or dist.barrier()",
    "[dist.barrier() for _ in range(1) if rank == 1]",
    "match rank:\n    case 1:\n        dist.barrier()",
    "match rank:\n    case 0 | 2 | 3:\n        pass\n    case _:\n        dist.barrier()",
    "match ready:\n    case True if rank == 1:\n        dist.barrier()",
]


@pytest.mark.parametrize("body", INLINE)
@pytest.mark.parametrize("world", [2, 4])
def test_a_collective_on_one_rank_is_found_whatever_the_form_of_the_condition(
    tmp_path, body, world
):
    """Of two ranks the smaller group does not tell: rank 0 waits in an all-reduce of its own."""
    job = program(tmp_path, f"{body}\ndist.all_reduce(loss)")
    odd = rank(1, stack(*collective("barrier"), job.at("dist.barrier()", "main")))
    rest = [
        rank(r, stack(*collective("all_reduce"), job.at("dist.all_reduce(loss)", "main")))
        for r in range(world)
        if r != 1
    ]
    cause = localize([*rest, odd], tmp_path).causes[0]
    assert (cause.category, cause.ranks) == ("rank_conditional_collective", (1,))
    assert cause.functions[0].line == job.at("dist.barrier()", "main").line
    assert cause.confidence >= 0.9


@pytest.mark.parametrize("body", INLINE)
def test_a_condition_that_holds_elsewhere_is_no_reason(tmp_path, body):
    job = program(tmp_path, body)
    odd = rank(0, stack(*collective("barrier"), job.at("dist.barrier()", "main")))
    main = job.at("loss.backward", "main")
    verdict = localize([odd, *(rank(r, stack(*BACKWARD, main)) for r in (1, 2, 3))], tmp_path)
    assert all(c.confidence < 0.9 for c in verdict.causes)


@pytest.mark.parametrize(
    ("decorator", "confidence"),
    [("rank_zero_only", 0.97), ("accelerator.on_main_process", 0.97), ("rank_2_only()", 0.85)],
)
def test_a_decorator_that_lets_one_rank_in_is_a_condition(tmp_path, decorator, confidence):
    job = Program(
        tmp_path,
        f"""
import torch.distributed as dist

class Trainer:
    @{decorator}
    def save(self):
        dist.barrier()

    def fit(self):
        for step in range(100):
            self.loss.backward()
            self.save()
""",
    )
    wrapped = Place(name="wrapped_fn", file=f"{LIBRARY}lightning/utilities.py", line=3)
    frames = (job.at("dist.barrier()", "save"), wrapped, job.at("self.save()", "fit"))
    main = job.at("self.loss.backward", "fit")
    rest = [rank(r, stack(*BACKWARD, main)) for r in (1, 2, 3)]
    cause = localize([rank(0, stack(*collective("barrier"), *frames)), *rest], tmp_path).causes[0]
    assert (cause.category, cause.ranks) == ("rank_conditional_collective", (0,))
    assert [(p.name, p.line) for p in cause.functions] == [("save", 7), ("Trainer.save", 5)]
    assert cause.confidence == pytest.approx(confidence, abs=0.01)
    assert any(
        f"under `@{decorator.rpartition('.')[2].removesuffix('()')}`" in w for w in cause.why
    )


def test_a_decorator_for_rank_zero_is_no_reason_for_another_rank(tmp_path):
    job = Program(
        tmp_path,
        "@rank_zero_only\ndef save():\n    dist.barrier()\n\ndef main():\n    save()\n    step()\n",
    )
    info = Project(tmp_path).enclosing(str(tmp_path / "job.py"), 3)
    assert info is not None
    assert list(rank_decorators(info)) == [("rank_zero_only", 1, True)]
    frames = (*collective("barrier"), job.at("dist.barrier", "save"), job.at("  save()", "main"))
    rest = [rank(r, stack(*BACKWARD, job.at("step()", "main"))) for r in (0, 2, 3)]
    verdict = localize([rank(1, stack(*frames)), *rest], tmp_path)
    assert all(c.confidence < 0.9 for c in verdict.causes)


@pytest.mark.parametrize(
    "line",
    [
        "run(lambda: rank == 0 and dist.barrier())",
        "dist.barrier()",
        "(dist.barrier() or rank == 0)",
        "[x for x in xs if dist.barrier()]",
    ],
)
def test_what_does_not_decide_over_the_call_is_no_choice(tmp_path, line):
    job = program(tmp_path, line)
    place = job.at(line.split("(")[0], "main")
    info = Project(tmp_path).enclosing(place.file, 6)
    assert info is not None
    assert inline_choices(info, 6, None) == []


def test_a_case_that_takes_an_object_apart_says_nothing(tmp_path):
    import ast

    (node,) = ast.parse("match x:\n    case Point(a=1):\n        f()\n").body
    assert isinstance(node, ast.Match)
    assert case_choices(node, 3) == []
    assert case_choices(node, 1) == []


# --- a launcher's main thread -----------------------------------------------------------------

RAY = Place(name="main_loop", file=f"{LIBRARY}ray/_private/worker.py", line=9)


def test_where_the_main_thread_is_the_launchers_the_programs_thread_tells(tmp_path):
    job = program(tmp_path, "if rank == 1:\n    dist.barrier()\ndist.all_reduce(loss)")
    launcher = stack(RAY)

    def inside(op: str, mark: str):
        frames = (*collective(op), job.at(mark, "main"))
        return stack(*frames, name="TrainThread", tid=2)

    ranks = [rank(r, launcher, inside("all_reduce", "dist.all_reduce(loss)")) for r in (0, 2)]
    ranks.insert(1, rank(1, launcher, inside("barrier", "dist.barrier()")))
    cause = localize(ranks, tmp_path).causes[0]
    assert (cause.category, cause.ranks) == ("rank_conditional_collective", (1,))
    assert cause.confidence >= 0.9


def test_a_read_in_the_programs_thread_holds_the_rank(tmp_path):
    job = program(tmp_path, "sock.recv(4)\ndist.all_reduce(loss)")
    waits = (*collective("all_reduce"), job.at("dist.all_reduce", "main"))
    blocked = stack(job.at("sock.recv", "main"), name="TrainThread", tid=2)
    ranks = [rank(0, stack(RAY), blocked)] + [rank(r, stack(*waits)) for r in (1, 2)]
    cause = localize(ranks, tmp_path).causes[0]
    assert (cause.category, cause.ranks) == ("blocked_io", (0,))
