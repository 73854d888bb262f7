"""Peers are ranks of one role: the stages of a pipeline rightly differ."""

from dataclasses import replace

import numpy as np
from make_patterns import make_patterns

from eroica.config import Parameters
from eroica.localize.roles import roles_of_patterns
from eroica.localize.slow import _links

SIZE = 64
GROUPS = {f"pp_{first}": (first, first + SIZE // 2) for first in range(SIZE // 2)}


def two_stages(groups):
    """A healthy pipeline of two stages; the few ranks of a side stage send evenly and little."""
    patterns = make_patterns(SIZE, ())
    side = range(SIZE // 2, SIZE // 2 + 4)
    made = []
    for one in patterns:
        beta, mu, sigma = one.beta_F.copy(), one.mu_F.copy(), one.sigma_F.copy()
        beta[1] = 0.25
        mu[1], sigma[1] = (0.15, 0.01) if one.rank in side else (0.85, 0.08)
        own = {name: members for name, members in groups.items() if one.rank in members}
        made.append(replace(one, beta_F=beta, mu_F=mu, sigma_F=sigma, groups=own))
    return made


def test_ranks_of_one_place_in_their_pipelines_are_peers():
    assert roles_of_patterns(two_stages(GROUPS)).tolist() == [0] * 32 + [1] * 32
    assert roles_of_patterns(two_stages({})).tolist() == [0] * 64
    shuffled = [two_stages(GROUPS)[rank] for rank in (40, 1, 33, 0)]
    assert roles_of_patterns(shuffled).tolist() == [1, 0, 1, 0]


def test_a_group_that_does_not_hold_the_rank_says_nothing_of_it():
    patterns = [replace(one, groups={"pp_0": (7, 9)}) for one in make_patterns(4, ())]
    assert np.array_equal(roles_of_patterns(patterns), np.zeros(4))


def test_links_are_compared_within_a_role(monkeypatch):
    seen = []
    from eroica.localize import fleet

    real = fleet.scan_table

    def scan_table(table, **more):
        seen.append(table.roles_R)
        return real(table, **more)

    monkeypatch.setattr(fleet, "scan_table", scan_table)
    _links(two_stages(GROUPS), Parameters())
    assert seen == [("0",) * 32 + ("1",) * 32]
