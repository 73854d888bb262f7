"""``list``, ``report``, ``compare``, ``bundle``, ``diagnose`` and ``doctor`` as typed."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import make_cli
import msgspec
import pytest
from make_cli import Shell
from make_patterns import make_patterns

from eroica import doctor
from eroica import incident as incidents
from eroica.records import Job, JobEvidence, RankEvidence
from eroica.report import compare as compare_room
from eroica.report.perfetto import write_perfetto
from eroica.summarize import write_parquet


@pytest.fixture
def shell(tmp_path, monkeypatch, capfd):
    (tmp_path / "job").mkdir()
    return Shell(make_cli.job(tmp_path / "job"), monkeypatch, capfd)


@pytest.fixture
def saved(shell):
    return make_cli.incident(shell.folder / ".eroica" / "incidents")


def test_one_broken_incident_is_a_row_of_the_list_not_its_end(shell, saved):
    broken = saved.path.with_name("20200101-000000-broken")
    shutil.copytree(saved.path, broken)
    (broken / "incident.json").write_text('{"schema": 1')
    done = shell("list")
    assert done.code == 0
    assert saved.id in done.out and "20200101-000000-broken   unreadable" in done.out
    rows = json.loads(shell("list", "--json").out)
    assert [row["symptom"] for row in rows] == [None, "stuck"]
    assert "cannot be read" in rows[0]["error"]


def test_a_diagnosis_made_again_is_not_seen_again(shell, tmp_path):
    store = shell.folder / ".eroica" / "incidents"
    first = make_cli.incident(store, source="traces")
    again = make_cli.incident(store, source=f"incident {first.id}")
    make_cli.incident(store, source=f"incident {again.id}")
    make_cli.incident(store, source="traces")
    assert "seen" not in shell("list").out
    make_cli.incident(store, source="live")
    make_cli.incident(store, source="live")
    assert "seen 3 times" in shell("list").out
    (group,) = compare_room.group(incidents.list_folders())
    assert group.folders[0].id == first.id


def test_an_anonymized_report_as_json_holds_no_names(shell):
    folder = make_cli.incident(
        shell.folder / ".eroica" / "incidents",
        job=Job(world_size=2, ranks=(0, 1), hosts={"gpu-secret-7": (0, 1)}),
    )
    raw = shell("report", folder.id, "--format", "json", "-o", "-")
    assert "gpu-secret-7" in raw.out
    done = shell("report", folder.id, "--format", "json", "--anonymize", "-o", "-")
    assert done.code == 0 and "gpu-secret-7" not in done.out
    assert json.loads(done.out)["schema"] == 1
    shell("report", folder.id, "--format", "json", "--anonymize")
    assert "gpu-secret-7" in folder.incident_bytes().decode(), "the record itself is as it was"


@pytest.mark.parametrize("format", ["html", "md"])
def test_a_report_goes_into_the_incident_or_where_it_is_asked(shell, saved, format):
    done = shell("report", saved.id, "--format", format)
    path = Path(done.out.strip())
    assert path.parent.resolve() == saved.path.resolve()
    assert path.stat().st_mode & 0o777 == 0o600
    assert shell("report", saved.id, "-f", format, "-o", "mine").code == 0
    assert (shell.folder / "mine").read_bytes() == path.read_bytes()


def test_compare_and_bundle_as_typed(shell, saved):
    store = shell.folder / ".eroica" / "incidents"
    other = make_cli.incident(store)
    assert saved.id in shell("compare", saved.id, other.id).out
    assert shell("compare", saved.id, other.id, "-f", "html", "-o", "c.html").code == 0
    assert (shell.folder / "c.html").read_text().startswith("<!doctype html>")
    done = shell("compare", saved.id, other.id, "--format", "docx")
    assert done.code == 2 and "expected md or html" in done.err and done.out == ""
    assert shell("bundle", saved.id, "-o", "b.tar.gz").code == 0
    with tarfile.open(shell.folder / "b.tar.gz") as archive:
        assert f"{saved.id}/incident.json" in archive.getnames()


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "ID", "ID", "-o", "/proc/x/c.md"],
        ["report", "ID", "-o", "/proc/x/r.html"],
        ["bundle", "ID", "-o", "/proc/x/b.tar.gz"],
        ["diagnose", "evidence.json", "--perfetto", "/proc/x/p.json"],
        ["diagnose", "evidence.json", "--engine", "foo"],
        ["diagnose", "evidence.json", "--explain"],
        ["diagnose", "evidence.json", "--model", "replay:nowhere"],
        ["diagnose", "evidence.json", "--explain", "--share", "lots"],
        ["diagnose", "evidence.json", "--source", "nowhere"],
        ["diagnose", "evidence.json", "--baseline", "evidence.json"],
        ["run", "--on-incident", 'a "b', "--", "true"],
        ["run", "--keep-traces", "t", "--", "true"],
        ["collect", "--launch", 'a "b'],
        ["mcp", "--allow-rehearse", 'a "b'],
    ],
)
def test_what_cannot_be_used_is_bad_input_never_an_error_of_eroica(shell, saved, words):
    done = shell(*[saved.id if word == "ID" else word for word in words])
    assert done.code == 2, done.err
    assert "eroica itself" not in done.err


@pytest.mark.parametrize("text", ["abc", "nan", "inf", ""])
def test_a_parameter_that_is_no_number_is_bad_input(shell, monkeypatch, text):
    monkeypatch.setenv("EROICA_DELTA", text)
    done = shell("diagnose", "evidence.json")
    assert done.code == 2 and "EROICA_DELTA" in done.err


def test_the_verdict_is_printed_before_extras_that_may_fail(shell):
    done = shell("diagnose", "evidence.json", "--perfetto", "p.json")
    assert done.out.startswith("STUCK")
    assert done.code == 2 and "no times to draw" in done.err


def test_an_answer_to_a_bundle_is_revealed_by_a_command(shell, monkeypatch):
    shell("diagnose", "evidence.json", "--source", ".")
    folder = incidents.list_folders()[-1]
    record = msgspec.structs.replace(
        folder.read_incident(), job=Job(world_size=2, ranks=(0, 1), hosts={"gpu-017": (0, 1)})
    )
    folder.write_incident(record)
    assert shell("bundle", "--reveal", "answer.txt").code == 2
    (shell.folder / "answer.txt").write_text("drain node-1, then look again")
    assert "no names to put back" in shell("bundle", "--reveal", "answer.txt").err
    assert shell("bundle").code == 0
    assert shell("bundle", "--reveal", "answer.txt").out == "drain gpu-017, then look again"
    done = shell("bundle", "--reveal", "answer.txt", "-o", "plain.txt")
    assert done.out.strip() == "plain.txt"
    assert (shell.folder / "plain.txt").read_text() == "drain gpu-017, then look again"


def test_nobody_is_asked_for_a_model_after_the_work(shell):
    done = shell("diagnose", "evidence.json", "--explain")
    assert "no language model is configured" in done.err
    assert not (shell.folder / ".eroica").exists()


def test_an_incident_that_cannot_be_written_leaves_no_folder(shell, monkeypatch):
    def full(self, evidence):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(incidents.IncidentFolder, "write_evidence", full)
    done = shell("diagnose", "evidence.json")
    assert done.code == 3 and "No space left" in done.err and "eroica itself" not in done.err
    assert list((shell.folder / ".eroica" / "incidents").iterdir()) == []


def test_an_error_of_eroica_claims_nothing_it_does_not_know(shell, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("\x1b[2Joops")

    monkeypatch.setattr("eroica.pipeline.localize", broken)
    done = shell("diagnose", "evidence.json")
    assert done.code == 3 and "\\x1b[2Joops" in done.err
    assert "nothing was written" not in done.err


def test_one_bad_pattern_file_is_a_warning(shell):
    (shell.folder / "rank-00001.pattern").write_bytes(b"no pattern at all")
    done = shell("diagnose", ".", "--json")
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["symptom"] == "stuck"
    assert any("rank-00001" in (one["file"] or "") for one in record["warnings"])


def test_patterns_serve_as_a_baseline(shell):
    for name, odd in (("before", ()), ("after", (2,))):
        (shell.folder / name).mkdir()
        write_parquet(shell.folder / name / "patterns.parquet", list(make_patterns(4, odd)))
    done = shell("diagnose", "after", "--baseline", "before", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["causes"][0]["ranks"] == [2]


def test_show_prompt_has_the_source_and_sends_nothing(shell, tmp_path):
    project = tmp_path / "elsewhere"
    project.mkdir()
    (shell.folder / "train.py").rename(project / "train.py")
    done = shell("diagnose", "evidence.json", "--show-prompt", "--source", str(project))
    assert done.code == 0 and "bucket_cap_mb=0.001" in done.out


def test_perfetto_draws_collectives_of_an_incident_that_has_evidence_too(saved, tmp_path):
    write_parquet(saved.patterns_path, list(make_patterns(4, (0,))))
    ranks = (RankEvidence(rank=0),)
    saved.write_evidence(JobEvidence(ranks=ranks, world_size=4))
    out = write_perfetto(saved, [], tmp_path / "p.json")
    names = {event.get("name") for event in json.loads(out.read_text())["traceEvents"]}
    assert "dp|all_reduce|3" in names


@pytest.mark.parametrize(
    ("name", "state"),
    [("foo:bar", "missing"), ("replay:nowhere", "missing"), ("openai:m", "ok"), (None, "limited")],
)
def test_doctor_looks_at_the_model_that_is_named(monkeypatch, name, state):
    if name is None:
        monkeypatch.delenv("EROICA_MODEL", raising=False)
    else:
        monkeypatch.setenv("EROICA_MODEL", name)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
    check = doctor._model()
    assert check.state == state
    assert bool(check.remedy) == (state != "ok")


def test_a_reader_that_goes_away_is_no_failure(saved, shell):
    store = shell.folder / ".eroica" / "incidents"
    for _ in range(3):
        make_cli.incident(store, headline="x" * 70_000)
    command = f"set -o pipefail; {sys.executable} -P -m eroica list | head -c 1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=shell.folder, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_eroica_debug_shows_what_is_logged(shell, saved):
    saved.append_decision(
        msgspec.convert({"time": "t", "patch": "P1", "action": "apply"}, incidents.Decision)
    )
    with (saved.path / "decisions.jsonl").open("ab") as stream:
        stream.write(b'{"torn')
    for debug, expected in (("", "eroica: .eroica/"), ("1", "eroica: eroica.incident:")):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "eroica", "undo"], cwd=shell.folder, text=True,
            capture_output=True, env=os.environ | {"EROICA_DEBUG": debug}, timeout=60,
        )  # fmt: skip
        assert "line 2 is skipped" in done.stderr
        assert expected in done.stderr


def test_a_user_without_a_home_is_told_what_to_set(shell, monkeypatch):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.home", nobody)
    done = shell("plugin", "install", "claude", "--user")
    assert done.code == 2 and "set HOME" in done.err
    assert shell("plugin", "install", "claude", "--dry-run").code == 0
