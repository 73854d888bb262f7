"""What can be done for a stuck job right now, gentlest first: data only, nothing is run."""

from collections.abc import Sequence

import msgspec

from eroica.records import FAMILY, Incident, JobEvidence


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a person may do. ``command`` is shown, never run."""

    name: str
    does: str
    command: str
    risk: str
    is_reversible: bool


def ladder(incident: Incident, evidence: JobEvidence | None = None) -> tuple[Rung, ...]:
    """Return the rungs for a stuck job, in order; empty for any other."""
    if incident.symptom != "stuck":
        return ()
    pids = {rank.rank: rank.pid for rank in evidence.ranks if rank.pid} if evidence else {}
    guilty = _guilty(incident)
    rungs = [_dump(incident, pids)]
    category = incident.causes[0].category if incident.causes else ""
    if category in ("blocked_io", "polling_wait"):
        rungs.append(_release_wait(pids, guilty))
    if FAMILY.get(category) == "lock":
        rungs.append(_end_children(pids, guilty))
    rungs += [_wait_for_watchdog(incident), _end_rank(pids, guilty), _restart(incident)]
    return tuple(rungs)


def _guilty(incident: Incident) -> tuple[int, ...]:
    ranks = incident.causes[0].ranks if incident.causes else ()
    return incident.job.ranks if ranks == "all" else tuple(ranks)


def _pid(pids: dict[int, int], ranks: Sequence[int]) -> str:
    known = [str(pids[rank]) for rank in ranks if rank in pids]
    return " ".join(known[:8]) or "PID"


def _dump(incident: Incident, pids: dict[int, int]) -> Rung:
    return Rung(
        name="dump",
        does="Keep the stacks and Flight Recorder of all ranks before anything changes.",
        command=f"eroica collect -o {incident.id}-live",
        risk="none: reads only, 10 to 15 ms a rank",
        is_reversible=True,
    )


def _release_wait(pids: dict[int, int], ranks: Sequence[int]) -> Rung:
    choice = _pid(pids, ranks).replace(" ", "|")
    return Rung(
        name="release",
        does="End what the rank waits for (the connection, the child), so that its call fails.",
        command=f"ss -tnp | grep -E 'pid=({choice})'; ss -K dst PEER dport = PORT",
        risk="the rank raises an error; without a retry in the code the job ends",
        is_reversible=False,
    )


def _end_children(pids: dict[int, int], ranks: Sequence[int]) -> Rung:
    return Rung(
        name="release",
        does="End the blocked loader worker: the loader raises in the parent.",
        command=f"pgrep -P {_pid(pids, ranks).split()[0]}; kill WORKER",
        risk="the epoch ends with an error on that rank; a lock between threads is not released so",
        is_reversible=False,
    )


def _wait_for_watchdog(incident: Incident) -> Rung:
    return Rung(
        name="wait",
        does="Let the collective time-out end the job, and keep its dumps.",
        command="tail -f the job's log",
        risk="costs the time until then; nothing else",
        is_reversible=True,
    )


def _end_rank(pids: dict[int, int], ranks: Sequence[int]) -> Rung:
    return Rung(
        name="abort",
        does="End one guilty rank in order: its peers' collectives fail and torchrun ends or "
        "restarts the job.",
        command=f"kill -TERM {_pid(pids, ranks).split()[0]}",
        risk="all work since the last checkpoint is lost; with --max-restarts the job starts again",
        is_reversible=False,
    )


def _restart(incident: Incident) -> Rung:
    command = " ".join(incident.job.command) or "the job's command"
    return Rung(
        name="restart",
        does="End the job and start it from the last whole checkpoint, with the patch applied.",
        command=command,
        risk="all work since the last checkpoint is lost; check that the checkpoint loads first",
        is_reversible=False,
    )
