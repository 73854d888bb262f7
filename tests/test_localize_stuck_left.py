"""Where a rank left or was last seen, when it ended without a traceback and nobody waits now."""

from pathlib import Path

from eroica.localize.stuck import localize_stuck
from eroica.records import (
    CollectiveEntry,
    FlightRecord,
    JobEvidence,
    LogEvent,
    Place,
    RankEvidence,
    RankExit,
)

TEXT = """
def train(round):
    loss.backward()
def main():
    for round in range(30):
        if round >= limits[rank]:
            print("done")
            return
        train(round)
"""


def evidence(folder: Path, exit_, *, with_flight=True, events=()):
    (folder / "job.py").write_text(TEXT)
    file = str(folder / "job.py")
    here = (Place(name="train", file=file, line=3), Place(name="main", file=file, line=9))
    entry = CollectiveEntry(record_id=9, op="all_reduce", sequence=10, is_retired=True, frames=here)
    lost = RankExit(
        exit_code=1, error_type="RuntimeError", message="Connection closed by peer", frames=here
    )
    ranks = (
        RankEvidence(rank=0, exit=lost),
        RankEvidence(
            rank=1,
            exit=exit_,
            flight=FlightRecord(rank=1, version="2.10", groups={}, entries=(entry,))
            if with_flight
            else None,
        ),
    )
    return JobEvidence(
        ranks=ranks,
        world_size=2,
        source_root=str(folder),
        symptom_hint="failed",
        log_events=tuple(events),
    )


def places(cause):
    return [(f.name, f.line) for f in cause.functions]


def test_a_rank_that_left_normally_is_placed_at_its_way_out(tmp_path):
    cause = localize_stuck(evidence(tmp_path, RankExit(exit_code=0))).causes[0]
    assert (cause.category, cause.ranks, cause.victims) == ("rank_exited", (1,), (0,))
    assert places(cause) == [("main", 8), ("main", 6)]


def test_a_killed_rank_is_placed_where_it_was_last_seen_else_where_it_is_missed(tmp_path):
    killed = RankExit(exit_code=-9, signal="SIGKILL")
    for with_flight in (True, False):
        cause = localize_stuck(evidence(tmp_path, killed, with_flight=with_flight)).causes[0]
        assert (cause.ranks, places(cause)) == ((1,), [("train", 3), ("main", 9)])


def test_an_abort_over_sizes_that_do_not_fit_is_a_shape_mismatch(tmp_path):
    said = LogEvent(
        kind="native_error",
        text="what():  [enforce fail at gloo/pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4",
    )
    aborted = RankExit(exit_code=-6, signal="SIGABRT")
    cause = localize_stuck(evidence(tmp_path, aborted, events=[said])).causes[0]
    assert (cause.category, places(cause)[0]) == ("collective_shape_mismatch", ("train", 3))


def test_the_same_error_on_every_rank_names_them_all_and_says_its_first_line(tmp_path):
    (tmp_path / "job.py").write_text(TEXT)
    here = (Place(name="train", file=str(tmp_path / "job.py"), line=3),)
    failed = RankExit(
        exit_code=1,
        error_type="RuntimeError",
        message="no such parameter\n\nMore text",
        frames=here,
    )
    ranks = tuple(RankEvidence(rank=r, exit=failed) for r in range(3))
    evidence = JobEvidence(ranks=ranks, world_size=3, source_root=str(tmp_path))
    cause = localize_stuck(evidence).causes[0]
    assert (cause.ranks, cause.victims) == ((0, 1, 2), ())
    assert cause.summary == "ranks 0-2 failed with RuntimeError: no such parameter"
