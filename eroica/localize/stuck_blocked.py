"""Ranks that do not wait for their peers: each wait followed to its root, rule by kind."""

from collections.abc import Sequence

from eroica.localize.source import Project
from eroica.localize.source_calls import Calls
from eroica.localize.stuck_children import child_root, loader_root, pipe_root
from eroica.localize.stuck_locks import lock_root
from eroica.localize.stuck_peers import Peers
from eroica.localize.stuck_pools import or_full_pool
from eroica.localize.stuck_queues import event_root, queue_root, thread_root
from eroica.localize.stuck_root import Blocked, Root, Rule, suspect
from eroica.localize.stuck_store import store
from eroica.localize.stuck_suspect import Suspect
from eroica.localize.stuck_view import RankView, innermost
from eroica.records import LogEvent

RULES: dict[str, Rule] = {
    "loader": loader_root,
    "io": pipe_root,
    "child": or_full_pool(child_root),
    "lock": lock_root,
    "queue_get": queue_root,
    "queue_put": queue_root,
    "event": event_root,
    "thread": thread_root,
    "future": or_full_pool(thread_root),
}


def follower(project: Project, calls: Calls, log_events: Sequence[LogEvent] = ()) -> Blocked:
    return Blocked(project, calls, RULES, log_events)


def blocked(
    some: Sequence[RankView], rules: Blocked, waiting: tuple[int, ...], peers: Peers
) -> list[Suspect]:
    """Return a suspect for each rank that waits for something other than its peers."""
    in_store = [v for v in some if v.wait is not None and v.wait.kind == "store"]
    found = store(peers, in_store) if in_store else []
    moving: list[RankView] = []
    for view in some:
        if view in in_store or view.wait is None:
            continue
        root = rules.root(view, view.wait)
        if root is not None:
            found.append(suspect(view, root, waiting))
        elif view.is_moving and waiting:
            moving.append(view)
    # The first rank of each host saves, say: what rank 0 does with others is one cause.
    first = next((innermost(v.wait) for v in moving if v.rank == 0), None)
    for view in moving:
        alike = view.rank == 0 or (first is not None and innermost(view.wait) == first)
        found.append(_progressing(view, waiting, is_first=alike))
    return found


def _progressing(view: RankView, waiting: tuple[int, ...], *, is_first: bool) -> Suspect:
    """Not a hang: the rank works while the others wait for it."""
    assert view.wait is not None
    root = Root(
        "serialized_on_rank0" if is_first else "straggler_compute",
        view.wait.user[:2],
        0.55,
        "still works while the others wait for it",
        ("its stack changed between two samples, or it was on CPU in both",),
        ("with more time it may come",),
        "let every rank do its share of that work, or raise the collective time-out",
        "investigate",
    )
    return suspect(view, root, waiting)
