"""The hook in processes of its own: without torch, under a stub of it, in forks, beside others."""

import json
import textwrap
import time
from pathlib import Path

import pytest
from make_rank import INJECT, finish, letters, run_rank

from eroica.collect.asking import NoAnswer, ask
from eroica.collect.gather import read_ending, read_facts
from eroica.collect.rings import RingReader, find_rings

STUB = {
    "torch/__init__.py": "from torch.utils.data import dataloader\n__version__ = '2.1'\n"
    "from torch.optim import optimizer\ndef save(obj, f): pass\ndef set_num_threads(n): pass\n",
    "torch/utils/__init__.py": "",
    "torch/utils/data/__init__.py": "",
    "torch/utils/data/dataloader.py": """
        class _BaseDataLoaderIter:
            def __init__(self, loader):
                self._dataset, self._left = loader.dataset, 3
            def __iter__(self): return self
            def __next__(self):
                if not self._left: raise StopIteration
                self._left -= 1
                return self._left
        class DataLoader:
            num_workers, batch_size = 2, 8
            def __init__(self, dataset): self.dataset = dataset
            def __iter__(self): return _BaseDataLoaderIter(self)
        """,
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": """
        _before, _after = [], []
        register_optimizer_step_pre_hook = _before.append
        register_optimizer_step_post_hook = _after.append
        class Optimizer:
            def step(self):
                for hook in _before: assert hook(self, (), {}) is None
                for hook in _after: assert hook(self, (), {}) is None
        """,
}


@pytest.fixture
def stub(tmp_path):
    root = tmp_path / "stub"
    for name, text in STUB.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return root


LOOP = """
    import torch
    from torch.utils.data.dataloader import DataLoader
    from torch.optim.optimizer import Optimizer
    optimizer = Optimizer()
    for batch in DataLoader([1, 2, 3]):
        optimizer.step()
"""


def test_a_loop_is_recorded_under_a_torch_without_the_newer_interfaces(tmp_path, stub):
    code, _, err = finish(run_rank(tmp_path, LOOP, stub))
    assert (code, err) == (0, "")
    assert letters(tmp_path) == "nNsS" * 3 + "nN"


def test_the_ring_says_who_it_is(tmp_path):
    process = run_rank(tmp_path, "import os; print(os.getpid())")
    _, out, _ = finish(process)
    reader = RingReader(find_rings(tmp_path)[3])
    assert (reader.pid, reader.rank, reader.world_size) == (int(out), 3, 4)
    assert reader.local_rank == 1
    assert reader.is_exiting
    assert reader.last_event() is None
    reader.close()


def test_a_process_without_rank_is_left_alone(tmp_path):
    code, out, err = finish(run_rank(tmp_path, "print('done')", RANK=None))
    assert (code, out, err) == (0, "done\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_no_launcher_named_attaches_when_it_joins_its_group(tmp_path, stub):
    c10d = stub / "torch" / "distributed" / "distributed_c10d.py"
    c10d.parent.mkdir()
    (c10d.parent / "__init__.py").write_text("from .distributed_c10d import *")
    c10d.write_text(
        "def init_process_group(backend): return backend\n"
        "def get_rank(): return 5\ndef get_world_size(): return 8\n"
        "def is_initialized(): return False\n"
    )
    code = "import torch.distributed as dist\nassert dist.init_process_group('gloo') == 'gloo'\n"
    code, _, err = finish(
        run_rank(tmp_path / "run", code + textwrap.dedent(LOOP), stub, RANK=None, WORLD_SIZE=None)
    )
    assert (code, err) == (0, "")
    assert letters(tmp_path / "run", 5) == "nNsS" * 3 + "nN"


def test_eroica_0_switches_the_hook_off(tmp_path):
    finish(run_rank(tmp_path, "pass", EROICA="0"))
    assert list(tmp_path.iterdir()) == []


def test_a_subclass_that_calls_super_next_counts_once(tmp_path, stub):
    code = """
        from torch.utils.data import dataloader
        class Stateful(dataloader._BaseDataLoaderIter):
            def __next__(self):
                return super().__next__()
        for _ in Stateful(dataloader.DataLoader([1])): pass
    """
    assert finish(run_rank(tmp_path, code, stub))[0] == 0
    assert letters(tmp_path) == "nN" * 4


def test_a_forked_child_does_not_write_into_its_parents_ring(tmp_path, stub):
    code = """
        import os
        from torch.optim.optimizer import Optimizer
        optimizer = Optimizer()
        optimizer.step()
        if os.fork() == 0:
            for _ in range(50): optimizer.step()
            os._exit(0)
        os.wait()
        optimizer.step()
    """
    assert finish(run_rank(tmp_path, code, stub))[0] == 0
    assert letters(tmp_path) == "sSsS"


def test_a_spawned_child_that_inherits_rank_is_not_taken_for_it(tmp_path, stub):
    code = """
        import os, subprocess, sys
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        print(os.getpid())
    """
    _, out, err = finish(run_rank(tmp_path, code, stub))
    assert err == ""
    assert [path.name for path in tmp_path.glob("pid-*")] == [f"pid-{int(out)}"]
    assert read_ending(tmp_path, 3)["pid"] == int(out)


def test_step_marks_loops_with_neither_loader_nor_optimizer(tmp_path):
    finish(run_rank(tmp_path, "import eroica_hook\nfor _ in range(3): eroica_hook.step()"))
    assert letters(tmp_path) == "MMM"


def test_two_copies_of_the_hook_share_one_ring(tmp_path, stub):
    root = Path(__file__).parents[1]
    code = "import eroica\n" + textwrap.dedent(LOOP) + "\neroica.step()\n"
    code, _, err = finish(run_rank(tmp_path, code, stub, root))
    assert (code, err) == (0, "")
    assert letters(tmp_path) == "nNsS" * 3 + "nN" + "M"


def test_the_hidden_sitecustomize_still_runs(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins; builtins.seen = __file__")
    folder = tmp_path / "run"
    code, out, _ = finish(run_rank(folder, "print(seen); import sys; print(sys.path)", other))
    assert code == 0
    assert out.splitlines()[0] == str(other / "sitecustomize.py")
    assert str(INJECT) not in out


def test_an_exception_keeps_its_exit_code_and_is_told(tmp_path):
    code, _, err = finish(run_rank(tmp_path, "def f():\n    raise ValueError('bad')\nf()"))
    assert code == 1
    assert "ValueError: bad" in err and "eroica" not in err
    story = read_ending(tmp_path, 3)
    assert (story["error_type"], story["message"], story["clean"]) == ("ValueError", "bad", False)
    assert [frame["name"] for frame in story["frames"]] == ["f", "<module>"]


@pytest.mark.parametrize("code", [0, 7])
def test_an_exit_code_is_the_jobs_own(tmp_path, code):
    assert finish(run_rank(tmp_path, f"import sys; sys.exit({code})"))[0] == code


def test_a_thread_that_dies_alone_is_told(tmp_path):
    code = """
        import threading
        def work(): raise KeyError("x")
        thread = threading.Thread(target=work, name="prefetch"); thread.start(); thread.join()
    """
    assert finish(run_rank(tmp_path, code))[0] == 0
    (error,) = read_ending(tmp_path, 3)["thread_errors"]
    assert (error["thread"], error["error_type"]) == ("prefetch", "KeyError")


def test_a_folder_that_cannot_be_written_costs_the_job_nothing(tmp_path):
    target = tmp_path / "file"
    target.write_text("")
    code, out, _ = finish(run_rank(target / "below", "print('trained')"))
    assert (code, out) == (0, "trained\n")


def test_a_ring_deleted_under_way_costs_the_job_nothing(tmp_path, stub):
    folder = tmp_path / "run"
    code = textwrap.dedent(LOOP) + textwrap.dedent(
        f"""
        import glob, os
        for path in glob.glob({str(folder)!r} + "/*"): os.unlink(path)
        for _ in range(20): optimizer.step()
        print("trained")
        """
    )
    returned, out, _ = finish(run_rank(folder, code, stub))
    assert (returned, out) == (0, "trained\n")


def test_no_space_costs_the_job_nothing(tmp_path, stub):
    code = """
        import os, sys
        def full(*args): raise OSError(28, "No space left on device")
        os.posix_fallocate = full
        sys.modules["eroica_hook"]._attach()
    """
    process = run_rank(tmp_path, "import sys; print('trained')", stub)
    assert finish(process)[0] == 0
    process = run_rank(tmp_path, code, stub, EROICA_RUN=str(tmp_path / "second"))
    assert "No space" in finish(process)[2]


def test_the_hook_answers_while_the_main_thread_waits(tmp_path):
    process = run_rank(tmp_path, "print('up', flush=True); input()")
    assert process.stdout.readline() == "up\n"
    time.sleep(0.2)
    assert ask(tmp_path, 3, "ping") == {"local_rank": 1}
    with pytest.raises(NoAnswer, match=r"rank 3: RuntimeError: torch\.distributed is not loaded"):
        ask(tmp_path, 3, "flight", path=str(tmp_path / "flight"))
    ask(tmp_path, 3, "facts", path=str(tmp_path / "facts.json"))
    keys = {fact["key"] for fact in json.loads((tmp_path / "facts.json").read_text())}
    assert {"python.version", "cpu_count", "world_size", "gc", "tracemalloc"} <= keys
    ask(tmp_path, 3, "stacks", path=str(tmp_path / "stacks.txt"))
    assert 'File "<string>", line 1 in <module>' in (tmp_path / "stacks.txt").read_text()
    assert finish(process)[0] == 0


def test_nobody_listening_is_an_answer(tmp_path):
    with pytest.raises(NoAnswer, match="rank 0 cannot be asked"):
        ask(tmp_path, 0, "ping")


def test_samples_from_inside_have_py_spys_form(tmp_path):
    from eroica.watch.sampling import parse_raw

    process = run_rank(tmp_path, "def wait():\n    input()\nprint('up', flush=True)\nwait()")
    process.stdout.readline()
    time.sleep(0.2)
    path = tmp_path / "samples.raw"
    assert ask(tmp_path, 3, "sample", path=str(path), hz=50, seconds=60) is True
    with pytest.raises(NoAnswer, match="a sampling profile is being taken"):
        ask(tmp_path, 3, "sample", path=str(path), hz=50, seconds=60)
    time.sleep(0.5)
    assert 3 < ask(tmp_path, 3, "sample_stop", limit_s=5) <= 30
    stacks = parse_raw(path.read_text(), process.pid)
    (main,) = [stack for stack in stacks if stack.thread == "MainThread"]
    assert [frame.name for frame in main.frames] == ["wait", "<module>"]
    assert (main.pids, main.count >= 10) == ((process.pid,), True)
    assert finish(process)[0] == 0


def test_switches_are_told_with_the_users_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import gc, tracemalloc\ntracemalloc.start(5)\nfor _ in range(3):\n    gc.collect()\n"
    )
    folder = tmp_path / "run"
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    assert finish(run_rank(folder, code))[0] == 0
    facts = {fact["key"]: fact for fact in read_facts(folder, 3)}
    assert facts["tracemalloc"]["value"] == 5
    assert facts["tracemalloc"]["places"][0]["line"] == 2
    assert facts["gc.pauses"]["value"]["explicit_count"] == 3
    place = facts["gc.pauses"]["places"][0]
    assert (place["file"], place["line"]) == (str(script), 4)


def test_long_automatic_collections_in_the_steps_are_told_apart_from_start_up(tmp_path):
    make = "    rows = [[i, [i]] for i in range(200_000)]\n"
    script = tmp_path / "train.py"
    script.write_text(
        "import eroica\n"
        f"def load():\n{make}    return rows\n"
        "kept = load()\n"
        "for step in range(3):\n    eroica.step()\n    load()\n"
    )
    folder = tmp_path / "run"
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    assert finish(run_rank(folder, code))[0] == 0
    pauses = next(f["value"] for f in read_facts(folder, 3) if f["key"] == "gc.pauses")
    assert 0 < pauses["steps_ns"] < pauses["total_ns"]
    assert 0 < pauses["steps_count"] < pauses["count"]


def test_profilers_that_the_job_starts_are_counted_with_the_line_of_the_first(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfor step in range(3):\n"
        "    with torch.autograd.profiler.profile():\n        torch.ones(2)\n"
    )
    folder = tmp_path / "run"
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    assert finish(run_rank(folder, code))[0] == 0
    runs = next(f for f in read_facts(folder, 3) if f["key"] == "profiler.runs")
    assert runs["value"]["count"] == 3
    assert 0 < runs["value"]["exit_ns"]
    assert (runs["places"][0]["file"], runs["places"][0]["line"]) == (str(script), 3)


def test_secrets_in_the_environment_are_not_told(tmp_path):
    finish(run_rank(tmp_path, "pass", NCCL_SECRET_KEY="hunter2", NCCL_DEBUG="INFO"))
    keys = {fact["key"] for fact in read_facts(tmp_path, 3)}
    assert "env.NCCL_DEBUG" in keys and "env.NCCL_SECRET_KEY" not in keys
    assert "hunter2" not in (tmp_path / "rank-00003.facts.json").read_text()


@pytest.mark.parametrize("version", ["3.9.18", "3.12.1", "3.13.0"])
def test_the_hook_runs_in_other_pythons(tmp_path, stub, version):
    python = Path.home() / ".pyenv" / "versions" / version / "bin" / "python3"
    if not python.exists():
        pytest.skip(f"no Python {version} here")
    code, _, err = finish(run_rank(tmp_path, LOOP, stub, python=str(python)))
    assert (code, err) == (0, "")
    assert letters(tmp_path) == "nNsS" * 3 + "nN"
