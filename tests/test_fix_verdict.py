"""What two runs say of a patch: every verdict of a rehearsal, from made-up runs."""

import pytest

from eroica.fix.rehearse import judge, loss_change, spread
from eroica.fix.watchdog import Run


def run(status=0, seconds=10.0, step_ms=None, steps=0, loss=None):
    """A run; ``step_ms`` as the job prints it, ``steps`` lines of progress, a last loss."""
    lines = [(0.0, f"{step_ms} ms/step")] * 6 if step_ms is not None else []
    lines += [(float(n), f"step {n}") for n in range(steps)]
    lines += [(seconds, f"step {steps} loss {loss}")] if loss is not None else []
    return Run(status=status, seconds=seconds, lines=lines)


def verdict(before, after, symptom="stuck"):
    return judge(["torchrun"], before, after, symptom, 60.0).verdict


HUNG = None  # the watchdog ended it


def test_a_hang_that_is_gone_is_cured():
    found = judge(["x"], run(HUNG, 26.0), run(0, 13.0), "stuck", 26.0)
    assert found.verdict == "cured"
    assert found.summary == ("Patched, it finishes in 13.0 s; before, it was not done after 26 s.")


@pytest.mark.parametrize(
    ("before", "after", "expected", "says"),
    [
        (run(HUNG), run(HUNG), "no change", "no further than before"),
        (run(HUNG, steps=3), run(HUNG, steps=4), "no change", "further than before, but not"),
        (run(HUNG, steps=3), run(HUNG, steps=3), "no change", "no further than before"),
        (run(0), run(HUNG), "worse", "stuck"),
        (run(0), run(1), "worse", "exit code 1"),
        (run(HUNG), run(1), "failed", "exit code 1"),
        (run(1), run(2), "failed", "exit code 2"),
        (run(3), run(0), "cured", "before, it failed with exit code 3"),
        (run(0), run(0), "no change", "the hang did not show"),
    ],
)
def test_a_stuck_jobs_runs_are_told_apart(before, after, expected, says):
    found = judge(["x"], before, after, "stuck", 60.0)
    assert (found.verdict, says in found.summary) == (expected, True), found.summary


@pytest.mark.parametrize(
    ("new_ms", "expected"),
    [
        (50.0, "improved"),
        (94.9, "improved"),
        (95.1, "no change"),
        (100.0, "no change"),
        (104.9, "no change"),
        (105.1, "worse"),
        (200.0, "worse"),
    ],
)
def test_a_slow_jobs_steps_must_change_by_five_percent(new_ms, expected):
    assert verdict(run(step_ms=100.0), run(step_ms=new_ms), "slow") == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(7.4, "improved"), (7.6, "no change"), (12.4, "no change"), (12.6, "worse")],
)
def test_without_step_times_the_whole_run_must_change_by_a_quarter(seconds, expected):
    assert verdict(run(seconds=10.0), run(seconds=seconds), "slow") == expected


def test_step_times_of_one_run_alone_compare_nothing_but_the_whole_runs():
    found = judge(["x"], run(step_ms=100.0, seconds=10), run(seconds=10), "slow", 60.0)
    assert found.verdict == "no change"
    assert found.summary.startswith("The whole run")


def test_a_slow_job_that_was_cut_off_is_judged_by_its_steps_where_both_tell_them():
    assert verdict(run(HUNG, step_ms=100.0), run(0, step_ms=50.0), "slow") == "improved"
    assert verdict(run(HUNG, step_ms=100.0), run(0, step_ms=100.0), "slow") == "no change"
    assert verdict(run(HUNG), run(0), "slow") == "cured"


def test_what_the_detector_still_says_is_in_the_sentence():
    runs = run(step_ms=9.0), run(step_ms=3.0)
    silent = judge(["x"], *runs, "slow", 60.0, "")
    assert silent.summary.endswith("is now silent.")
    still = judge(["x"], *runs, "slow", 60.0, "gc_pause")
    assert still.summary.endswith("still says gc_pause.")
    assert still.details["detector"] == "gc_pause"
    assert "detector" not in judge(["x"], *runs, "slow", 60.0).summary


@pytest.mark.parametrize(
    ("old", "new", "word"), [(1.0, 1.1, "alike"), (1.0, 1.12, "differs"), (1.0, 0.88, "differs")]
)
def test_losses_are_compared_at_the_same_step(old, new, word):
    assert word in loss_change(run(steps=3, loss=old), run(steps=3, loss=new))
    assert "step 3" in loss_change(run(steps=3, loss=old), run(steps=3, loss=new))


def test_losses_of_different_steps_are_compared_at_the_end():
    assert "at the end" in loss_change(run(steps=3, loss=1.0), run(steps=4, loss=1.0))
    assert loss_change(run(), run(loss=1.0)) == ""


def test_quartiles_of_step_times():
    assert spread([]) == []
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]) == [2.0, 3.0, 4.0]


def aborted(**more):
    made = run(1, **more)
    made.was_aborted_at_its_end = True
    return made


def test_a_run_that_was_aborted_at_its_end_counts_as_finished_on_both_sides():
    assert verdict(run(HUNG), aborted()) == "cured"
    assert verdict(aborted(), aborted()) == "no change"
    assert verdict(aborted(), run(HUNG)) == "worse"
    assert verdict(aborted(), run(1)) == "worse"
    assert verdict(aborted(step_ms=100.0), aborted(step_ms=50.0), "slow") == "improved"
    notes = judge(["x"], aborted(), run(0), "stuck", 60.0).details["warnings"]
    assert [note.partition(",")[0] for note in notes] == ["without the patch"]
