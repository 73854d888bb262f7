"""What goes wrong around a rank: text that is no text, files that are gone, no descriptors left."""

import json
import os
import socket
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from make_kernel import FakeKernel
from make_rank import finish, run_rank

from eroica.collect import cgroups, counters, proc, processes, spy
from eroica.collect.asking import NoAnswer, ask
from eroica.collect.gather import LiveRank, RankCapture, read_what_is_left, signal_stacks
from eroica.collect.hardware import HardwareSampler
from eroica.collect.hook import facts, folder, probes, window
from eroica.records import Setting
from eroica.watch.evidence import build, build_rank


@pytest.fixture
def host(tmp_path):
    return FakeKernel(tmp_path)


# --- the kernel's files -----------------------------------------------------------------------


def test_a_process_whose_name_is_cut_within_a_character_is_read(host):
    host.process(7, faults=3)
    host.thread(7, 7, cpu_ns=10, wait_ns=20)
    stat = host.proc / "7/stat"
    stat.write_bytes(stat.read_bytes().replace(b"(python)", b"(\xe8\xae\xad\xe7\xbb)"))
    assert counters.RankSource(host.kernel, 7).read() == (10.0, 20.0, 3.0, 1.0)
    stat.write_bytes(b"")
    assert len(counters.RankSource(host.kernel, 7).read()) == 4


@pytest.mark.parametrize("text", [b"0::/caf\xe9/x\n", b"nonsense\n", b"\n:\n", b""])
def test_control_groups_of_any_name_are_read(host, text):
    host.process(7)
    (host.proc / "7/cgroup").write_bytes(text)
    assert cgroups.cpu_folder(host.kernel, 7) is None
    with pytest.raises(FileNotFoundError, match="no CPU quota"):
        cgroups.cpu_quota_source(host.kernel, 7)


def test_a_control_group_that_may_not_be_looked_into_costs_that_counter_only(host, monkeypatch):
    def refuse(kernel, pid):
        raise PermissionError(13, "Permission denied", "/sys/fs/cgroup/x")

    monkeypatch.setattr(cgroups, "cpu_folder", refuse)
    host.process(7)
    host.thread(7, 7, cpu_ns=10, wait_ns=20)
    sampler = HardwareSampler(kernel=host.kernel, open_gpus=no_gpus)
    sampler.watch(0, 7, 7)
    for second in range(4):
        sampler.turn(second * 10**9)
    assert "rank.cpu" in sampler.uses(0)
    sampler.close()


def no_gpus():
    from eroica.collect.nvml import NoGpus

    raise NoGpus("GPU counters: none here")


def test_what_is_missing_is_said_once_however_often_ranks_start_again(host):
    sampler = HardwareSampler(kernel=host.kernel, open_gpus=no_gpus)
    for _ in range(50):
        sampler.watch(0, 7, 7)
        sampler.watch(0, 8, 8)
        sampler.turn(0)
    said = sampler.problems
    assert len(said) == len(set(said))
    assert len([text for text in said if "rank 0" in text]) == 2  # of either pid
    sampler.close()


def test_ten_thousand_children_are_found_in_no_time():
    stats = {
        pid: proc.Stat(pid, "x", "S", 1 if pid < 100 else 50, 0, 0, 0) for pid in range(2, 20_002)
    }
    started = time.process_time()
    found = proc.descendants(1, stats)
    assert time.process_time() - started < 1.0  # minutes where each is looked for in a list
    assert found[:3] == [2, 3, 4] and len(found) == 20_000


# --- what ranks write -------------------------------------------------------------------------


def test_text_that_is_no_utf_8_reaches_the_evidence_as_text(tmp_path):
    story = {
        "pid": 9,
        "error_type": "OSError",
        "message": "no such file: '\udce9t\udce9.txt', \U0001f600",
        "frames": [{"name": "f", "file": "/home/\udce9/train.py", "line": 1}],
    }
    facts_told = [{"key": "env.NCCL_X", "value": {"\udcff": ["\udcff"]}, "places": []}]
    (tmp_path / "rank-00000.exit.json").write_text(json.dumps(story))
    (tmp_path / "rank-00000.facts.json").write_text(json.dumps(facts_told))
    capture = RankCapture(0, 9)
    read_what_is_left(capture, tmp_path)
    evidence = build([build_rank(capture)], world_size=1)
    from eroica.incident import compact

    text = compact(evidence)
    assert b"no such file: '?t?.txt', \xf0\x9f\x98\x80" in text
    (setting,) = evidence.ranks[0].settings
    assert setting == Setting(key="env.NCCL_X", value={"?": ["?"]})


def test_a_ring_of_another_version_gives_no_stacks_and_no_fault(tmp_path):
    (tmp_path / "rank-00000.ring").write_bytes(b"\0" * 200_000)
    assert signal_stacks(str(tmp_path), LiveRank(0, os.getpid())) == ""
    (tmp_path / "rank-00000.ring").write_bytes(b"")
    assert signal_stacks(str(tmp_path), LiveRank(0, os.getpid())) == ""


def test_an_error_that_cannot_say_what_it_is_ends_a_rank_all_the_same(tmp_path):
    code = """
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")
    raise Mute()
    """
    returned, _, _ = finish(run_rank(tmp_path, code))
    story = json.loads((tmp_path / "rank-00003.exit.json").read_text())
    assert (returned, story["clean"], story["error_type"]) == (1, False, "Mute")
    assert "RuntimeError" in story["message"]


def test_a_rank_without_descriptors_for_a_while_answers_again(tmp_path):
    code = """
    import os, resource, time
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = max(map(int, os.listdir("/proc/self/fd")))
    print("up", flush=True)
    input()
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        print("none left", flush=True)
    input()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print("again", flush=True)
    input()
    """
    process = run_rank(tmp_path, code)

    assert process.stdout.readline() == "up\n"
    assert ask(tmp_path, 3, "ping")
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "none left\n"
    ask(tmp_path, 3, "ping")  # the kernel took a descriptor for it when it began to wait
    with pytest.raises(NoAnswer):
        ask(tmp_path, 3, "ping", limit_s=0.3)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "again\n"
    assert ask(tmp_path, 3, "ping", limit_s=5.0) == {"local_rank": 1}
    code, _, err = finish(process)
    assert code == 0
    assert err.count("eroica:") == 1 and "Too many open files" in err


def test_a_dataset_that_cannot_tell_its_length_is_noted_all_the_same():
    class Stream:
        def __len__(self):
            raise TypeError("a stream has no length")

    class Loader:
        dataset = Stream()
        num_workers = 3

    value = probes._loader_value(Loader())
    assert (value["dataset_len"], value["num_workers"], value["dataset"]) == (None, 3, "Stream")


def test_a_profiler_of_the_jobs_that_did_not_start_is_none_at_work(tmp_path):
    class Profile:
        def _prepare_trace(self):
            raise RuntimeError("another profiler is at work")

        def _start_trace(self):
            raise AssertionError

        def __exit__(self, *args):
            return None

    module = ModuleType("profiler")
    module.profile = Profile
    windows = window.Windows(None, str(tmp_path))
    windows._watch(module)
    with pytest.raises(RuntimeError, match="another profiler"):
        Profile()._prepare_trace()
    assert windows._user_live == {}


def test_settings_of_the_environment_are_told_and_secrets_are_not(monkeypatch):
    given = {
        "TOKENIZERS_PARALLELISM": "true",
        "NCCL_DEBUG": "INFO",
        "TORCH_API_KEY": "secret",
        "NCCL_TOKEN": "secret",
        "PYTHONPATH": "/x",
        "HOME": "/home/x",
    }
    monkeypatch.setattr(facts.os, "environ", given)
    told = {}
    facts._environment(lambda key, value: told.update({key: value}))
    assert told == {
        "env.TOKENIZERS_PARALLELISM": "true",
        "env.NCCL_DEBUG": "INFO",
        "env.PYTHONPATH": "/x",
    }


# --- containers that share /dev/shm -----------------------------------------------------------


@pytest.fixture
def base(tmp_path, monkeypatch):
    """The folder of this user's jobs, with one whose ranks' pids mean nothing here."""
    monkeypatch.setattr(folder, "_base", lambda: str(tmp_path))
    laid = tmp_path / "job-other"
    laid.mkdir()
    (laid / "pid-999999999").write_text("pid:[1]")
    return tmp_path


def test_the_job_of_another_container_is_not_swept_away(base):
    folder.sweep()
    assert (base / "job-other").exists()
    mark = base / "job-other" / "pid-999999999"
    long_ago = time.time() - 31 * 86400
    os.utime(mark, (long_ago, long_ago))
    folder.sweep()
    assert not (base / "job-other").exists()


def test_ranks_that_are_gone_here_are_swept_away_and_living_ones_are_not(base):
    (base / "job-gone").mkdir()
    (base / "job-gone" / "pid-999999999").write_text(folder.pid_namespace())
    (base / "job-old").mkdir()
    (base / "job-old" / "pid-999999999").touch()
    (base / "job-own").mkdir()
    folder.mark_pid(str(base / "job-own"))
    folder.sweep()
    assert sorted(path.name for path in base.iterdir()) == ["job-other", "job-own"]


def test_jobs_of_two_containers_meet_in_folders_of_their_own(monkeypatch):
    one = folder.job_key()
    assert one == folder.job_key()
    monkeypatch.setattr(folder, "pid_namespace", lambda: "pid:[1]")
    assert folder.job_key() != one


def test_a_pid_of_another_container_is_no_rank_of_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(processes.tempfile, "gettempdir", lambda: str(tmp_path))
    laid = tmp_path / f"eroica-{os.getuid()}" / "job-x"
    laid.mkdir(parents=True, mode=0o700)
    laid.parent.chmod(0o700)
    (laid / "pid-999999998").write_text("pid:[1]")
    assert processes.find_folder_of(999999998) is None
    (laid / "pid-999999998").write_text(folder.pid_namespace())
    assert processes.find_folder_of(999999998) == str(laid)


# --- py-spy -----------------------------------------------------------------------------------


def test_processes_that_cannot_be_read_cost_one_limit_together(tmp_path, monkeypatch):
    stub = tmp_path / "py-spy"
    stub.write_text("#!/bin/sh\nexec sleep 30\n")
    stub.chmod(0o755)
    monkeypatch.setattr(spy, "find_spy", lambda: str(stub))
    started = time.monotonic()
    found = spy.dump_all([1, 2, 3, 4], limit_s=0.8)
    assert time.monotonic() - started < 2.5
    assert found == {pid: f"py-spy did not finish within 0.8 s on pid {pid}" for pid in range(1, 5)}


def test_a_recording_leaves_no_file(tmp_path, monkeypatch):
    stub = tmp_path / "py-spy"
    write = "open(sys.argv[sys.argv.index('--output') + 1], 'w').write('x 1')"
    stub.write_text(f"#!{sys.executable}\nimport sys\n{write}\n")
    stub.chmod(0o755)
    monkeypatch.setattr(spy, "find_spy", lambda: str(stub))
    recording = spy.Recording(os.getpid(), tmp_path / "all.raw")
    recording._process.wait(20)
    assert recording.stop() == "x 1"
    assert not Path(tmp_path / "all.raw").exists()
    assert recording.stop() == ""


def test_an_agent_that_waits_no_more_is_nothing_to_tell_the_user(tmp_path):
    process = run_rank(tmp_path, "print('up', flush=True)\ninput()")
    assert process.stdout.readline() == "up\n"
    ask(tmp_path, 3, "sample", path=str(tmp_path / "x.raw"), hz=10, seconds=30)
    with socket.socket(socket.AF_UNIX) as gone:
        gone.connect(str(tmp_path / "rank-00003.sock"))
        gone.sendall(b'{"do": "threads"}\n')
        gone.shutdown(socket.SHUT_RD)
    assert ask(tmp_path, 3, "ping", limit_s=10.0)
    code, _, err = finish(process)
    assert (code, err) == (0, "")
