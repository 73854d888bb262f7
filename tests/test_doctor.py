"""``eroica doctor`` on machines of strangers: a laptop, a container, a locked-down host."""

import importlib.util
import json
import os
import sys

import pytest

from eroica import cli, doctor
from eroica.collect import spy
from eroica.doctor import Check, abilities, examine


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("EROICA_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    return tmp_path


def without(monkeypatch, *modules):
    real = importlib.util.find_spec
    hidden = lambda name, *rest: None if name in modules else real(name, *rest)  # noqa: E731
    monkeypatch.setattr(doctor.importlib.util, "find_spec", hidden)


def by_name(found):
    return {one.name: one for one in found}


def test_an_analysis_laptop_needs_no_torch_no_gpu_and_no_key(home, monkeypatch):
    without(monkeypatch, "torch", "mcp", "ray")
    checks = examine()
    able = by_name(abilities(checks))
    assert able["diagnose files"].state == "ok"
    assert able["patch and rehearse"].state == "ok"
    assert (able["see it work"].state, able["see it work"].because) == ("missing", "torch")
    assert able["ask a language model"].state == "missing"
    found = by_name(checks)
    assert "eroica[torch]" in found["torch"].remedy
    assert "by rule" in found["language model"].found


@pytest.fixture
def no_tracing(monkeypatch, tmp_path):
    """A container without the right to trace: py-spy is there and may not look."""
    spy = tmp_path / "py-spy"
    spy.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && echo "py-spy 0.4.3" && exit 0\n'
        'echo "Error: Permission Denied: Try running again with elevated permissions" >&2\n'
        "exit 1\n"
    )
    spy.chmod(0o755)
    monkeypatch.setattr(doctor, "find_spy", lambda: str(spy))
    monkeypatch.setattr("eroica.collect.spy.find_spy", lambda: str(spy))
    monkeypatch.setattr(doctor, "_YAMA", tmp_path / "none")


def test_a_container_without_ptrace_is_told_what_still_works_and_how_to_get_the_rest(
    home, no_tracing, monkeypatch
):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr(doctor.Path, "exists", lambda path: False)
    check = doctor._tracing()
    assert check.state == "limited"
    assert "may not read" in check.found and "Permission Denied" in check.found
    assert "eroica run" in check.remedy
    assert "SYS_PTRACE to the container's capabilities" in check.remedy


def test_what_needs_tracing_works_in_part_without_it(home, no_tracing):
    able = by_name(abilities(examine()))
    assert (able["look at a running job"].state, able["look at a running job"].because) == (
        "limited",
        "tracing",
    )
    assert able["watch a job"].state == "limited"
    assert able["diagnose files"].state == "ok"


def test_yama_is_named_where_it_forbids_tracing(home, no_tracing, monkeypatch, tmp_path):
    (tmp_path / "none").write_text("2\n")
    check = doctor._tracing()
    assert check.found.endswith("none is 2")


@pytest.mark.parametrize("text", ["", "#!/nowhere/sh\n"])
def test_a_py_spy_that_cannot_be_run_is_missing(home, monkeypatch, tmp_path, text):
    broken = tmp_path / "py-spy"
    broken.write_text(text)
    broken.chmod(0o644 if not text else 0o755)
    monkeypatch.setattr(doctor, "find_spy", lambda: str(broken))
    assert doctor._py_spy().state == "missing"
    monkeypatch.setattr(spy, "find_spy", lambda: str(broken))
    with pytest.raises(spy.CannotTrace, match="cannot be run"):
        spy.dump(os.getpid())
    assert "cannot be run" in spy.dump_all([os.getpid()])[os.getpid()]


def test_without_py_spy_files_can_be_diagnosed_and_jobs_cannot_be_looked_at(home, monkeypatch):
    monkeypatch.setattr(doctor, "find_spy", lambda: None)
    able = by_name(abilities(examine()))
    assert able["look at a running job"].state == "missing"
    assert able["diagnose files"].state == "ok"


def test_a_full_dev_shm_is_told_with_the_switch_that_mends_it(home, monkeypatch):
    usage = type("Usage", (), {"free": 8 << 20})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    check = doctor._shared_memory()
    assert check.state == "limited"
    assert "8 MB left" in check.found
    assert "--shm-size" in check.remedy


def test_a_place_that_cannot_be_written_is_named(home, monkeypatch):
    (home / "file").touch()
    monkeypatch.setenv("EROICA_HOME", str(home / "file" / "below"))
    check = doctor._incidents()
    assert check.state == "missing"
    assert str(home / "file") in check.found
    assert "EROICA_HOME" in check.remedy


def test_every_part_that_an_ability_names_is_examined():
    checks = [
        Check(name=name, state="ok", found="")
        for name in {check.name for check in examine()}
    ]  # fmt: skip
    assert {one.state for one in abilities(checks)} == {"ok"}
    assert all(one.command.startswith("eroica ") for one in abilities(checks))


def test_the_record_is_what_is_shown(home, monkeypatch, capsysbinary):
    monkeypatch.setattr(sys, "argv", ["eroica", "doctor", "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    record = json.loads(capsysbinary.readouterr().out)
    assert record["schema"] == 1
    assert {check["state"] for check in record["checks"]} <= {"ok", "limited", "missing"}
    assert len(record["abilities"]) == len(doctor._NEEDS)
