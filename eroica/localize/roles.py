"""Which ranks are peers: those that should behave alike.

Pipeline stages and expert groups rightly differ, so ranks are compared inside roles only. A role is
taken from the process groups: in a group that spans stages (``pp``) the members differ, in all
others (data, tensor, expert-data parallel) they are alike. Names decide which is which; where no
group is known, all ranks are peers.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.columns import RankPatterns

STAGE_NAMES = ("pp", "pipe", "pipeline", "stage", "embd", "embedding")


def is_stage_group(name: str, description: str = "") -> bool:
    """Whether the members of a group are the stages of one pipeline."""
    text = (description or name).lower()
    words = text.replace("-", "_").replace(":", "_").split("_")
    return any(word in STAGE_NAMES or word.rstrip("0123456789") in STAGE_NAMES for word in words)


def roles_of_patterns(patterns: Sequence[RankPatterns]) -> NDArray[np.int32]:
    """Return one role number a rank: its place in the pipeline group it belongs to, 0 without one.

    Groups are those that the ranks' traces name. Worked example: groups ``pp_0 = (0, 2)`` and
    ``pp_1 = (1, 3)`` give ranks 0 and 1 role 0, ranks 2 and 3 role 1.
    """
    place: dict[int, int] = {}
    for one in patterns:
        for name, members in one.groups.items():
            if is_stage_group(name) and one.rank in members:
                place[one.rank] = members.index(one.rank)
    return np.array([place.get(one.rank, 0) for one in patterns], dtype=np.int32)
