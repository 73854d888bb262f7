"""Stuck and failed jobs from hand-made evidence: exact ranks, categories and places."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from eroica.localize.stuck import localize_stuck
from eroica.records import (
    CollectiveEntry,
    FlightRecord,
    JobEvidence,
    LogEvent,
    Place,
    ProcessStacks,
    ProcessState,
    RankEvidence,
    RankExit,
    ThreadStack,
    ThreadState,
    Verdict,
)

LIB = "/opt/venv/lib/python3.11/site-packages/torch"
BACKWARD = (
    Place(name="_engine_run_backward", file=f"{LIB}/autograd/graph.py", line=979),
    Place(name="Tensor.backward", file=f"{LIB}/_tensor.py", line=623),
)


def collective(op: str) -> tuple[Place, ...]:
    file = f"{LIB}/distributed/distributed_c10d.py"
    return (
        Place(name=op, file=file, line=11),
        Place(name="wrapper", file=f"{LIB}/distributed/c10d_logger.py", line=83),
    )


def stack(
    *frames: Place, name: str = "MainThread", active: bool = False, tid: int = 1
) -> ThreadStack:
    is_main = name == "MainThread"
    return ThreadStack(
        frames=frames, name=name, is_main=is_main, is_active=active, os_thread_id=tid
    )


def rank(number: int, *threads: ThreadStack, **more: object) -> RankEvidence:
    stacks = (ProcessStacks(threads=threads, pid=number + 100),) if threads else ()
    return RankEvidence(rank=number, stacks=stacks, **more)  # type: ignore[arg-type]


def localize(
    ranks: Sequence[RankEvidence],
    root: Path | None = None,
    world: int | None = None,
    **more: object,
) -> Verdict:
    evidence = JobEvidence(
        ranks=tuple(ranks),
        world_size=world or len(ranks),
        source_root=str(root) if root else None,
        **more,  # type: ignore[arg-type]
    )
    return localize_stuck(evidence)


class Program:
    """A source file and places in it by their text."""

    def __init__(self, folder: Path, text: str) -> None:
        self.root, self.text = folder, text
        (folder / "job.py").write_text(text)

    def at(self, part: str, name: str) -> Place:
        numbers = [n for n, line in enumerate(self.text.splitlines(), 1) if part in line]
        return Place(name=name, file=str(self.root / "job.py"), line=numbers[0])


def entry(
    sequence: int, op: str, *frames: Place, done: bool = False, group: str = "0", **more: object
) -> CollectiveEntry:
    return CollectiveEntry(
        record_id=sequence, op=op, group=group, sequence=sequence, is_retired=done, frames=frames,
        state="scheduled", **more,  # type: ignore[arg-type]
    )  # fmt: skip


def flight(
    *entries: CollectiveEntry, groups: dict[str, tuple[int, ...]] | None = None
) -> FlightRecord:
    return FlightRecord(rank=None, version="2.10", groups=groups or {}, entries=entries)


# --- the condition, the guard, the odd ones ----------------------------------------------------

SAVE = """
import torch.distributed as dist

def save(rank):
    dist.barrier()

def main(rank):
    for step in range(100):
        loss.backward()
        if rank == 3:
            save(rank)
"""


def test_the_rank_in_the_condition_is_named_and_not_rank_zero(tmp_path: Path) -> None:
    program = Program(tmp_path, SAVE)
    main = program.at("loss.backward", "main")
    odd = (
        *collective("barrier"),
        program.at("dist.barrier", "save"),
        program.at("save(rank)", "main"),
    )
    odd = (*odd[:-1], Place(name="main", file=odd[-1].file, line=11))
    ranks = [rank(r, stack(*BACKWARD, main)) for r in range(3)] + [rank(3, stack(*odd))]
    verdict = localize(ranks, tmp_path)
    cause = verdict.causes[0]
    assert verdict.symptom == "stuck"
    assert (cause.category, cause.ranks) == ("rank_conditional_collective", (3,))
    assert [(p.name, p.line) for p in cause.functions] == [("save", 5), ("main", 10)]
    assert cause.confidence >= 0.9
    assert cause.victims == (0, 1, 2)
    assert "never enter" in verdict.headline
    assert verdict.ranks_table[0].ranks == (3,)
    assert verdict.ranks_table[0].note == "odd one out"


def test_a_condition_that_holds_for_the_other_ranks_is_no_reason(tmp_path: Path) -> None:
    program = Program(tmp_path, SAVE)
    main = program.at("loss.backward", "main")
    inside = (*collective("barrier"), program.at("dist.barrier", "save"))
    inside = (*inside, Place(name="main", file=main.file, line=11))
    # rank 0 in the branch of rank 3: the condition cannot have let it in
    ranks = [rank(0, stack(*inside))] + [rank(r, stack(*BACKWARD, main)) for r in (1, 2, 3)]
    verdict = localize(ranks, tmp_path)
    assert all(c.confidence < 0.6 for c in verdict.causes)


def test_without_source_the_minority_is_named_with_less_confidence() -> None:
    main = Place(name="main", file="/srv/job/job.py", line=8)
    odd = (*collective("barrier"), Place(name="save", file="/srv/job/job.py", line=4))
    ranks = [rank(r, stack(*BACKWARD, main)) for r in range(7)] + [rank(7, stack(*odd))]
    verdict = localize(ranks)
    cause = verdict.causes[0]
    assert (cause.category, cause.ranks) == ("rank_conditional_collective", (7,))
    assert cause.functions[0].name == "save"
    assert cause.confidence <= 0.6
    assert any("source" in text for text in verdict.not_seen)


# --- a rank that waits for something else ------------------------------------------------------

READ = """
def fetch(sock):
    return sock.recv(4096)

def main(sock):
    while True:
        batch = fetch(sock)
        loss.backward()
"""


def test_a_rank_in_a_read_is_the_cause_and_its_peers_are_victims(tmp_path: Path) -> None:
    program = Program(tmp_path, READ)
    main = program.at("loss.backward", "main")
    reading = stack(program.at("sock.recv", "fetch"), program.at("batch = fetch", "main"))
    ranks = [rank(0, stack(*BACKWARD, main)), rank(1, reading), rank(2, stack(*BACKWARD, main))]
    cause = localize(ranks, tmp_path).causes[0]
    assert (cause.category, cause.ranks, cause.victims) == ("blocked_io", (1,), (0, 2))
    assert cause.functions[0].line == 3


LOCKS = """
import threading

class Store:
    def __init__(self):
        self.a_lock = threading.Lock()
        self.b_lock = threading.Lock()

    def one(self):
        with self.a_lock:
            with self.b_lock:
                pass

    def two(self):
        with self.b_lock:
            with self.a_lock:
                pass
"""


def test_two_threads_that_take_two_locks_in_opposite_order_are_a_deadlock(tmp_path: Path) -> None:
    program = Program(tmp_path, LOCKS)
    one = stack(Place(name="Store.one", file=str(tmp_path / "job.py"), line=11), tid=1)
    two = stack(
        Place(name="Store.two", file=str(tmp_path / "job.py"), line=16), name="helper", tid=2
    )
    peer = stack(*BACKWARD, Place(name="main", file=str(tmp_path / "job.py"), line=2))
    assert program.text.splitlines()[10].strip() == "with self.b_lock:"
    cause = localize([rank(0, one, two), rank(1, peer)], tmp_path).causes[0]
    assert (cause.category, cause.ranks) == ("thread_lock_deadlock", (0,))
    assert cause.confidence > 0.9
    assert {p.line for p in cause.functions[:2]} == {11, 16}


def test_a_lock_of_another_class_with_the_same_name_is_another_lock(tmp_path: Path) -> None:
    text = LOCKS.replace("a_lock", "lock").replace("b_lock", "lock") + (
        "\nclass Other:\n    def __init__(self):\n        self.lock = threading.Lock()\n"
        "    def three(self):\n        with self.lock:\n            time.sleep(5)\n"
    )
    Program(tmp_path, text)
    file = str(tmp_path / "job.py")
    waits = stack(Place(name="Store.one", file=file, line=10), tid=1)
    holds = stack(Place(name="Other.three", file=file, line=24), name="helper", tid=2)
    peer = stack(*BACKWARD, Place(name="main", file=file, line=2))
    cause = localize([rank(0, waits, holds), rank(1, peer)], tmp_path).causes[0]
    assert "no thread alive holds" in cause.summary


def test_a_stopped_process_is_named(tmp_path: Path) -> None:
    main = Place(name="main", file="/srv/job/job.py", line=8)
    still = rank(
        1,
        stack(Place(name="work", file="/srv/job/job.py", line=3)),
        process=ProcessState(pid=5, state="T"),
    )
    cause = localize([rank(0, stack(*BACKWARD, main)), still]).causes[0]
    assert (cause.category, cause.ranks, cause.action) == ("rank_exited", (1,), "investigate")


def test_a_rank_that_still_moves_is_not_called_hung(tmp_path: Path) -> None:
    text = (
        "def tokenize(rows):\n    for row in rows:\n        a = row.split()\n        b = len(a)\n"
    )
    Program(tmp_path, text)
    file = str(tmp_path / "job.py")

    def sample(line: int) -> ProcessStacks:
        return ProcessStacks(
            threads=(stack(Place(name="tokenize", file=file, line=line), active=True),)
        )

    busy = RankEvidence(rank=0, stacks=(sample(3), sample(4)))
    waits = [
        rank(r, stack(*collective("barrier"), Place(name="m", file=file, line=1))) for r in (1, 2)
    ]
    verdict = localize([busy, *waits], tmp_path, symptom_hint="stuck")
    cause = verdict.causes[0]
    assert verdict.symptom == "slow"
    assert (cause.category, cause.ranks) == ("serialized_on_rank0", (0,))
    assert "still works" in cause.summary


# --- not knowing -------------------------------------------------------------------------------


def test_a_rank_nothing_was_collected_of_is_asked_for_and_not_accused() -> None:
    main = Place(name="main", file="/srv/job/job.py", line=8)
    verdict = localize([rank(r, stack(*BACKWARD, main)) for r in range(7)], world=8)
    assert verdict.causes == ()
    assert verdict.headline == "ranks 0-6 wait in backward; nothing was collected from rank 7"
    assert any("rank 7" in text for text in verdict.not_seen)


def test_all_ranks_in_one_collective_gives_no_cause() -> None:
    main = Place(name="main", file="/srv/job/job.py", line=8)
    verdict = localize([rank(r, stack(*BACKWARD, main)) for r in range(8)])
    assert verdict.causes == ()


def test_no_evidence_at_all_is_unknown() -> None:
    verdict = localize([], world=4)
    assert (verdict.symptom, verdict.causes) == ("unknown", ())


# --- the recorder alone ------------------------------------------------------------------------


def test_the_recorder_blames_who_is_behind_and_not_who_waits_for_it() -> None:
    groups = {"tp": (0, 1), "dp": (1, 2), "world": (0, 1, 2)}
    # rank 2 is gone; rank 1 waits for it in dp and so is behind in tp, where rank 0 waits
    records = {
        0: flight(entry(9, "all_reduce", group="tp"), groups=groups),
        1: flight(
            entry(8, "all_reduce", group="tp", done=True),
            entry(5, "all_reduce", group="dp"),
            groups=groups,
        ),
        2: flight(entry(4, "all_reduce", group="dp", done=True), groups=groups),
    }
    cause = localize([rank(r, flight=f) for r, f in records.items()]).causes[0]
    assert cause.ranks == (2,)
    assert cause.action == "investigate"


@pytest.mark.parametrize("odd", [0, 2])
def test_majority_decides_a_mismatch_whichever_rank_is_first(odd: int) -> None:
    ranks = [
        rank(r, flight=flight(entry(7, "barrier" if r == odd else "all_reduce"))) for r in range(4)
    ]
    cause = localize(ranks).causes[0]
    assert cause.ranks == (odd,)


def test_a_shape_mismatch_is_told_from_another_operation() -> None:
    ranks = [
        rank(
            r,
            flight=flight(entry(7, "all_reduce", input_sizes=((3 if r == 1 else 4, 5),))),
        )
        for r in range(4)
    ]
    cause = localize(ranks).causes[0]
    assert (cause.category, cause.ranks) == ("collective_shape_mismatch", (1,))


def test_the_deadline_is_the_timeout_less_the_wait() -> None:
    second = 1_000_000_000
    waits = entry(7, "all_reduce", created_ns=100 * second, timeout_ms=60_000)
    other = entry(7, "barrier", created_ns=110 * second, timeout_ms=60_000)
    ranks = [rank(0, flight=flight(other)), rank(1, flight=flight(waits))]
    verdict = localize(ranks, taken_ns=130 * second)
    assert verdict.deadline_ns == 30 * second
    assert {r.since_ns for r in verdict.ranks_table} == {30 * second, 20 * second}


# --- ends --------------------------------------------------------------------------------------


def test_the_first_failure_is_the_cause_and_closed_connections_are_victims() -> None:
    own = Place(name="parse", file="/srv/job/data.py", line=12)
    crash = RankExit(
        exit_code=1, error_type="KeyError", message="'label'", frames=(own,), time_ns=50
    )
    lost = RankExit(
        exit_code=1,
        error_type="RuntimeError",
        message="[transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:9000",
        time_ns=40,
    )
    verdict = localize(
        [rank(0, exit=lost), rank(1, exit=lost), rank(2, exit=crash)], symptom_hint="failed"
    )
    cause = verdict.causes[0]
    assert verdict.symptom == "failed"
    assert (cause.category, cause.ranks, cause.victims) == ("rank_exited", (2,), (0, 1))
    assert cause.functions[0] == own
    assert "KeyError" in cause.summary


def test_a_killed_rank_explains_those_that_wait_for_it() -> None:
    main = Place(name="main", file="/srv/job/job.py", line=8)
    ranks = [
        rank(0, stack(*BACKWARD, main)),
        rank(1, exit=RankExit(signal="SIGKILL", exit_code=-9)),
    ]
    cause = localize(ranks, symptom_hint="stuck").causes[0]
    assert (cause.category, cause.ranks, cause.victims) == ("rank_exited", (1,), (0,))
    assert "SIGKILL" in cause.summary


def test_ranks_that_all_ran_into_the_timeout_are_compared_by_where_they_were(
    tmp_path: Path,
) -> None:
    program = Program(tmp_path, SAVE)
    text = "Timed out waiting 18000ms for recv operation to complete"
    main = program.at("loss.backward", "main")
    inside = (program.at("dist.barrier", "save"), Place(name="main", file=main.file, line=11))
    ended = [
        rank(r, exit=RankExit(exit_code=1, message=text, frames=(*BACKWARD, main)))
        for r in range(3)
    ]
    odd = rank(
        3, exit=RankExit(exit_code=1, message=text, frames=(*collective("barrier"), *inside))
    )
    verdict = localize([*ended, odd], tmp_path)
    assert verdict.causes[0].ranks == (3,)
    assert verdict.causes[0].category == "rank_conditional_collective"


def test_a_device_error_asks_to_drain_and_not_for_a_patch() -> None:
    ended = RankExit(
        exit_code=1,
        error_type="RuntimeError",
        message="CUDA error: uncorrectable ECC error encountered",
    )
    cause = localize([rank(0, exit=ended)], symptom_hint="failed").causes[0]
    assert (cause.category, cause.action) == ("gpu_fault", "drain")


def test_a_traceback_in_the_log_alone_names_the_failing_rank() -> None:
    own = Place(name="load", file="/srv/job/data.py", line=4)
    event = LogEvent(
        kind="traceback", text="ValueError: bad row 7", rank=1, frames=(own,),
        fields={"is_uncaught": True},
    )  # fmt: skip
    verdict = localize([rank(0), rank(1)], log_events=(event,), symptom_hint="failed")
    assert verdict.causes[0].ranks == (1,)
    assert verdict.causes[0].functions[0] == own


def test_watchdog_lines_alone_tell_who_came_with_another_operation() -> None:
    def timeout(number: int, op: str) -> LogEvent:
        fields = {"backend": "NCCL", "sequence": 46, "op": op, "numel_in": 4, "timeout_ms": 600}
        return LogEvent(kind="watchdog_timeout", text="", rank=number, fields=fields)

    events = (timeout(0, "REDUCE"), *(timeout(r, "_ALLGATHER_BASE") for r in range(1, 8)))
    cause = localize([], world=8, log_events=events).causes[0]
    assert cause.ranks == (0,)
    assert "reduce" in cause.summary


def test_watchdog_lines_alone_tell_who_stayed_behind() -> None:
    def enqueued(number: int, last: int) -> LogEvent:
        fields = {"sequence": 183, "last_enqueued": last, "last_completed": 182}
        return LogEvent(kind="watchdog_work", text="", rank=number, fields=fields)

    events = tuple(enqueued(r, 182 if r == 7 else 315) for r in range(8))
    assert localize([], world=8, log_events=events).causes[0].ranks == (7,)


DESYNC = """
import torch.distributed as dist

def main(loader):
    for batch in loader:
        dist.all_reduce(loss)
        if batch.has_labels():
            dist.all_reduce(accuracy)
        optimizer.step()
    dist.barrier()
"""


def test_a_desync_long_before_the_hang_is_traced_to_the_first_difference(tmp_path: Path) -> None:
    program = Program(tmp_path, DESYNC)
    loss, accuracy, end = (
        program.at(part, "main") for part in ("all_reduce(loss)", "all_reduce(acc", "dist.barrier")
    )
    most = [loss, accuracy, loss, accuracy, loss, accuracy, loss, accuracy]
    odd = [loss, accuracy, loss, loss, accuracy, loss, accuracy]  # its second batch had no labels

    def record(places: list[Place]) -> FlightRecord:
        done = [
            entry(n, "all_reduce", *collective("all_reduce"), p, done=True)
            for n, p in enumerate(places[:7], 1)
        ]
        last = places[7] if len(places) > 7 else end
        op = "all_reduce" if len(places) > 7 else "barrier"
        return flight(*done, entry(8, op, *collective(op), last))

    ranks = [rank(r, flight=record(odd if r == 2 else most)) for r in range(4)]
    cause = localize(ranks, tmp_path).causes[0]
    assert (cause.category, cause.ranks) == ("divergent_control_flow", (2,))
    assert {p.line for p in cause.functions[:2]} == {accuracy.line, 7}
    assert any("agree up to #3" in text for text in cause.why)


def test_both_branches_of_a_condition_are_one_collective(tmp_path: Path) -> None:
    text = (
        "import torch.distributed as dist\n\ndef sync(rank, x):\n    if rank == 0:\n"
        "        dist.broadcast(x, 0)\n    else:\n        dist.broadcast(buffer, 0)\n"
        "    dist.all_reduce(x)\n    if rank == 1:\n        dist.barrier()\n    loss.backward()\n"
    )
    program = Program(tmp_path, text)
    send, receive = program.at("broadcast(x", "sync"), program.at("broadcast(buffer", "sync")
    barrier, step = program.at("dist.barrier", "sync"), program.at("loss.backward", "sync")
    total = program.at("all_reduce", "sync")

    def record(number: int) -> FlightRecord:
        first = send if number == 0 else receive
        history = [
            entry(1, "all_reduce", total, done=True),
            entry(2, "broadcast", first, done=True),
        ]
        if number == 1:
            return flight(*history, entry(3, "barrier", *collective("barrier"), barrier))
        return flight(*history, entry(3, "all_reduce", *BACKWARD, step))

    cause = localize([rank(r, flight=record(r)) for r in range(4)], tmp_path).causes[0]
    assert (cause.category, cause.ranks) == ("rank_conditional_collective", (1,))
    assert cause.functions[0].line == barrier.line


def test_a_thread_that_died_with_its_traceback_in_the_log_is_no_end_of_the_rank(
    tmp_path: Path,
) -> None:
    text = (
        "import queue, threading\n\nclass Feed:\n    def __init__(self):\n"
        "        self.items = queue.Queue(4)\n"
        "        threading.Thread(target=self.pump, name='pump').start()\n\n"
        "    def pump(self):\n        for raw in source:\n"
        "            self.items.put(self.parse(raw))\n\n"
        "    def parse(self, raw):\n        return raw[0] / raw[1]\n\n"
        "def main(feed):\n    for step in range(100):\n        batch = feed.items.get()\n"
        "        loss.backward()\n"
    )
    program = Program(tmp_path, text)
    get = Place(name="Queue.get", file="/usr/local/lib/python3.11/queue.py", line=171)
    parse, pump = program.at("raw[0] / raw", "parse"), program.at("items.put", "pump")
    crash = LogEvent(kind="traceback", text="ZeroDivisionError: x", frames=(parse, pump))
    hungry = rank(1, stack(get, program.at("items.get", "main")), exit=RankExit())
    peer = rank(0, stack(*BACKWARD, program.at("loss.backward", "main")))
    verdict = localize([peer, hungry], tmp_path, log_events=(crash,), symptom_hint="stuck")
    cause = verdict.causes[0]
    assert verdict.symptom == "stuck"
    assert (cause.category, cause.ranks) == ("exception_swallowed", (1,))
    assert cause.functions[0] == parse
    assert cause.functions[1].name == "main"


@pytest.mark.parametrize(("state", "is_held"), [("S", True), ("R", False)])
def test_a_held_gil_is_told_from_honest_work_by_the_kernels_state(
    state: str, is_held: bool, tmp_path: Path
) -> None:
    text = "def main(lib):\n    while True:\n        lib.sleep(1000)\n        loss.backward()\n"
    program = Program(tmp_path, text)
    holder = ThreadStack(
        frames=(program.at("lib.sleep", "main"),), name="MainThread", is_main=True,
        is_active=True, holds_gil=True, os_thread_id=7,
    )  # fmt: skip
    process = ProcessState(pid=7, threads=(ThreadState(os_thread_id=7, state=state),))
    peer = rank(0, stack(*BACKWARD, program.at("loss.backward", "main")))
    verdict = localize([peer, rank(1, holder, process=process)], tmp_path, symptom_hint="stuck")
    assert any(c.category == "thread_lock_deadlock" for c in verdict.causes) is is_held
    if is_held:
        assert verdict.causes[0].ranks == (1,)
        assert "GIL" in verdict.causes[0].summary


def test_an_abort_of_gloo_over_sizes_is_a_shape_mismatch() -> None:
    line = "what():  [enforce fail at pair.cc:450] op.preamble.length <= op.nbytes. 2116 vs 4"
    aborted = rank(1, exit=RankExit(exit_code=-6, signal="SIGABRT"), log_tail=line)
    lost = rank(0, exit=RankExit(exit_code=1, message="Connection closed by peer [::1]:52"))
    cause = localize([lost, aborted], symptom_hint="failed").causes[0]
    assert (cause.category, cause.ranks) == ("collective_shape_mismatch", (1,))


def test_a_mismatch_that_torch_detected_itself_is_taken_over() -> None:
    def detected(other: int) -> LogEvent:
        fields = {"rank_a": 2, "op_a": "BARRIER", "sequence_a": 9}
        fields |= {"rank_b": other, "op_b": "ALLREDUCE", "sequence_b": 9}
        return LogEvent(kind="collective_mismatch", text="", rank=2, fields=fields)

    cause = localize([], world=4, log_events=(detected(0), detected(1))).causes[0]
    assert (cause.category, cause.ranks) == ("rank_conditional_collective", (2,))


def test_what_the_first_rank_of_each_host_does_alone_is_one_cause(tmp_path: Path) -> None:
    program = Program(tmp_path, "def save():\n    a = 1\n    b = 2\n\ndef main():\n    save()\n")
    main = program.at("    save()", "main")

    def at_work(number: int, text: str) -> RankEvidence:
        first, second = (program.at(line, "save") for line in ("a = 1", text))
        samples = tuple(
            ProcessStacks(threads=(stack(place, main, active=True),)) for place in (first, second)
        )
        return RankEvidence(rank=number, stacks=samples)

    waiting = [rank(r, stack(*collective("barrier"), main)) for r in (1, 2, 5, 6)]
    cause = localize([at_work(0, "b = 2"), at_work(4, "b = 2"), *waiting], tmp_path).causes[0]
    assert (cause.category, cause.ranks) == ("serialized_on_rank0", (0, 4))
    assert "still work" in cause.summary
    other = localize([at_work(4, "b = 2"), *waiting], tmp_path).causes[0]
    assert (other.category, other.ranks) == ("straggler_compute", (4,))
