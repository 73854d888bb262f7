"""A Ray cluster as an engine: the same map, for many hosts that share a file system.

Each task reads and summarizes one rank's file where it runs and sends 30 KB back. Ray is an extra;
it connects to ``RAY_ADDRESS`` or the running cluster, else it starts on this machine.
"""

import importlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TypeVar, cast

from eroica.engines.calls import Call, Failure, describe
from eroica.errors import MissingExtra

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 4
"""Tasks in flight a core: enough to hide scheduling, few enough to stop quickly."""


def run_on_ray(
    function: Callable[[Item], Result], items: Sequence[Item], *, workers: int | None
) -> Iterator["Result | Failure"]:
    """Yield outcomes in the order of the items; MissingExtra where ray is not installed."""
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtra("the Ray engine", "ray") from error
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(log_to_driver=False, configure_logging=False)
    try:
        yield from _map(ray, Call(function), items, workers)
    finally:
        if started_here:
            ray.shutdown()


def _map(
    ray: ModuleType, call: Call[Item, Result], items: Sequence[Item], workers: int | None
) -> Iterator["Result | Failure"]:

    def run(item: Item) -> "Result | Failure":  # Ray takes plain functions only
        return call(item)

    task = ray.remote(num_cpus=1, max_retries=1)(run)
    cores = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting: deque[tuple[Item, object]] = deque()
    position = 0
    try:
        while waiting or position < len(items):
            limit = cores if workers else cores * _AHEAD
            while position < len(items) and len(waiting) < limit:
                waiting.append((items[position], task.remote(items[position])))
                position += 1
            item, reference = waiting.popleft()
            yield cast("Result | Failure", _outcome(ray, item, reference))
    finally:
        for _, reference in waiting:
            ray.cancel(reference, force=True)


def _outcome(ray: ModuleType, item: object, reference: object) -> object:
    try:
        outcome: object = ray.get(reference)
    except ray.exceptions.RayError as error:
        return Failure(
            f"{describe(item)} could not be summarized",
            f"Ray: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            "`ray status` and the worker's log say more",
            False,
        )
    return outcome
