"""Progress, questions and long lines on a terminal; what a watched command's end becomes."""

import io
from pathlib import Path
from types import SimpleNamespace

import make_cli
import msgspec
import pytest
from make_cli import Shell
from make_patterns import make_patterns
from rich.console import Console

from eroica import gathering, pipeline
from eroica.commands import output
from eroica.commands.jobs import exit_status
from eroica.records import Diagnosis, JobEvidence
from eroica.report import terminal
from eroica.watch.continuous import Continuous
from eroica.watch.result import WatchResult


@pytest.fixture
def screen(monkeypatch):
    """A terminal 60 columns wide that keeps what is drawn on it."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=60, highlight=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output, "stderr", lambda: console)
    return stream


def test_progress_takes_any_text_as_text(screen):
    with output.progress() as show:
        show("streaming [/data/a] [bold]")
    assert "[/data/a] [bold]" in screen.getvalue()


def test_a_question_is_asked_with_the_spinner_away_and_it_comes_back(screen):
    with output.progress() as show:
        show("asking")
        assert output._spinner._live.is_started
        with output.asking():
            assert not output._spinner._live.is_started
        assert output._spinner._live.is_started
        output.clear_spinner()
        show("on")
        assert output._spinner._live.is_started
    assert output._spinner is None
    with output.asking():
        pass


def test_consent_is_asked_with_the_spinner_away(screen, monkeypatch):
    from eroica.commands.asking import may_send

    seen = []
    monkeypatch.setattr(output, "is_interactive", lambda: True)
    monkeypatch.delenv("EROICA_SEND_TO", raising=False)

    def confirm(*_, **__):
        seen.append(output._spinner._live.is_started)
        return True

    monkeypatch.setattr("typer.confirm", confirm)
    with output.progress() as show:
        show("asking openai:m for a patch")
        assert may_send("https://far.example/v1")
    assert seen == [False]


def test_a_long_path_stays_whole_on_a_terminal(monkeypatch):
    path = "/data/" + "a" * 90 + "/train.py"
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=60, highlight=False)
    terminal._labelled(console, "warning", f"{path}: it is not read because it is no trace")
    monkeypatch.setattr(output, "stdout", lambda: console)
    output.say(f"{path} written")
    assert stream.getvalue().count(path) == 2
    assert len(stream.getvalue().splitlines()) > 2, "words still wrap"


@pytest.mark.parametrize(("code", "status"), [(None, 0), (0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_a_commands_end_is_told_as_a_shell_tells_it(code, status):
    assert exit_status(code) == status


def test_a_failing_callback_does_not_end_the_watch(caplog):
    watch = Continuous.__new__(Continuous)
    watch.num_incidents, watch.looks = 0, SimpleNamespace(baseline=[])
    watch._position = lambda: 7
    watch.evidence = lambda *_: JobEvidence(ranks=(), world_size=1)
    watch.team = SimpleNamespace(
        call=lambda hint: None, join=lambda result, wait: result, resume=lambda: None
    )
    watch.job = SimpleNamespace(
        ranks={}, live_job=lambda: SimpleNamespace(host="node-a"), tick=lambda: None
    )
    watch.hardware = SimpleNamespace(for_folder=lambda *_: {})
    told = []

    def fail(result):
        told.append(result)
        raise OSError("disk full")

    watch.on_incident = fail
    watch._tell("stuck", None)
    assert [one.hint for one in told] == ["stuck"]
    assert "could not be told" in caplog.text and "disk full" in caplog.text


def test_the_healthy_time_of_a_watched_job_is_its_baseline(monkeypatch, tmp_path):
    healthy = list(make_patterns(2, ()))
    result = WatchResult(
        evidence=JobEvidence(ranks=(), world_size=2, symptom_hint="slow"),
        patterns=list(make_patterns(2, (0,))),
        baseline=healthy,
    )
    gathered = gathering.from_watch(result)
    seen = []
    localize = pipeline.localize

    def look(gathered, baseline, parameters):
        seen.append(baseline)
        return localize(gathered, baseline, parameters)

    monkeypatch.setattr(pipeline, "localize", look)
    pipeline.conclude(gathered, root=tmp_path)
    pipeline.conclude(gathered, baseline=healthy[:1], root=tmp_path)
    gathered.baseline = []
    pipeline.conclude(gathered, root=tmp_path)
    assert seen == [healthy, healthy[:1], None]


@pytest.fixture
def project(tmp_path):
    for name in ("train.py", "utils.py", "models/utils.py", "models/net.py", ".venv/x/io.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/srv/job/models/utils.py", "models/utils.py"),
        ("/srv/job/models/net.py", "models/net.py"),
        ("/srv/job/utils.py", "utils.py"),  # beside the script
        ("/elsewhere/utils.py", "/elsewhere/utils.py"),  # either of two
        ("/elsewhere/net.py", None),  # not where its path says
        ("/elsewhere/train.py", "train.py"),
        ("/opt/lib/python3.11/site-packages/models/utils.py", None),
        ("/opt/lib/python3.11/site-packages/a/train.py", None),
        ("/elsewhere/io.py", None),
        ("models/utils.py", None),
        (None, None),
    ],
)
def test_a_file_of_another_machine_is_found_by_the_end_of_its_path(project, file, expected):
    found = pipeline.in_project(file, project, [Path("/srv/job")])
    assert found == (expected or file)


def test_a_watched_command_that_a_signal_ends_gives_its_code(tmp_path, monkeypatch, capfd):
    shell = Shell(make_cli.job(tmp_path), monkeypatch, capfd)
    assert shell("run", "--", "bash", "-c", "kill -9 $$").code == 137


def test_text_for_a_pipe_is_exact_and_on_a_terminal_moves_nothing(monkeypatch):
    told = "rank 1 \x1b[2J\u202e says hi\n"
    for is_terminal, shown in (
        (False, told.encode()),
        (True, rb"rank 1 \x1b[2J\u202e says hi" + b"\n"),
    ):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        stream.isatty = lambda is_terminal=is_terminal: is_terminal
        monkeypatch.setattr(output.sys, "stdout", stream)
        output.print_bytes(told.encode())
        assert stream.buffer.getvalue() == shown


def test_what_was_not_seen_is_said_once(tmp_path):
    """The explanation notes what was not collected; the verdict says it in a line of its own."""
    store = tmp_path / "incidents"
    folder = make_cli.incident(store)
    twice = "no Flight Recorder dump"
    incident = msgspec.structs.replace(folder.read_incident(), not_seen=(twice,))
    cause = incident.causes[0]
    told = Diagnosis(
        cause=cause.id, verdict="supported", summary=cause.summary, notes=(twice, "it was slow")
    )
    stream = io.StringIO()
    console = Console(file=stream, width=120, highlight=False)
    terminal.print_incident(console, incident, [told])
    assert stream.getvalue().count(twice) == 1
    assert "note      it was slow" in stream.getvalue()
