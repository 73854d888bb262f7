"""The same program in another form: annotated, by position, partial, other names."""

import ast
from pathlib import Path

import pytest

from eroica.localize.locks import thread_starts
from eroica.localize.source import Project, is_library_file
from eroica.localize.source_calls import Calls, collective_kind, group_of
from eroica.localize.source_depend import RANK, Depends, is_rank_name
from eroica.localize.source_lines import is_bounded, is_queue
from eroica.localize.source_rank import RankEvaluator


def project(folder: Path, text: str) -> Project:
    (folder / "job.py").write_text(text)
    return Project(folder)


def call(text: str) -> ast.Call:
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Call)
    return node


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("threading.Thread(target=worker)", ["worker"]),
        ("threading.Thread(None, worker)", ["worker"]),
        ("threading.Thread(target=partial(worker, 1))", ["worker"]),
        ("threading.Thread(target=functools.partial(worker, 1))", ["worker"]),
        ("threading.Thread(target=lambda: worker(1))", ["worker"]),
        ("threading.Timer(5, worker)", ["worker"]),
        ("pool.submit(worker, 1)", ["worker"]),
        ("loop.run_in_executor(None, worker)", ["worker"]),
        ("asyncio.to_thread(worker)", ["worker"]),
        ("threading.Thread()", []),
        ("threading.Thread(target=partial())", []),
        ("threading.Thread(target=print)", []),
    ],
)
def test_the_function_of_a_thread_is_found_however_it_is_handed_over(tmp_path, start, found):
    job = project(tmp_path, f"def worker(q):\n    q.get()\n\ndef main():\n    {start}\n")
    assert [s.target.name for s in thread_starts(job, Calls(job))] == found


def test_an_annotated_attribute_is_made_by_its_class(tmp_path):
    job = project(
        tmp_path,
        """
class Feed:
    def __init__(self):
        self.gate: threading.Lock = threading.Lock()
        self.box: queue.Queue[int] = queue.Queue(2)
        self.empty: int
        self.a, self.b = 1, 2
        other.c = 3
""",
    )
    assert job.makers == {"gate": ["Feed"], "box": ["Feed"], "a": ["Feed"], "b": ["Feed"]}
    (info, _) = job.modules[0].functions
    assert is_queue(ast.parse("self.box", mode="eval").body, info)
    assert not is_queue(ast.parse("self.gate", mode="eval").body, info)


@pytest.mark.parametrize(
    ("test", "ranks"),
    [
        ("rank & 1", [1, 3]),
        ("rank >> 1 == 1", [2, 3]),
        ("(rank ^ 1) == 0", [1]),
        ("rank | 1 == 1", [0, 1]),
        ("1 << rank == 4", [2]),
        ("is_main_process()", [0]),
        ("hvd.rank() == 2", [2]),
        ("xm.is_master_ordinal()", [0]),
    ],
)
def test_a_condition_on_the_rank_is_evaluated_for_each_rank(tmp_path, test, ranks):
    job = project(tmp_path, f"def main(rank):\n    if {test}:\n        pass\n")
    calls, info = Calls(job), job.modules[0].functions[0]
    node = next(n.test for n in info.own_nodes if isinstance(n, ast.If))
    assert [r for r in range(4) if RankEvaluator(calls, r, 4).truth(node, info)] == ranks
    assert RANK in Depends(job, calls).of(node, info)


@pytest.mark.parametrize("test", ["len('x' * 10000000000000) > 3", "(1 << 100000000000) > 3"])
def test_a_condition_that_would_take_all_memory_is_left_alone(tmp_path, test):
    job = project(tmp_path, f"def main():\n    if {test}:\n        pass\n")
    info = job.modules[0].functions[0]
    node = next(n.test for n in info.own_nodes if isinstance(n, ast.If))
    assert RankEvaluator(Calls(job), 0, 2).truth(node, info) is None


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("dist.all_reduce(t, op, pair)", "pair"),
        ("dist.all_reduce(t, group=pair)", "pair"),
        ("dist.broadcast(t, 0, pair)", "pair"),
        ("dist.barrier(pair)", "pair"),
        ("dist.reduce(t, 0, op, pair)", "pair"),
        ("dist.gather_object(x, xs, 0, pair)", "pair"),
        ("all_gather_into_tensor(out, t, pair)", "pair"),
        ("dist.all_to_all_single(o, i, None, None, pair)", "pair"),
        ("dist.all_reduce(t, op)", None),
        ("dist.all_reduce(t, op, None)", None),
        ("dist.all_reduce(t, group=None)", None),
        ("model(a, b, c)", None),
    ],
)
def test_the_group_of_a_collective_by_keyword_or_position(text, group):
    given = group_of(call(text))
    assert (ast.unparse(given) if given else None) == group


@pytest.mark.parametrize(
    ("text", "bounded"),
    [
        ("q.get(timeout=5)", True),
        ("q.get(True, 5)", True),
        ("q.get(False)", True),
        ("q.get(block=False)", True),
        ("q.put(x, True, 5)", True),
        ("event.wait(5)", True),
        ("thread.join(limit)", True),
        ("lock.acquire(False)", True),
        ("lock.acquire(blocking=wanted)", True),
        ("q.get()", False),
        ("q.get(True)", False),
        ("q.get(True, None)", False),
        ("q.get(block=True)", False),
        ("q.get(timeout=None)", False),
        ("q.put(x)", False),
        ("event.wait()", False),
        ("wait(5)", False),
    ],
)
def test_a_call_is_bounded_by_a_time_out_that_is_one(text, bounded):
    assert is_bounded(call(text)) is bounded


def test_of_an_unknown_call_only_keywords_count():
    assert not is_bounded(call("settings.get(key, default)"), by_position=False)
    assert is_bounded(call("requests.get(url, timeout=5)"), by_position=False)


@pytest.mark.parametrize(
    ("file", "is_library"),
    [
        ("/home/u/lib/python_jobs/train.py", False),
        ("/opt/conda/lib/python3.11/queue.py", True),
        ("/usr/lib64/python3/dist.py", True),
        ("/srv/app/lib/train.py", False),
        ("code/train.py", False),
        ("test/train.py", False),
        ("types/batch.py", False),
        ("queue.py", True),
        ("asyncio/tasks.py", True),
        ("torch/nn/functional.py", True),
    ],
)
def test_a_folder_that_only_begins_like_pythons_is_the_users(file, is_library):
    assert is_library_file(file) is is_library


def test_a_package_named_env_is_the_users_and_an_environment_is_not(tmp_path):
    for folder in ("env", "mine/lib/python3.11", "conda", "virtual"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "maze.py").write_text("def step():\n    pass\n")
    (tmp_path / "conda" / "conda-meta").mkdir()
    (tmp_path / "virtual" / "pyvenv.cfg").write_text("")
    job = Project(tmp_path)
    assert job.contains(str(tmp_path / "env" / "maze.py"))
    assert not job.contains(str(tmp_path / "mine/lib/python3.11" / "maze.py"))
    assert "env.maze" in [m.name for m in job.modules]
    assert not {"conda.maze", "virtual.maze"} & {m.name for m in job.modules}


@pytest.mark.parametrize(
    ("name", "is_rank"),
    [
        ("rank", True),
        ("tensor_parallel_rank", True),
        ("is_master", True),
        ("lora_rank", False),
        ("matrix_rank", False),
        ("low_rank", False),
        ("num_ranks", False),
        ("world_rank_count", False),
        ("crank", False),
    ],
)
def test_the_rank_of_a_matrix_is_no_rank_of_a_job(name, is_rank):
    assert is_rank_name(name) is is_rank


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from pkg import sync\nsync()", "pkg.comm"),
        ("import pkg\npkg.sync()", "pkg.comm"),
        ("from pkg.comm import sync\nsync()", "pkg.comm"),
        ("from app.pkg.comm import sync\nsync()", "pkg.comm"),
        ("import util\nutil.meet()", "src.util"),
        ("from util import meet\nmeet()", "src.util"),
        ("import pkg\npkg.start()", "pkg.__init__"),
        ("from util import *\nmeet()", "src.util"),
        ("meet()", None),
        ("import myutil\nmyutil.meet()", None),
        ("import torch\ntorch.sync()", None),
    ],
)
def test_a_function_is_found_through_packages_and_from_another_root(tmp_path, text, found):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("from .comm import sync\ndef start(): pass\n")
    (tmp_path / "pkg" / "comm.py").write_text("def sync(): pass\n")
    (tmp_path / "src" / "util.py").write_text("def meet(): pass\n")
    job = project(tmp_path, text)
    calls, info = Calls(job), job.module(str(tmp_path / "job.py")).functions[-1]
    node = next(n for n in info.own_nodes if isinstance(n, ast.Call))
    assert [f.module.name for f in calls.resolve(node, info)] == ([found] if found else [])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("dist.gather(x, xs)", ("gather", "collective")),
        ("torch.distributed.nn.functional.reduce(x)", ("reduce", "collective")),
        ("self.dist.broadcast(x, 0)", ("broadcast", "collective")),
        ("self.accelerator.reduce(x)", ("reduce", "collective")),
        ("fabric.barrier()", ("barrier", "collective")),
        ("dist_utils.barrier()", ("barrier", "collective")),
        ("dist.send(x, 1)", ("send", "point_to_point")),
        ("distances.gather(1, index)", None),
        ("dist_probs.gather(1, index)", None),
        ("distribution.reduce(x)", None),
        ("x.scatter(0, index, y)", None),
        ("functools.reduce(f, xs)", None),
    ],
)
def test_a_tensors_gather_is_no_collective(tmp_path, text, kind):
    job = project(tmp_path, f"import torch.distributed as dist\n{text}\n")
    assert collective_kind(call(text), job.modules[0]) == kind
