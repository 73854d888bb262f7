"""Evidence from other hosts through a launcher: what comes is a stranger's data."""

import base64
import io
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tarfile

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica import gathering
from eroica.errors import InputError
from eroica.incident import compact
from eroica.records import JobEvidence, ProcessStacks, RankEvidence, ThreadStack
from eroica.watch.launching import collect_elsewhere
from eroica.watch.streaming import Receiver, lines_of, plain, refusal_line, unpack


def host_folder(tmp_path, host, *ranks, world_size=4):
    stack = ProcessStacks(threads=(ThreadStack(frames=(), is_main=True),))
    evidence = JobEvidence(
        ranks=tuple(RankEvidence(rank=rank, host=host, stacks=(stack,)) for rank in ranks),
        world_size=world_size,
    )
    folder = tmp_path / "sent" / f"host-{host}"
    folder.mkdir(parents=True)
    (folder / "evidence.json").write_bytes(compact(evidence))
    return folder


def launcher(tmp_path, name, lines, *, code=0, error=""):
    """A program that stands for ssh or srun: it prints and ends, whatever it is told to run."""
    (tmp_path / f"{name}.out").write_bytes(b"".join(lines))
    path = tmp_path / f"{name}.py"
    path.write_text(
        "import sys\n"
        f"sys.stdout.buffer.write(open({str(tmp_path / (name + '.out'))!r}, 'rb').read())\n"
        f"sys.stderr.write({error!r})\n"
        f"open({str(tmp_path / (name + '.argv'))!r}, 'w').write(repr(sys.argv[1:]))\n"
        f"sys.exit({code})\n"
    )
    return [sys.executable, str(path)]


def test_what_several_tasks_of_one_launcher_send_is_put_together(tmp_path):
    one = list(lines_of(host_folder(tmp_path, "a", 0, 1), "a-1"))
    two = list(lines_of(host_folder(tmp_path, "b", 2, 3), "b-1"))
    mixed = [b"Welcome to host a\n"]
    for number in range(max(len(one), len(two))):
        mixed += [b"0: " + line for line in one[number : number + 1]]
        mixed += [b"1: " + line for line in two[number : number + 1]]
    assert max(map(len, one)) < 1024
    words = launcher(tmp_path, "srun", mixed)
    said = collect_elsewhere(tmp_path / "out", [words], remote=["python", "-m", "eroica"])
    assert "ranks 0-3 of 4 from a, b" in said
    argv = (tmp_path / "srun.argv").read_text()
    assert argv == "['python', '-m', 'eroica', 'collect', '-o', '-']"
    found = gathering.from_paths([tmp_path / "out"])
    assert [rank.rank for rank in found.evidence.ranks] == [0, 1, 2, 3]


def test_a_host_that_sends_nothing_is_named_and_the_rest_is_kept(tmp_path):
    good = launcher(tmp_path, "one", lines_of(host_folder(tmp_path, "a", 0, 1), "a-1"))
    bad = launcher(
        tmp_path, "two", [refusal_line("no training job found on this host", "b-1")], code=2
    )
    dead = launcher(tmp_path, "three", [], code=255, error="ssh: connect to host c: timed out\n")
    said = collect_elsewhere(tmp_path / "out", [good, bad, dead])
    assert "ranks 0-1 of 4 from a; nothing came of ranks 2-3" in said
    found = gathering.from_paths([tmp_path / "out"])
    told = " ".join(warning.what for warning in found.evidence.warnings)
    assert "b: no training job found on this host" in told
    assert "connect to host c: timed out" in told
    assert found.evidence.world_size == 4


def test_nothing_at_all_is_an_error_with_the_launchers_words(tmp_path):
    dead = launcher(tmp_path, "ssh", [], code=255, error="Permission denied (publickey).\n")
    with pytest.raises(InputError, match="Permission denied"):
        collect_elsewhere(tmp_path / "out", [dead])
    with pytest.raises(InputError, match="cannot be started"):
        collect_elsewhere(tmp_path / "out", [["/nonexistent/srun"]])


def test_a_launcher_that_hangs_is_ended(tmp_path):
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(InputError, match=r"took more than 0\.5 s"):
        collect_elsewhere(tmp_path / "out", [words], limit_s=0.5)


def test_torn_evidence_is_told_and_not_used(tmp_path):
    lines = list(lines_of(host_folder(tmp_path, "a", 0), "a-1"))
    receiver = Receiver()
    for line in [*lines[:0], *lines[1:]]:
        receiver.take(line)
    assert receiver.unpack(tmp_path / "out") == []
    assert "came torn" in receiver.problems[0]


@given(st.binary(max_size=300))
def test_any_line_is_taken_or_left(line):
    receiver = Receiver()
    receiver.take(line)
    receiver.take(b"eroica1:" + line)


def tar_of(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data, kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = len(data) if kind == tarfile.REGTYPE else 0
            info.linkname = "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("host-a/../../evil", b"x", tarfile.REGTYPE)],
        [("/etc/evil", b"x", tarfile.REGTYPE)],
        [("../evil", b"x", tarfile.REGTYPE)],
        [("host-a/link", b"", tarfile.SYMTYPE)],
        [("host-a/link", b"", tarfile.LNKTYPE)],
        [("host-a/pipe", b"", tarfile.FIFOTYPE)],
        [("host-a/.hidden", b"x", tarfile.REGTYPE)],
        [("elsewhere/file", b"x", tarfile.REGTYPE)],
        [("host-a", b"x", tarfile.REGTYPE)],
        [("host-a/x", b"x", tarfile.REGTYPE), ("host-b/x", b"x", tarfile.REGTYPE)],
        [("host-a/b/c/d/e", b"x", tarfile.REGTYPE)],
    ],
)
def test_a_tar_with_anything_but_plain_files_is_refused(tmp_path, members):
    with pytest.raises(InputError):
        unpack(tar_of(*members), tmp_path / "out")
    assert not (tmp_path / "evil").exists()
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]


def test_a_tar_of_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("eroica.watch.streaming._MAX_FILES_BYTES", 1000)
    with pytest.raises(InputError, match="too many files or bytes"):
        unpack(tar_of(("host-a/x", b"0" * 2000, tarfile.REGTYPE)), tmp_path / "out")
    with pytest.raises(InputError, match="cannot be unpacked"):
        unpack(b"no tar", tmp_path / "out")


def test_a_link_in_the_place_of_a_file_is_replaced_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "out" / "host-a").mkdir(parents=True)
    (tmp_path / "out" / "host-a" / "x").symlink_to(victim)
    unpack(tar_of(("host-a/x", b"new", tarfile.REGTYPE)), tmp_path / "out")
    assert victim.read_text() == "mine"
    assert (tmp_path / "out" / "host-a" / "x").read_text() == "new"


@given(st.text(max_size=60))
def test_a_hosts_name_is_plain_in_a_path(name):
    assert "/" not in plain(name) and not plain(name).startswith(".")


def test_a_reason_goes_through_as_text():
    receiver = Receiver()
    receiver.take(refusal_line("no job\nhere", "host-1"))
    assert base64.b64encode(b"no job\nhere") in refusal_line("no job\nhere", "host-1")
    assert receiver.unpack(None) == []
    assert json.dumps(receiver.problems) == '["host: no job\\nhere"]'
    assert msgspec.json.encode(receiver.problems)


# --- the real command behind a launcher


@pytest.fixture
def ranks(tmp_path):
    """Two processes that look like ranks and wait."""
    script = tmp_path / "wait.py"
    script.write_text("import time\ndef waiting():\n    time.sleep(600)\nwaiting()\n")
    mark = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": secrets.token_hex(4)}
    started = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env=os.environ | mark | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def namespace():
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed")
    name = f"eroica-{secrets.token_hex(3)}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        pytest.skip("network namespaces are not permitted here")
    yield name
    subprocess.run(["ip", "netns", "del", name], check=True)


def collect(out, ranks, launch):
    remote = shlex.join([sys.executable, "-m", "eroica"])
    words = ["collect", "-o", str(out), "--launch", launch, "--remote", remote]
    return subprocess.run(
        [sys.executable, "-m", "eroica", *words, "--pid", str(ranks[0].pid)],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.job
def test_the_command_itself_goes_through_a_launcher(tmp_path, ranks):
    done = collect(tmp_path / "out", ranks, "env EROICA_HOST=gpu-7")
    assert done.returncode == 0, done.stderr
    assert "ranks 0-1 of 4 from gpu-7; nothing came of ranks 2-3" in done.stdout
    found = gathering.from_paths([tmp_path / "out"]).evidence
    assert [(one.rank, one.host) for one in found.ranks] == [(0, "gpu-7"), (1, "gpu-7")]
    assert any(f.name == "waiting" for f in found.ranks[0].stacks[-1].threads[0].frames)


@pytest.mark.job
def test_the_command_itself_goes_through_a_network_namespace(tmp_path, ranks, namespace):
    done = collect(tmp_path / "out", ranks, f"ip netns exec {namespace}")
    assert done.returncode == 0, done.stderr
    assert "ranks 0-1 of 4" in done.stdout
