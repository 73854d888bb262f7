"""Which hosts a job has and where rank 0 is, as its ranks' environment tells.

torchrun (RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR,
TORCHELASTIC_RUN_ID), Slurm (SLURM_JOB_NODELIST, SLURM_NNODES, SLURM_NODEID, SLURM_PROCID) and
Kubernetes' training operator (MASTER_ADDR, RANK, WORLD_SIZE, PET_NNODES). Pure functions.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_LOOPBACK = ("localhost", "127.", "::1")
_MAX_HOSTS = 100_000


@dataclass(frozen=True)
class Membership:
    """This host's place among the hosts of a job."""

    key: str
    """Names the job; the same on all its hosts."""
    address: str
    """Of the host of rank 0: a name or an IP."""
    first_rank: int
    """Lowest rank here; it names this host among the others."""
    world_size: int
    num_hosts: int | None = None
    local_world_size: int | None = None
    node_names: tuple[str, ...] = ()
    """Hosts in the order of their ranks, where the scheduler says."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces the job was told to use."""

    @property
    def is_leader(self) -> bool:
        return self.first_rank == 0

    def name_of(self, rank: int) -> str | None:
        """The host a rank is on by the scheduler's list, where each host has as many ranks."""
        per_host = self.local_world_size
        if not per_host or per_host * len(self.node_names) != self.world_size:
            return None
        return self.node_names[rank // per_host]


def read_membership(
    given: Mapping[str, str], ranks: Iterable[int], world_size: int, *, is_settled: bool
) -> Membership | None:
    """Return the membership; None for a job on one host, or while that cannot be told yet.

    ``given`` is one rank's environment and ``ranks`` those seen here; ``is_settled`` says that
    no more are expected, which counts where no launcher told how many there are.
    """
    seen = sorted(ranks)
    local_size = _number(given, "LOCAL_WORLD_SIZE")
    if not seen or world_size < 2 or local_size == world_size or len(seen) >= world_size:
        return None
    num_hosts = _first_number(given, "GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES", "SLURM_NNODES")
    if num_hosts == 1 or (local_size is None and not is_settled):
        return None
    nodes = tuple(
        expand_hosts(given.get("SLURM_STEP_NODELIST") or given.get("SLURM_JOB_NODELIST", ""))
    )
    address = given.get("MASTER_ADDR", "")
    if not address or (address.startswith(_LOOPBACK) and len(nodes) > 1):
        address = nodes[0] if nodes else address
    if not address:
        return None
    first = seen[0]
    rank, local = _number(given, "RANK"), _number(given, "LOCAL_RANK")
    if local_size is not None and rank is not None and local is not None:
        first = rank - local
    return Membership(
        key=_key(given, world_size),
        address=address,
        first_rank=first,
        world_size=world_size,
        num_hosts=num_hosts or _number(given, "PET_NNODES"),
        local_world_size=local_size,
        node_names=nodes,
        interfaces=_interfaces(given),
    )


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a Slurm list: ``gpu-[001-003,007],login`` are five. Bad text: none."""
    hosts: list[str] = []
    if text.count("[") != text.count("]"):
        return []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text):
        hosts += _expand(part.strip(), _MAX_HOSTS - len(hosts))
    return hosts


def _expand(part: str, limit: int) -> list[str]:
    match = re.match(r"([^\[]*)\[([^\]]*)\](.*)$", part)
    if match is None:
        return [part] if part and limit > 0 else []
    head, inner, tail = match.groups()
    found: list[str] = []
    for piece in inner.split(","):
        low, _, high = piece.partition("-")
        if not low.isdigit() or not (high or low).isdigit():
            return []
        for number in range(int(low), min(int(high or low), int(low) + limit) + 1):
            found += _expand(f"{head}{number:0{len(low)}d}{tail}", limit - len(found))
            if len(found) >= limit:
                return found
    return found


def _key(given: Mapping[str, str], world_size: int) -> str:
    """The run id where the launcher gave one, else where the ranks meet."""
    run = given.get("TORCHELASTIC_RUN_ID", "")
    names = ["SLURM_JOB_ID", "SLURM_STEP_ID"]
    if not run or run == "none":
        names = ["SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT"]
        run = ""
    parts = [run, str(world_size), *(given.get(name, "") for name in names)]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()


def _interfaces(given: Mapping[str, str]) -> tuple[str, ...]:
    """Names of interfaces, of the forms that name one: ``eth0``, ``=eth0``."""
    found = []
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        for name in given.get(variable, "").split(","):
            clean = name.strip().removeprefix("=")
            if re.fullmatch(r"[\w.:-]{1,15}", clean):
                found.append(clean)
    return tuple(dict.fromkeys(found))


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name, "")
    return int(text) if text.isdigit() and len(text) < 10 else None


def _first_number(given: Mapping[str, str], *names: str) -> int | None:
    return next((n for n in (_number(given, name) for name in names) if n is not None), None)
