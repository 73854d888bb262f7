"""After a rehearsal the same detector looks at the patched job: silent, or what it still says."""

import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from eroica.detecting import detector_for, newest_incident, still_said
from eroica.fix.watchdog import Watcher
from eroica.records import Cause, Incident, Job


def cause(category, share=0.4, ranks="all"):
    return Cause(
        id="C1",
        category=category,
        ranks=ranks,
        functions=(),
        share=share,
        confidence=0.9,
        summary="",
        action="patch",
    )


def incident(symptom, *causes):
    return Incident(
        id="i",
        symptom=symptom,
        onset=None,
        job=Job(world_size=2, ranks=(0, 1)),
        causes=causes,
        findings=(),
        warnings=(),
    )


@pytest.mark.parametrize("symptom", ["stuck", "healthy", "failed", "unknown"])
def test_only_a_slow_job_is_looked_at_again(symptom):
    assert detector_for(incident(symptom, cause("gc_pause"))) is None
    assert detector_for(incident("slow")) is None
    assert detector_for(incident("slow", cause("gc_pause"))) is not None


def test_a_cause_of_the_same_family_still_speaks_and_another_does_not():
    seen = incident("slow", cause("gc_pause"), cause("logging_overhead", 0.25, (1,)))
    assert still_said(cause("growing_state"), seen) == "gc_pause (all ranks, 40% of the step)"
    assert still_said(cause("load_imbalance"), seen) == ""
    assert still_said(cause("gc_pause"), incident("healthy")) == ""


def test_the_newest_incident_below_a_folder_is_taken(tmp_path):
    assert newest_incident(tmp_path) is None
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "incident.json").write_bytes(msgspec.json.encode(incident("slow")))
    assert newest_incident(tmp_path).symptom == "slow"


@pytest.mark.job
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("program", "says"), [("fixed.py", ""), ("train.py", "gc_pause")])
def test_the_second_look_at_a_real_job_is_silent_only_once_it_is_mended(
    tmp_path, monkeypatch, program, says
):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    source = Path(__file__).parent / "cases/tidy_after_each_step"
    shutil.copytree(source, tmp_path / "job", ignore=shutil.ignore_patterns("__pycache__"))
    look = detector_for(incident("slow", cause("gc_pause")))
    words = ["torchrun", "--standalone", "--nproc_per_node=2", program]
    seen = look(words, tmp_path / "job", {}, Watcher())
    assert seen is not None
    assert seen.partition(" ")[0] == says
