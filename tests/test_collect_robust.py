"""The training process comes to no harm: full disks, missing files, other tools, old Pythons."""

import ast
import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest
from make_rank import finish, run_rank
from test_collect_hook import LOOP, STUB

from eroica.collect.asking import ask
from eroica.collect.gather import read_ending

ROOT = Path(__file__).parents[1] / "eroica"
HOOK = [
    ROOT / "__init__.py",
    *sorted((ROOT / "collect" / "hook").glob("*.py")),
    *sorted((ROOT / "collect" / "inject").glob("*.py")),
]

# Names of the standard library that came after Python 3.9, as far as a hook might want them.
NEWER = {
    "aclosing", "aiter", "anext", "bit_count", "chdir", "dataclass_transform", "file_digest",
    "get_annotations", "getencoding", "gettrace_all_threads", "NoneType", "orig_argv",
    "packages_distributions", "pairwise", "ParamSpec", "removesuffixes", "Self", "StrEnum",
    "stdlib_module_names", "tomllib", "TypeAlias", "TypeGuard", "UnionType", "BaseExceptionGroup",
    "ExceptionGroup", "add_note", "batched", "monitoring", "settrace_all_threads", "sumprod",
    "EncodingWarning", "setns", "unshare", "process_cpu_count", "getprofile_all_threads",
}  # fmt: skip
NEWER_ARGUMENTS = {("zip", "strict"), ("dataclass", "slots"), ("dataclass", "kw_only")}


@pytest.mark.parametrize("path", HOOK, ids=lambda path: path.parent.name + "/" + path.name)
def test_the_hook_keeps_to_python_3_9(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert node.attr not in NEWER, f"line {node.lineno}: {node.attr}"
        if isinstance(node, ast.Name):
            assert node.id not in NEWER, f"line {node.lineno}: {node.id}"
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            for keyword in node.keywords:
                assert (name, keyword.arg) not in NEWER_ARGUMENTS, f"line {node.lineno}"


@pytest.mark.parametrize("path", HOOK[1:], ids=lambda path: path.parent.name + "/" + path.name)
def test_the_hook_evaluates_no_annotation(path):
    """``int | None`` is a fault in 3.9 unless annotations stay text."""
    tree = ast.parse(path.read_text())
    has_annotations = any(isinstance(node, ast.AnnAssign | ast.FunctionDef) for node in tree.body)
    futures = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    names = {alias.name for future in futures for alias in future.names}
    assert "annotations" in names or not has_annotations


@pytest.fixture
def make_stub(tmp_path):
    def make(**replaced):
        root = tmp_path / "stub"
        for name, text in {**STUB, **replaced}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return root

    return make


def test_a_torch_without_global_step_hooks_is_said_once(tmp_path, make_stub):
    stub = make_stub(**{"torch/optim/optimizer.py": "class Optimizer:\n    def step(self): pass\n"})
    code, _, err = finish(run_rank(tmp_path / "run", LOOP, stub))
    assert code == 0
    assert err.count("\n") == 1
    assert "rank 3: watching optimizers is off" in err and "the training goes on" in err


def test_a_torch_without_its_loader_iterator_is_said_once(tmp_path, make_stub):
    stub = make_stub(
        **{
            "torch/utils/data/dataloader.py": """
            class DataLoader:
                num_workers, batch_size = 0, 1
                def __init__(self, dataset): self.dataset = dataset
                def __iter__(self): return iter(self.dataset)
            """
        }
    )
    code, _, err = finish(run_rank(tmp_path / "run", LOOP, stub))
    assert code == 0
    assert err.count("\n") == 1 and "watching loaders is off" in err


FULL = """
    import resource, signal
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
"""


def test_a_disk_that_is_full_from_the_start_costs_one_line(tmp_path, make_stub):
    """Files may have no size at all, as on a full disk; set by a shell, before Python starts."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(LOOP) + "print('trained')\n")
    # What Python itself writes has to be there before.
    (tmp_path / "run").mkdir()
    stub = make_stub()
    code = f"""
        import resource, subprocess, sys
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        done = subprocess.run([sys.executable, "-B", {str(script)!r}], capture_output=True)
        sys.stdout.write(done.stdout.decode())
        sys.stderr.write(done.stderr.decode())
        sys.exit(done.returncode)
    """
    environment = {"RANK": None}
    wrapped = textwrap.dedent(code).replace(
        "import resource, subprocess, sys",
        "import os, resource, subprocess, sys\nos.environ['RANK'] = '3'",
    )
    returned, out, err = finish(run_rank(tmp_path / "run", wrapped, stub, **environment))
    assert (returned, out) == (0, "trained\n")
    assert err.count("eroica") == 1, err
    assert "rank 3: attach is off (OSError: [Errno 27] File too large" in err


def test_a_disk_that_fills_up_under_way_costs_a_few_lines_at_the_end(tmp_path, make_stub):
    code = textwrap.dedent(LOOP) + textwrap.dedent(FULL) + "optimizer.step()\nraise SystemExit(7)\n"
    returned, _, err = finish(run_rank(tmp_path / "run", code, make_stub()))
    assert returned == 7
    assert "telling how the rank ended is off" in err
    assert all(line.startswith("eroica: rank 3: ") for line in err.splitlines())
    assert len(err.splitlines()) <= 3


def test_a_folder_taken_away_under_way_costs_a_few_lines_at_the_end(tmp_path, make_stub):
    folder = tmp_path / "run"
    code = textwrap.dedent(LOOP) + textwrap.dedent(
        f"""
        import shutil
        shutil.rmtree({str(folder)!r})
        for _ in range(20): optimizer.step()
        print("trained")
        """
    )
    returned, out, err = finish(run_rank(folder, code, make_stub()))
    assert (returned, out) == (0, "trained\n")
    assert all(line.startswith("eroica: rank 3: ") for line in err.splitlines())
    assert len(err.splitlines()) <= 3


def test_a_closed_stderr_is_no_reason_to_fail(tmp_path, make_stub):
    code = (
        "import os, sys\nos.close(2)\nsys.stderr = None\n"
        + textwrap.dedent(FULL)
        + textwrap.dedent(LOOP)
        + "print('trained')\n"
    )
    assert finish(run_rank(tmp_path / "run", code, make_stub()))[:2] == (0, "trained\n")


@pytest.mark.parametrize("version", [None, "3.9.18", "3.12.1", "3.13.0"])
def test_profilers_and_debuggers_of_python_work_as_before(tmp_path, version):
    python = sys.executable
    if version is not None:
        python = Path.home() / ".pyenv" / "versions" / version / "bin" / "python3"
        if not python.exists():
            pytest.skip(f"no Python {version} here")
    code = """
        import cProfile, io, profile, pstats, sys, threading
        def work(): return sum(i for i in range(100))
        for kind in (cProfile.Profile, profile.Profile):
            one = kind()
            assert one.runcall(work) == 4950
            text = io.StringIO()
            pstats.Stats(one, stream=text).print_stats()
            assert "work" in text.getvalue()
        seen = []
        def trace(frame, event, arg):
            seen.append((event, frame.f_code.co_name))
            return trace
        sys.settrace(trace)
        work()
        sys.settrace(None)
        assert ("call", "work") in seen and ("return", "work") in seen
        assert sys.gettrace() is None
        print("same")
    """
    assert finish(run_rank(tmp_path, code, python=str(python))) == (0, "same\n", "")


def test_the_jobs_own_hooks_for_exceptions_are_called(tmp_path):
    code = """
        import sys, threading
        sys.excepthook = lambda kind, error, traceback: print("mine:", error)
        threading.excepthook = lambda arguments: print("thread:", arguments.exc_value)
        def fail(): raise ValueError("in a thread")
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        raise ValueError("at the end")
    """
    returned, out, err = finish(run_rank(tmp_path, code))
    assert (returned, out, err) == (1, "thread: in a thread\nmine: at the end\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1])
def test_a_signal_ends_a_rank_as_without_us(tmp_path, number):
    code = "import time\nprint('up', flush=True)\ntime.sleep(60)"
    codes = []
    for environment in ({}, {"EROICA": "0"}):
        process = run_rank(tmp_path, code, **environment)
        process.stdout.readline()
        process.send_signal(number)
        process.communicate(timeout=20)
        codes.append(process.returncode)
    assert codes[0] == codes[1] < 0 or codes[0] == codes[1] == 1


def test_a_stopped_rank_goes_on_where_it_was(tmp_path):
    process = run_rank(tmp_path, "print('up', flush=True)\nprint(input())")
    process.stdout.readline()
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGCONT)
    assert ask(tmp_path, 3, "ping") == {"local_rank": 1}
    out, _ = process.communicate("trained\n", timeout=20)
    assert (process.returncode, out) == (0, "trained\n")


def test_the_folder_of_an_agent_that_was_killed_goes_with_the_last_rank(tmp_path):
    """No lock is held on ``agent.lock``: nobody else would take the folder away."""
    code = """
        import eroica, os
        from eroica.collect import hook
        folder = os.path.dirname(hook._ring.path)
        open(os.path.join(folder, "agent.lock"), "w").close()
        print(folder)
    """
    root = Path(__file__).parents[1]
    environment = {"EROICA_RUN": None, "EROICA_AGENT": "0", "PYTHONPATH": str(root)}
    returned, out, err = finish(run_rank(tmp_path, code, **environment))
    assert (returned, err) == (0, "")
    assert out.strip() and not Path(out.strip()).exists()


def test_samples_from_inside_tell_work_from_waiting(tmp_path):
    code = """
        import sys, threading, time
        def burn():
            while not done: sum(range(1000))
        def rest():
            while not done: time.sleep(0.01)
        done = []
        threads = [threading.Thread(target=f, name=f.__name__, daemon=True) for f in (burn, rest)]
        for thread in threads: thread.start()
        print("up", flush=True)
        input()
        done.append(1)
        for thread in threads: thread.join()
    """
    from eroica.watch.sampling import parse_raw

    process = run_rank(tmp_path, code)
    process.stdout.readline()
    path = tmp_path / "inside.raw"
    ask(tmp_path, 3, "sample", path=str(path), hz=50, seconds=30)
    time.sleep(1.5)
    ask(tmp_path, 3, "sample_stop", limit_s=5)
    counts = {}
    for end in ("", ".active"):
        for stack in parse_raw(Path(str(path) + end).read_text(), process.pid):
            counts[stack.thread, end] = counts.get((stack.thread, end), 0) + stack.count
    assert finish(process)[0] == 0
    assert counts["burn", ""] == pytest.approx(counts["rest", ""], abs=3)
    assert counts["burn", ".active"] > 3 * counts.get(("rest", ".active"), 0)
    assert counts["rest", ""] > 20


def test_the_profile_of_a_rank_that_ends_is_written_by_itself(tmp_path):
    process = run_rank(tmp_path, "print('up', flush=True)\ninput()")
    process.stdout.readline()
    path = tmp_path / "inside.raw"
    ask(tmp_path, 3, "sample", path=str(path), hz=50, seconds=30)
    time.sleep(0.3)
    start = time.monotonic()
    assert finish(process)[0] == 0
    assert time.monotonic() - start < 5
    assert "MainThread" in path.read_text()
    assert read_ending(tmp_path, 3)["clean"]


def test_one_look_from_inside_has_the_form_of_py_spys(tmp_path):
    from eroica.collect.gather import StackSample
    from eroica.watch.evidence import read_stack_sample

    process = run_rank(tmp_path, "def wait():\n    input()\nprint('up', flush=True)\nwait()")
    process.stdout.readline()
    time.sleep(0.2)
    threads = ask(tmp_path, 3, "threads")
    finish(process)
    stacks = read_stack_sample(StackSample(process.pid, None, "", 0, threads), 3)
    (main,) = stacks.threads  # the hook's own threads are not the job's
    assert main.is_main and main.os_thread_id == process.pid
    assert [(frame.name, frame.line) for frame in main.frames] == [("wait", 2), ("<module>", 4)]
