"""A rank that ended while the others wait: its own network's errors, a lost peer, a kill."""

from pathlib import Path

import pytest

from eroica.records import LogEvent, Place, RankEvidence, RankExit
from tests.test_localize_stuck import Program, collective, localize, rank, stack

FETCH = """
import torch.distributed as dist

def fetch(url):
    return requests.get(url)

def main(url):
    for step in range(100):
        dist.all_reduce(step)
        fetch(url)
"""
REQUESTS = Place(name="get", file="/usr/lib/python3.11/site-packages/requests/api.py", line=73)
C10D = Place(
    name="all_reduce",
    file="/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
    line=3,
)


def after_an_end(folder: Path, error: str, message: str, inner: Place, **more: object):
    """Rank 1 ended with an error; ranks 0, 2 and 3 wait in the collective that comes next."""
    program = Program(folder, FETCH)
    main = program.at("dist.all_reduce", "main")
    waiting = [rank(r, stack(*collective("all_reduce"), main)) for r in (0, 2, 3)]
    own = (program.at("requests.get", "fetch"), program.at("  fetch(url)", "main"))
    frames = (inner, main) if inner is C10D else (inner, *own)
    ended = RankExit(exit_code=1, error_type=error, message=message, frames=frames)
    ranks = [*waiting, RankEvidence(rank=1, exit=ended)]
    return localize(ranks, folder, **more)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("requests.exceptions.ReadTimeout", "HTTPSConnectionPool: Read timed out."),
        ("ConnectionRefusedError", "[Errno 111] Connection refused"),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
        ("TimeoutError", "timed out"),
        ("subprocess.TimeoutExpired", "Command 'aws' timed out after 30 seconds"),
        ("BrokenPipeError", "[Errno 32] Broken pipe"),
    ],
)
def test_a_rank_whose_own_server_failed_it_is_no_victim(tmp_path, error, message):
    cause = after_an_end(tmp_path, error, message, REQUESTS).causes[0]
    assert (cause.category, cause.ranks, cause.victims) == ("rank_exited", (1,), (0, 2, 3))
    assert [(p.name, p.line) for p in cause.functions] == [("fetch", 5), ("main", 10)]
    assert cause.confidence == 0.9


def test_a_loader_that_timed_out_is_the_ranks_own_error(tmp_path):
    loader = Place(
        name="_try_get_data",
        file="/usr/lib/python3.11/site-packages/torch/utils/data/dataloader.py",
        line=9,
    )
    message = "DataLoader timed out after 5 seconds"
    cause = after_an_end(tmp_path, "RuntimeError", message, loader).causes[0]
    assert (cause.category, cause.ranks, cause.confidence) == ("rank_exited", (1,), 0.9)


@pytest.mark.parametrize(
    ("error", "message", "said"),
    [
        ("RuntimeError", "[pair.cc:598] Connection closed by peer", "a peer closed"),
        ("torch.distributed.DistBackendError", "watchdog: collective timeout", "timed out"),
        ("torch.distributed.DistNetworkError", "Connection reset by peer", "a peer closed"),
    ],
)
def test_who_only_lost_a_peer_is_named_with_doubt_where_nobody_else_is_seen_to_have_left(
    tmp_path, error, message, said
):
    cause = after_an_end(tmp_path, error, message, C10D).causes[0]
    assert (cause.category, cause.ranks) == ("rank_exited", (1,))
    assert (cause.confidence, cause.action) == (0.45, "investigate")
    assert any(said in line for line in cause.against)


def test_python_names_of_a_peers_loss_inside_a_collective_are_a_peers_loss(tmp_path):
    cause = after_an_end(tmp_path, "ConnectionResetError", "Connection reset by peer", C10D)
    assert cause.causes[0].confidence == 0.45


def test_an_error_of_its_own_comes_before_a_lost_connection(tmp_path):
    program = Program(tmp_path, FETCH)
    own = (program.at("requests.get", "fetch"), program.at("  fetch(url)", "main"))

    def ended(number: int, error: str, message: str) -> RankEvidence:
        told = RankExit(exit_code=1, error_type=error, message=message, frames=(REQUESTS, *own))
        return RankEvidence(rank=number, exit=told)

    ranks = [ended(0, "ConnectionResetError", "reset"), ended(1, "ValueError", "bad sample")]
    cause = localize(ranks, tmp_path).causes[0]
    assert (cause.ranks, cause.victims) == ((1,), (0,))


@pytest.mark.parametrize(
    ("line", "category"),
    [
        ("loading the tokenizer of bloom-7b, zoom 3", "rank_exited"),
        ("kernel: oom-kill: task python", "memory_pressure"),
        ("worker died: OOM", "memory_pressure"),
    ],
)
def test_a_killed_rank_ran_out_of_memory_only_where_a_line_says_so(tmp_path, line, category):
    ended = RankExit(exit_code=-9, signal="SIGKILL")
    verdict = localize([RankEvidence(rank=0, exit=ended, log_tail=line)], tmp_path)
    assert verdict.causes[0].category == category


def test_a_line_without_a_rank_tells_of_an_abort_and_the_ranks_own_line_first(tmp_path):
    ended = RankExit(exit_code=-6, signal="SIGABRT")
    shared = LogEvent(kind="other", text="op.preamble.length <= op.nbytes")
    own = LogEvent(kind="other", text="rank 1: size mismatch across ranks", rank=1)
    ranks = [RankEvidence(rank=r, exit=ended) for r in (0, 1)]
    verdict = localize(ranks, tmp_path, log_events=(shared, own))
    assert {c.category for c in verdict.causes} == {"collective_shape_mismatch"}
    found = localize(ranks[1:], tmp_path, log_events=(shared, own)).headline
    assert "size mismatch across ranks" in found
