"""Two threads on one group, by hand: found only where the ranks come apart, autograd's left out."""

from eroica.localize.collectives import histories, interleaved
from eroica.records import CollectiveEntry, FlightRecord


def record(rank, *calls):
    entries = tuple(
        CollectiveEntry(
            record_id=number, op=op, group="0", sequence=number, thread_id=thread, thread_name=name
        )
        for number, (op, thread, name) in enumerate(calls)
    )
    return FlightRecord(rank=rank, version="2.10", groups={}, entries=entries)


def found(*records):
    return interleaved(histories({one.rank: one for one in records}))


MAIN, BEAT = ("all_reduce", "1", "main"), ("barrier", "2", "heartbeat")


def test_a_second_thread_is_found_where_the_ranks_come_apart():
    seen = found(record(0, MAIN, BEAT, MAIN), record(1, MAIN, MAIN, BEAT))
    assert {rank: entry.thread_id for rank, entry in seen.items()} == {0: "2", 1: "2"}


def test_two_threads_in_the_same_order_are_no_fault():
    assert found(record(0, MAIN, BEAT, MAIN), record(1, MAIN, BEAT, MAIN)) == {}


def test_the_rarer_thread_is_the_second_one_and_its_last_call_is_shown():
    seen = found(record(0, MAIN, BEAT, MAIN, BEAT, MAIN), record(1, MAIN, MAIN, MAIN, MAIN, MAIN))
    assert (seen[0].thread_id, seen[0].sequence) == ("2", 3)
    assert 1 not in seen


def test_autograds_thread_and_one_without_an_id_are_no_second_thread():
    for other in (("barrier", "2", "pt_autograd_0"), ("barrier", "", "")):
        assert found(record(0, MAIN, other, MAIN), record(1, MAIN, MAIN, other)) == {}
