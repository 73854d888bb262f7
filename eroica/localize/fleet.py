"""Localize on numbers alone: pattern tables of thousands to a million ranks.

``localize_slow`` looks at stacks and evidence of each rank; this looks at three numbers a function
and rank, in one pass (two when ranks stand out), with one function in memory at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eroica import units
from eroica.columns import PatternTable
from eroica.config import Parameters, load
from eroica.localize.distance import Block, blocks_of
from eroica.localize.ranking import number, rank_drafts
from eroica.localize.rules.draft import Draft
from eroica.localize.rules.everywhere import common_python
from eroica.localize.rules.links import bad_links
from eroica.localize.rules.slow_ranks import slow_ranks
from eroica.localize.rules.tables import Fleet
from eroica.localize.scan import Scan, scan
from eroica.localize.table_file import TableFile, open_table
from eroica.records import Finding, Verdict

MAX_FINDINGS = 40  # rows of the paper's table that a person may look through


@dataclass(frozen=True)
class InMemory:
    """A ``PatternTable`` as a source of blocks."""

    table: PatternTable

    @property
    def ranks_R(self) -> NDArray[np.int64]:
        return self.table.ranks_R

    @property
    def roles_R(self) -> NDArray[np.int32] | None:
        if not self.table.roles_R:
            return None
        number = {role: i for i, role in enumerate(sorted(set(self.table.roles_R)))}
        return np.array([number[r] for r in self.table.roles_R], np.int32)

    def blocks(self) -> Iterator[Block]:
        return blocks_of(self.table)

    def host(self, position: int) -> str:
        return self.table.hosts_R[position] if self.table.hosts_R else ""


@dataclass(frozen=True)
class OnDisk:
    """A dense table file as a source of blocks."""

    file: TableFile

    @property
    def ranks_R(self) -> NDArray[np.int64]:
        return self.file.ranks_R

    @property
    def roles_R(self) -> NDArray[np.int32] | None:
        return self.file.roles_R

    def blocks(self) -> Iterator[Block]:
        return self.file.blocks()

    def host(self, position: int) -> str:
        if self.file.host_ids_R is None:
            return ""
        return self.file.host_names[int(self.file.host_ids_R[position])]


def localize_table(
    table: PatternTable | TableFile | str | Path, *, parameters: Parameters | None = None
) -> Verdict:
    """Return what a pattern table shows: bad links, throttled GPUs, slow ranks, common Python.

    A path must be a dense table (``table_file``); InputError otherwise.
    """
    parameters = parameters or load()
    fleet = scan_table(table, parameters=parameters)
    drafts = fleet_rules(fleet)
    standing = rank_drafts(drafts, parameters)
    causes, findings = number(standing, _rows(fleet.scan, fleet))
    headline = (
        causes[0].summary
        if causes
        else f"{fleet.num_ranks} rank{'s' if fleet.num_ranks != 1 else ''}, "
        f"{len(fleet.scan.functions)} functions, none off its peers by a cost that matters"
    )
    return Verdict(
        symptom="slow" if causes else ("healthy" if fleet.scan.functions else "unknown"),
        causes=tuple(causes),
        findings=tuple(findings),
        headline=headline,
    )


def scan_table(
    table: PatternTable | TableFile | str | Path, *, parameters: Parameters | None = None
) -> Fleet:
    """Return the table's scan with its source, for rules of one's own."""
    if isinstance(table, PatternTable):
        source: InMemory | OnDisk = InMemory(table)
    else:
        source = OnDisk(table if isinstance(table, TableFile) else open_table(table))
    roles = source.roles_R
    result = scan(source.blocks(), roles_R=roles, parameters=parameters)
    return Fleet(source, result, _pauses_per_step(table), parameters or Parameters())


def fleet_rules(fleet: Fleet) -> list[Draft]:
    """Return every cause that patterns of many ranks alone can show."""
    if fleet.num_ranks < 2 or not fleet.scan.functions:
        return []
    drafts = bad_links(fleet)
    linked = {r for d in drafts if d.ranks != "all" for r in d.ranks}
    drafts += [d for d in slow_ranks(fleet) if not set(d.ranks) <= linked]
    return drafts + common_python(fleet)


def _pauses_per_step(table: object) -> float | None:
    """Collections a step and rank, where the table counts executions."""
    if not isinstance(table, PatternTable) or table.count_FR is None:
        return None
    steps = table.num_steps_R
    for row, function in enumerate(table.functions):
        if function.name == "Python GC" and steps is not None and (steps > 0).any():
            rate = float(np.median(table.count_FR[row] / np.maximum(steps, 1)))
            return rate or None
    return None


def _rows(result: Scan, fleet: Fleet) -> list[Finding]:
    """The abnormal functions as the paper lists them, largest first, a row a function."""
    rows = [f for f in result.found if len(f.positions_A)]
    rows.sort(key=lambda f: -float(f.beta_A.max()))
    findings: list[Finding] = []
    for found in rows[:MAX_FINDINGS]:
        top = int(found.delta_A.argmax())
        ranks = fleet.ranks(found.positions_A[:64])
        role = fleet.role(int(found.positions_A[top]))
        peer = found.peers.get(role, (0.0, 0.0, 0.0))
        count = len(found.positions_A)
        who = units.rank_phrase(ranks) if count <= 64 else f"{count} ranks"
        findings.append(
            Finding(
                id="",
                kind="pattern",
                rank=ranks[0] if count == 1 else None,
                ranks=ranks,
                function=found.function,
                beta=round(float(found.beta_A[top]), 4),
                mu=round(float(found.mu_A[top]), 4),
                sigma=round(float(found.sigma_A[top]), 4),
                differential_distance=round(float(found.delta_A[top]), 4),
                threshold=round(float(found.threshold_A[top]), 4),
                peers=dict(zip(("beta", "mu", "sigma"), (round(v, 4) for v in peer), strict=True)),
                text=f"{found.function.name} differs on {who}",
                details={"num_ranks": count},
            )
        )
    return findings
