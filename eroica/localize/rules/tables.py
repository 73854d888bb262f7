"""A scanned table of very many ranks as rules see it: its scan, and the source to look again."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from eroica.config import Parameters
from eroica.localize.distance import Block, FunctionDistances
from eroica.localize.scan import Scan
from eroica.records import Finding

Int64 = NDArray[np.int64]


class Source(Protocol):
    """A table of patterns that can be read function by function, more than once."""

    @property
    def ranks_R(self) -> Int64: ...
    @property
    def roles_R(self) -> "NDArray[np.int32] | None": ...
    def blocks(self) -> Iterator[Block]: ...
    def host(self, position: int) -> str: ...


@dataclass(frozen=True)
class Fleet:
    """A scanned table with what the rules ask of it."""

    source: Source
    scan: Scan
    pauses_per_step: float | None = None
    parameters: Parameters = field(default_factory=Parameters)

    @property
    def num_ranks(self) -> int:
        return len(self.source.ranks_R)

    def role(self, position: int) -> int:
        roles = self.source.roles_R
        return int(roles[position]) if roles is not None else 0

    def ranks(self, positions: "Int64 | tuple[int, ...]") -> tuple[int, ...]:
        return tuple(int(r) for r in self.source.ranks_R[np.asarray(positions, np.int64)])

    def hosts(self, positions: "Int64 | tuple[int, ...]") -> tuple[str, ...]:
        return tuple(dict.fromkeys(h for p in positions if (h := self.source.host(int(p)))))


def pattern_finding_of(found: FunctionDistances, fleet: Fleet, position: int, text: str) -> Finding:
    """The paper's row of one abnormal rank: its pattern, its peers', Delta and the limit."""
    rank = fleet.ranks((int(found.positions_A[position]),))[0]
    peer = found.peers.get(fleet.role(int(found.positions_A[position])), (0.0, 0.0, 0.0))
    return Finding(
        id="",
        kind="pattern",
        rank=rank,
        ranks=(rank,),
        function=found.function,
        beta=round(float(found.beta_A[position]), 4),
        mu=round(float(found.mu_A[position]), 4),
        sigma=round(float(found.sigma_A[position]), 4),
        differential_distance=round(float(found.delta_A[position]), 4),
        threshold=round(float(found.threshold_A[position]), 4),
        peers=dict(zip(("beta", "mu", "sigma"), (round(v, 4) for v in peer), strict=True)),
        text=text,
    )
