"""The part of eroica that lives inside a training process.

Standard library only, Python 3.9 syntax, relative imports only: ``eroica run`` loads this folder
by its path as the package ``eroica_hook`` into whatever Python the job uses. It records when
loaders and optimizers begin and end into a memory-mapped ring, and has one thread that sleeps in
``accept`` until an agent asks for something. Nothing here may raise into the training: each entry
point catches at one place, says so once, and turns itself off.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from . import guard
from .ring import Ring

__all__ = ["attach", "is_attached", "step"]

_ring: Ring | None = None


def attach() -> bool:
    """Start recording in this process; False where it is not a rank, off, or a child of one."""
    global _ring
    if _ring is not None:
        return True
    if os.environ.get("RANK") is None or os.environ.get("EROICA") == "0":
        return False
    other = sys.modules.get("_eroica_attached")
    if other is not None:  # a second copy: `import eroica` under `eroica run`
        _ring = other.ring
        return True
    with guard.quietly("attach"):
        _ring = _attach()
    return _ring is not None


def attach_later() -> None:
    """Wait for ``init_process_group`` where no launcher said which rank this is (mp.spawn)."""
    from .imports import when_imported

    def watch(module: Any) -> None:
        original = module.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            global _ring
            result = original(*args, **kwargs)
            if _ring is None:
                with guard.quietly("attach"):
                    _ring = _attach(module.get_rank(), module.get_world_size())
            return result

        module.init_process_group = init_process_group

    when_imported("torch.distributed.distributed_c10d", watch)


def is_attached() -> bool:
    return _ring is not None


def step() -> None:
    """Mark the end of a step in a loop that has neither a DataLoader nor an optimizer."""
    ring = _ring
    if ring is not None:
        ring.mark_step()


def _attach(rank: int | None = None, world_size: int | None = None) -> Ring | None:
    import types

    from . import control, exits, facts, loops, sampler, server, window
    from .folder import find_folder, is_child_of_rank, is_shared, sweep

    folder = find_folder()
    if folder is None or is_child_of_rank(folder):
        return None
    if not is_shared():
        sweep()
    ring = Ring.create(folder, rank, world_size)
    # Kineto tells of each window on the job's stderr; it reads this when torch is loaded.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    marker = types.ModuleType("_eroica_attached")
    marker.__dict__["ring"] = ring
    sys.modules["_eroica_attached"] = marker
    os.register_at_fork(after_in_child=ring.detach)
    facts.install()
    loops.install(ring)
    windows = window.Windows(ring, folder)
    ring.on_border = windows.at_border
    samples = sampler.Sampler(windows)
    exits.install(ring, folder, windows, samples)
    control.start(ring, folder, windows, samples)
    server.install(ring, folder)
    if not is_shared():
        from .launch import start_agent

        with guard.quietly("starting the agent"):
            start_agent(folder)
    return ring
