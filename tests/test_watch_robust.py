"""Whatever goes wrong around a watched job, its result and exit code are those without us."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from make_jobs import Job, wait_for

from eroica.collect import spy
from eroica.collect.hook import layout
from eroica.collect.rings import RingReader, find_rings
from eroica.config import Parameters
from eroica.errors import EroicaError
from eroica.localize import localize_stuck
from eroica.watch import agent as agents
from eroica.watch.continuous import Continuous
from eroica.watch.run import watch

pytestmark = [pytest.mark.job, pytest.mark.timeout(120)]
pytest.importorskip("torch")

# Of use where a job is stuck; elsewhere a busy machine would make others so.
QUICK = Parameters(stuck_min_s=2.0)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What a job of 200 steps gives without eroica; ranks that train on the same agree exactly."""
    plain = Job(tmp_path_factory.mktemp("plain"), pause=0)
    assert plain.start().wait(60) == 0
    (result,) = plain.results.values()
    return lambda job: dict.fromkeys(range(job.ranks), result)


@pytest.fixture
def as_rank(monkeypatch):
    """Have what this process starts be rank 0 of 1."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


def watch_on(job, **options):
    """Watch the job to its own end; the result, the incidents and what was said."""
    incidents, said = [], []
    result = watch(
        job.command,
        once=False,
        source_root=str(job.folder),
        on_incident=options.pop("on_incident", incidents.append),
        progress=said.append,
        **options,
    )
    return result, incidents, said


def bare_job(tmp_path, code):
    """A job without torch: what happens to the process itself needs no training."""
    job = Job(tmp_path / "job")
    text = job.script.read_text()
    head = text[: text.index("torch.manual_seed")]
    job.script.write_text(head.replace("import torch", "# import torch") + code + "\n")
    return job


def rings_of(folder):
    return [reader for reader in map(_open, find_rings(Path(folder)).values()) if reader]


def _open(path):
    try:
        return RingReader(path)
    except (OSError, ValueError):
        return None


# --- the agent --------------------------------------------------------------------------------


def test_an_agent_killed_in_mid_window_leaves_the_job_alone(tmp_path, expected):
    folder = tmp_path / "folder.txt"
    job = Job(tmp_path / "job", f"say({str(folder)!r}, os.environ['EROICA_RUN'])\n")
    agent = job.start_under_eroica()
    wait_for(lambda: folder.exists() and folder.read_text())
    (ring,) = wait_for(lambda: rings_of(folder.read_text()))
    wait_for(lambda: ring.count(layout.W_WINDOW))
    agent.kill()
    agent.wait()
    wait_for(lambda: job.results)
    assert job.results == expected(job)
    assert job.left() == {}
    assert ring.is_exiting
    ring.close()


def test_a_killed_watch_for_one_verdict_takes_its_job_along(tmp_path):
    """The job was to be ended anyway, and its output has no reader any more."""
    job = bare_job(tmp_path, "say('up'); time.sleep(60)")
    agent = job.start_under_eroica("--once")
    wait_for((job.folder / "up").exists)
    agent.kill()
    agent.wait()
    assert job.left(20) == {}


def test_an_agent_that_a_rank_started_may_be_killed(tmp_path, expected):
    """``import eroica`` in the script: the agent is a process of its own from then on."""
    place = "from eroica.collect import hook; say('folder', os.path.dirname(hook._ring.path))"
    job = Job(tmp_path / "job", f"import eroica; {place}", pause=0.02)
    root = str(Path(__file__).parents[1])
    running = job.start(env=job.environment | {"PYTHONPATH": root})
    wait_for((job.folder / "folder").exists)
    folder = (job.folder / "folder").read_text()
    (pid,) = wait_for(lambda: agents_of(folder))
    wait_for(lambda: (Path(folder) / "agent.lock").exists())
    os.kill(pid, signal.SIGKILL)
    assert running.wait(60) == 0
    assert job.results == expected(job)
    assert not Path(folder).exists()
    assert agents_of(folder) == []


def agents_of(folder):
    from eroica.collect import proc

    commands = {pid: proc.read_command(pid) for pid in proc.all_stats()}
    return [
        pid for pid, words in commands.items() if "eroica.watch.agent" in words and folder in words
    ]


def test_faults_of_the_watch_end_neither_the_job_nor_its_exit_code(tmp_path, as_rank, monkeypatch):
    def fail(self, now):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(Continuous, "turn", fail)
    job = bare_job(tmp_path, "time.sleep(1.5); say('result-0'); sys.exit(9)")
    result, _, said = watch_on(job)
    assert (result.exit_code, list(job.results)) == (9, [0])
    assert any("watching is off" in text and "a fault of ours" in text for text in said)


def test_where_no_folder_can_be_made_the_job_runs_unwatched(tmp_path, as_rank, monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(agents, "make_folder", full)
    job = bare_job(tmp_path, "say('result-0'); sys.exit(9)")
    result, _, said = watch_on(job)
    assert (result.exit_code, result.evidence.ranks, list(job.results)) == (9, (), [0])
    assert any("No space left" in text for text in said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_reach_the_job_and_its_exit_code_comes_back(tmp_path, number):
    handler = f"signal.signal({int(number)}, lambda *_: sys.exit(42))"
    job = bare_job(tmp_path, f"{handler}; say('up'); time.sleep(60)")
    # A session of its own: no terminal that would bring Ctrl-C to the job by itself.
    running = job.start_under_eroica(start_new_session=True)
    wait_for((job.folder / "up").exists)
    running.send_signal(number)
    assert running.wait(20) == 42


# --- files ------------------------------------------------------------------------------------


def test_a_folder_deleted_in_mid_run_costs_the_job_nothing(tmp_path, expected, as_rank):
    extra = """
    import shutil
    each = lambda i: i == 60 and shutil.rmtree(os.environ["EROICA_RUN"])
    """
    job = Job(tmp_path / "job", extra)
    result, incidents, _ = watch_on(job)
    assert (result.exit_code, result.hint, incidents) == (0, "healthy", [])
    assert job.results == expected(job)
    assert job.left() == {}


def test_a_full_disk_costs_the_job_nothing(tmp_path, expected):
    """No file may grow over 16 KB: no ring, no trace, no incident of any size."""
    limit = "import os, resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))\n"
    limited = [sys.executable, "-c", limit + "os.execv(sys.argv[1], sys.argv[1:])"]
    job = Job(tmp_path / "job")
    done = job.start(*limited, sys.executable, "-B", "-m", "eroica", "run", "--", stderr=-1)
    _, err = done.communicate(timeout=90)
    assert done.returncode == 0
    assert job.results == expected(job)
    assert b"rank 0: attach is off" in err
    assert job.left() == {}


# --- rights -----------------------------------------------------------------------------------


REFUSED = "#!/bin/sh\necho 'Error: Permission denied (os error 13)' >&2\nexit 1\n"


def test_without_the_right_to_trace_the_rank_looks_at_itself(
    tmp_path, expected, as_rank, monkeypatch
):
    stub = tmp_path / "py-spy"
    stub.write_text(REFUSED)
    stub.chmod(0o755)
    monkeypatch.setattr(spy, "find_spy", lambda: str(stub))
    job = Job(tmp_path / "job")
    result = watch(job.command, once=True, source_root=str(job.folder), output=sys.stderr.buffer)
    assert (result.hint, result.exit_code) == ("healthy", 0)
    assert job.results == expected(job)
    (rank,) = result.evidence.ranks
    assert rank.samples.num_samples > 20
    names = {frame.name for stack in rank.samples.stacks for frame in stack.frames}
    assert {"train", "main"} <= names
    warnings = [warning.what for warning in result.evidence.warnings]
    said = [text for text in warnings if "CAP_SYS_PTRACE" in text]
    assert len(said) == 1 and "sampled from inside" in said[0]
    assert [pattern.rank for pattern in result.patterns] == [0]


# --- ranks ------------------------------------------------------------------------------------


def test_a_rank_that_is_killed_ends_the_job_as_without_us(tmp_path):
    extra = "each = lambda i: i == 60 and rank == 1 and os.kill(os.getpid(), signal.SIGKILL)"
    job = Job(tmp_path / "job", extra, steps=100_000, ranks=2)
    result, incidents, _ = watch_on(job)
    assert result.exit_code == 1  # torchrun's, whenever a rank failed
    failed = [incident for incident in incidents if incident.hint == "failed"]
    assert len(failed) == 1
    assert how_ended(failed[0].evidence.ranks[1]) in ("SIGKILL", None)
    assert failed[0].evidence.ranks[1].exit is not None  # be it without a word
    assert job.left() == {}


def test_a_stopped_rank_is_named_and_goes_on_when_it_is_continued(tmp_path, expected, as_rank):
    extra = "each = lambda i: i == 60 and os.kill(os.getpid(), signal.SIGSTOP)"
    job = Job(tmp_path / "job", extra)
    incidents = []

    def continue_it(incident):
        incidents.append(incident)
        os.kill(incident.evidence.ranks[0].pid, signal.SIGCONT)

    result, _, said = watch_on(job, on_incident=continue_it, parameters=QUICK)
    assert (result.exit_code, result.hint) == (0, "healthy")
    assert job.results == expected(job)
    assert [incident.hint for incident in incidents] == ["stuck"]
    cause = localize_stuck(incidents[0].evidence).causes[0]
    assert cause.ranks == (0,)
    assert "stopped by a signal" in cause.summary and "kill -CONT" in str(cause)
    assert "steps come again" in said
    assert job.left() == {}


def how_ended(rank):
    """The signal; None where the launcher collected the process, and its code, before we looked."""
    return rank.exit.signal if rank.exit is not None else None


RESTART = """
each = lambda i: (
    i == 60 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and FAIL
)
"""


@pytest.fixture
def own_stores(monkeypatch):
    """Each generation its own store: in one that is shared, gloo reads the dead ones' addresses."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


def restarting_job(tmp_path, fail):
    extra = RESTART.replace("FAIL", fail)
    return Job(tmp_path / "job", extra, ranks=2, options=["--max-restarts=1"])


def test_restarted_ranks_are_followed_and_what_failed_is_told(tmp_path, expected, own_stores):
    job = restarting_job(tmp_path, "1 / 0")
    result, incidents, said = watch_on(job)
    assert result.exit_code == 0
    assert job.results == expected(job)
    assert [incident.hint for incident in incidents] == ["failed"]
    assert incidents[0].evidence.ranks[1].exit.error_type == "ZeroDivisionError"
    assert "ranks were started again" in said
    # The ranks that are told of at the end are the second ones: they took every step.
    assert [len(rank.steps.start_ns) for rank in result.evidence.ranks] == [199, 199]
    assert job.left() == {}


def test_a_first_generation_that_failed_is_the_verdict_of_one_watch(tmp_path):
    job = restarting_job(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    result = watch(job.command, once=True, output=sys.stderr.buffer)
    assert result.hint == "failed"
    assert how_ended(result.evidence.ranks[1]) in ("SIGKILL", None)
    assert job.left() == {}


# --- stores, profilers, workers ---------------------------------------------------------------


STORE = """
SERVER = '''
import sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True)
print(store.port, flush=True)
time.sleep(600)
'''
server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
store = dist.TCPStore("127.0.0.1", int(server.stdout.readline()), is_master=False)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(model)
def wait():
    try:
        store.get("a key that nobody sets")
    except Exception as error:
        say("thread", type(error).__name__)
thread = threading.Thread(target=wait, daemon=True)
thread.start()
def each(i):
    if i == 120:
        server.kill()
        server.wait()
"""


def test_neither_a_blocked_store_client_nor_a_lost_store_keeps_us_from_looking(
    tmp_path, expected, as_rank
):
    job = Job(tmp_path / "job", STORE)
    result = watch(job.command, once=True, source_root=str(job.folder), output=sys.stderr.buffer)
    assert (result.hint, result.exit_code) == ("healthy", 0)
    assert job.results == expected(job)
    assert (job.folder / "thread").exists()  # it was blocked until the store went
    assert [pattern.is_sampled for pattern in result.patterns] == [False]
    assert result.evidence.ranks[0].flight.entries
    assert job.left() == {}


PROFILER = """
from torch.profiler import ProfilerActivity, profile
started = []
def each(i):
    if is_window_open() and not started:
        started.append(profile(activities=[ProfilerActivity.CPU]))
        started[0].__enter__()
        started.append(i)
    if len(started) == 2 and i == started[1] + 5:
        started[0].__exit__(None, None, None)
        names = {event.name for event in started[0].events()}
        say("profiled", str("aten::addmm" in names and not is_window_open()))
        started.append(None)
"""


def test_a_profiler_of_the_jobs_that_starts_in_our_window_ends_it(tmp_path, expected, as_rank):
    job = Job(tmp_path / "job", PROFILER, pause=0.03)
    result = watch(job.command, once=True, source_root=str(job.folder), output=sys.stderr.buffer)
    assert (result.hint, result.exit_code) == ("healthy", 0)
    assert (job.folder / "profiled").read_text() == "True"
    assert job.results == expected(job)


def test_the_hook_brought_twice_is_one(tmp_path, expected, as_rank):
    root = str(Path(__file__).parents[1])
    extra = f"""
    sys.path.insert(0, {root!r})
    import eroica
    say("files", str(os.listdir(os.environ["EROICA_RUN"])))
    """
    job = Job(tmp_path / "job", extra)
    result, _, _ = watch_on(job)
    assert result.exit_code == 0
    assert job.results == expected(job)
    (rank,) = result.evidence.ranks
    assert len(rank.steps.start_ns) == 199
    assert "start.lock" not in (job.folder / "files").read_text()  # no second agent


WORKERS = """
from torch.utils.data import DataLoader
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, i): return torch.ones(4) * i
def read(context):
    own = torch.Generator()  # else the loader draws from the one that the training draws from
    workers = 2 if context == "fork" else 1  # each that is spawned imports torch
    loader = DataLoader(
        Rows(), num_workers=workers, multiprocessing_context=context, batch_size=4, generator=own
    )
    return sum(float(batch.sum()) for batch in loader)
def each(i):
    if i in (50, 100):
        total = read("fork" if i == 50 else "spawn")
        marks = [n for n in os.listdir(os.environ["EROICA_RUN"]) if n.startswith("pid-")]
        say(f"workers-{i}", f"{total} {len(marks)}")
"""


def test_forked_and_spawned_workers_are_no_ranks(tmp_path, expected, as_rank):
    job = Job(tmp_path / "job", WORKERS)
    result, incidents, _ = watch_on(job)
    assert (result.exit_code, incidents) == (0, [])
    for number in (50, 100):
        assert (job.folder / f"workers-{number}").read_text() == "3120.0 1"
    assert job.results == expected(job)
    (rank,) = result.evidence.ranks
    assert len(rank.steps.start_ns) == 199
    assert job.left() == {}


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(5)", 5), ("os._exit(6)", 6)],
    ids=["exit", "at once"],
)
def test_python_may_end_in_the_middle_of_a_window(tmp_path, as_rank, end, code):
    extra = f"""
    def each(i):
        if is_window_open():
            say("ended", str(time.time()))
            {end}
    """
    job = Job(tmp_path / "job", extra, steps=2000)
    result, incidents, _ = watch_on(job)
    assert result.exit_code == code
    took = time.time() - float((job.folder / "ended").read_text())
    assert took < 15
    assert [incident.hint for incident in incidents] in ([], ["failed"])
    assert job.left() == {}


def test_a_bad_command_is_still_bad_input(as_rank):
    with pytest.raises(EroicaError, match="cannot start"):
        watch(["/nonexistent/program"], once=False)
