"""Source analysis: places, control flow, dependence, call graph."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.localize.source import FunctionInfo, Project, is_library_file
from eroica.localize.source_calls import Calls
from eroica.localize.source_depend import Depends
from eroica.localize.source_flow import (
    blocks,
    breaks,
    guards,
    head_loop,
    loops,
    swallowing_handlers,
)
from eroica.localize.source_rank import RankEvaluator
from eroica.records import JobEvidence


def project(tmp_path: Path, **files: str) -> Project:
    for name, text in files.items():
        path = tmp_path / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Project(tmp_path)


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


def function_at(source: Project, text: str, part: str) -> FunctionInfo:
    found = source.enclosing("job.py", line_of(text, part))
    assert found is not None
    return found


# --- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file",
    [
        "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py",
        "/usr/local/lib/python3.11/threading.py",
        "torch/distributed/distributed_c10d.py",
        "queue.py",
        "<frozen importlib._bootstrap>",
        None,
    ],
)
def test_library_frames_are_never_the_users(file: str | None, tmp_path: Path) -> None:
    assert is_library_file(file)
    assert not Project(tmp_path).contains(file)
    assert not Project(None).contains(file)


def test_a_frame_of_another_machine_is_found_by_the_tail_of_its_path(tmp_path: Path) -> None:
    source = project(tmp_path, pkg__model="def forward():\n    pass\n")
    found = source.resolve("/srv/other/job/pkg/model.py")
    assert found == (tmp_path / "pkg" / "model.py").resolve()


def test_a_file_that_exists_outside_the_root_is_not_the_users(tmp_path: Path) -> None:
    inside, outside = tmp_path / "job", tmp_path / "tools"
    inside.mkdir()
    outside.mkdir()
    (inside / "train.py").write_text("x = 1\n")
    (outside / "train.py").write_text("x = 1\n")
    assert not Project(inside).contains(str(outside / "train.py"))


def test_a_script_shadows_a_module_of_the_standard_library_only_inside_the_root(
    tmp_path: Path,
) -> None:
    source = project(tmp_path, queue="def get():\n    pass\n")
    assert source.contains("queue.py")
    assert not source.contains("threading.py")


@pytest.mark.parametrize("text", ["def broken(:\n", "\x00", "x = (" * 500])
def test_files_that_do_not_parse_answer_nothing(text: str, tmp_path: Path) -> None:
    source = project(tmp_path, job=text)
    assert source.enclosing("job.py", 1) is None
    assert source.modules == ()


def test_an_installed_package_inside_the_root_is_left_out(tmp_path: Path) -> None:
    source = project(tmp_path, venv__lib="x = 1\n", job="y = 2\n")
    assert [m.name for m in source.modules] == ["job"]


def test_the_project_of_a_job_without_source_root_is_the_folder_of_its_script(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    evidence = JobEvidence(ranks=(), world_size=1, command=("torchrun", str(script)))
    assert Project.of(evidence).root == tmp_path.resolve()


def test_enclosing_names_nested_functions_and_classes(tmp_path: Path) -> None:
    text = (
        "class A:\n    def run(self):\n        def inner():\n            return 1\n        x = 2\n"
    )
    source = project(tmp_path, job=text)
    names = [source.enclosing("job.py", n).qualified_name for n in (1, 2, 4, 5)]  # type: ignore[union-attr]
    assert names == ["<module>", "A.run", "A.run.inner", "A.run"]


# --- control flow -----------------------------------------------------------------------------

LOOP = """
def train(loader, model, rank):
    for x in loader:
        if bad(x):
            continue
        try:
            loss = model(x)
            loss.backward()
        except RuntimeError:
            loss = None
        if stop(loss):
            break
        if rank == 0:
            with lock:
                save()
    done()
"""


def test_blocks_are_given_innermost_first_with_their_branch(tmp_path: Path) -> None:
    source = project(tmp_path, job=LOOP)
    function = function_at(source, LOOP, "save()")
    found = [(b.kind, b.branch) for b in blocks(function, line_of(LOOP, "save()"))]
    assert found == [("with", "body"), ("if", "body"), ("for", "body")]


def test_the_head_of_a_loop_is_not_inside_it(tmp_path: Path) -> None:
    source = project(tmp_path, job=LOOP)
    line = line_of(LOOP, "for x in loader")
    function = function_at(source, LOOP, "for x in loader")
    assert loops(function, line) == []
    head = head_loop(function, line)
    assert head is not None and head.text == "loader"


def test_guards_before_a_line_are_found_and_those_after_it_not(tmp_path: Path) -> None:
    source = project(tmp_path, job=LOOP)
    function = function_at(source, LOOP, "backward")
    found = [(g.text, g.jump) for g in guards(function, line_of(LOOP, "backward"))]
    assert found == [("bad(x)", "continue")]


def test_a_break_of_an_inner_loop_does_not_leave_the_outer_one(tmp_path: Path) -> None:
    text = (
        "def f():\n    for a in b:\n        for c in d:\n            if e:\n                break\n"
    )
    source = project(tmp_path, job=text)
    outer = loops(function_at(source, text, "break"), line_of(text, "break"))[-1].node
    assert isinstance(outer, ast.For)
    assert breaks(outer) == []


def test_handlers_that_go_on_are_found_and_those_that_raise_are_not(tmp_path: Path) -> None:
    text = (
        "def f():\n    try:\n        g()\n    except ValueError:\n        raise\n"
        "    except KeyError:\n        pass\n    except OSError as e:\n"
        "        if 'x' in str(e):\n            return\n        raise e\n"
    )
    source = project(tmp_path, job=text)
    found = swallowing_handlers(function_at(source, text, "g()"), 3)
    assert [(h.types, h.jump) for h in found] == [("KeyError", None), ("OSError", "return")]


# --- dependence -------------------------------------------------------------------------------

TAGS = """
import os, random, time
import torch
import torch.distributed as dist

def is_chief():
    return dist.get_rank() == 0

class Job:
    def __init__(self, args):
        self.r = dist.get_rank()
        self.args = args
        self.best = 1.0

    def update(self, loss):
        self.best = min(self.best, loss)

    def step(self, batch, number):
        writer = None
        if self.r == 0:
            writer = open("x")
        flag = torch.tensor([float(batch.sum() > 3)])
        dist.all_reduce(flag)
        local = torch.tensor([float(batch.sum() > 3)])
        dist.reduce(local, 0)
        if is_chief(): rank_call()
        if self.r == 0: rank_field()
        if writer is not None: rank_control()
        if int(os.environ["LOCAL_RANK"]) == 0: rank_environment()
        if batch.sum() > 3: data()
        if flag.item() > 0: agreed()
        if local.item() > 0: rooted()
        if time.time() > 5: clock()
        if random.random() < 0.1: chance()
        if os.path.exists("cache"): disk()
        if number % self.args.every == 0: cadence()

def main(args):
    job = Job(args)
    for number, batch in enumerate(load()):
        job.step(batch, number)
"""


@pytest.mark.parametrize(
    ("call", "tag"),
    [
        ("rank_call", "rank"),
        ("rank_field", "rank"),
        ("rank_control", "rank"),
        ("rank_environment", "rank"),
        ("data", "data"),
        ("rooted", "data"),
        ("clock", "time"),
        ("chance", "random"),
        ("disk", "file"),
    ],
)
def test_a_condition_depends_on_what_ranks_may_disagree_on(
    call: str, tag: str, tmp_path: Path
) -> None:
    source = project(tmp_path, job=TAGS)
    function = function_at(source, TAGS, f"{call}()")
    test = next(b for b in blocks(function, line_of(TAGS, f"{call}()")) if b.kind == "if").test
    assert test is not None
    assert tag in Depends(source, Calls(source)).of(test, function)


@pytest.mark.parametrize("call", ["agreed", "cadence"])
def test_an_agreed_flag_and_a_cadence_are_the_same_on_every_rank(call: str, tmp_path: Path) -> None:
    source = project(tmp_path, job=TAGS)
    function = function_at(source, TAGS, f"{call}()")
    test = next(b for b in blocks(function, line_of(TAGS, f"{call}()")) if b.kind == "if").test
    assert test is not None
    tags = Depends(source, Calls(source)).of(test, function)
    assert not tags & {"rank", "data", "time", "random", "file"}


# --- conditions of a rank ---------------------------------------------------------------------

RANKS = """
import os
import torch.distributed as dist

def first():
    return dist.get_rank() == 0

def main():
    rank, world = dist.get_rank(), dist.get_world_size()
    node, local = divmod(rank, 2)
    members = list(range(0, world, 2))
    helper = object_of() if rank in members else None
    writer = None
    if rank == 0:
        writer = Writer()
    step = 0
    a = rank == 0 and step % 5 == 0
    b = not first()
    c = node == 1
    d = helper is not None
    e = writer is not None
    f = int(os.environ["RANK"]) > 1
    g = rank < world - 1
    h = unknown() or rank == 3
"""


def truths(tmp_path: Path, name: str) -> list[bool | None]:
    source = project(tmp_path, job=RANKS)
    function = function_at(source, RANKS, f"    {name} = ")
    value = next(
        n.value
        for n in function.own_nodes
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == name
    )
    calls = Calls(source)
    return [RankEvaluator(calls, r, 4).truth(value, function) for r in range(4)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("b", [False, True, True, True]),
        ("c", [False, False, True, True]),
        ("e", [True, False, False, False]),
        ("f", [False, False, True, True]),
        ("g", [True, True, True, False]),
        ("h", [None, None, None, True]),
    ],
)
def test_a_condition_on_the_rank_is_evaluated_for_each_rank(
    name: str, expected: list[bool | None], tmp_path: Path
) -> None:
    assert truths(tmp_path, name) == expected


def test_a_conjunction_with_a_false_rank_test_is_false_and_otherwise_open(tmp_path: Path) -> None:
    found = truths(tmp_path, "a")
    assert found[1:] == [False, False, False]
    assert found[0] is not False


def test_an_object_made_on_some_ranks_is_none_on_the_others(tmp_path: Path) -> None:
    found = truths(tmp_path, "d")
    assert found[1] is False and found[3] is False
    assert found[0] is not False and found[2] is not False


# --- calls ------------------------------------------------------------------------------------


def test_collectives_are_reached_through_methods_imports_and_constructors(tmp_path: Path) -> None:
    source = project(
        tmp_path,
        pkg__sync="import torch.distributed as dist\n\ndef mean(t):\n    dist.all_reduce(t)\n",
        job=(
            "from pkg.sync import mean\nclass T:\n    def log(self, x):\n        mean(x)\n"
            "    def fit(self):\n        self.log(1)\n\ndef main():\n    T().fit()\n"
        ),
    )
    calls = Calls(source)
    fit = next(f for f in source.functions if f.name == "fit")
    found = calls.collectives(fit)
    assert [(c.op, Path(c.place.file or "").name, c.place.line) for c in found] == [
        ("all_reduce", "sync.py", 4)
    ]
    assert [p.line for p in found[0].through] == [6, 4]


def test_names_of_other_libraries_are_no_collectives(tmp_path: Path) -> None:
    text = (
        "import threading, functools, socket\n\ndef f(parts, s):\n    threading.Barrier(2).wait()\n"
        "    functools.reduce(max, parts)\n    s.send(b'')\n    parts.gather(1)\n"
    )
    source = project(tmp_path, job=text)
    function = next(x for x in source.functions if x.name == "f")
    assert Calls(source).collectives(function) == []


def test_recursion_ends(tmp_path: Path) -> None:
    text = "def f(n):\n    if f(n - 1):\n        return g(n)\n\ndef g(n):\n    return f(n)\n"
    source = project(tmp_path, job=text)
    function = source.functions[0]
    calls = Calls(source)
    assert calls.collectives(function) == []
    assert isinstance(Depends(source, calls).returns(function), frozenset)


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_raise(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.py").write_bytes(text.encode("utf-8", "surrogatepass"))
        source = Project(folder)
        for line in (0, 1, 5, 10_000):
            function = source.enclosing("job.py", line)
            if function is not None:
                blocks(function, line)
                guards(function, line)
                swallowing_handlers(function, line)
