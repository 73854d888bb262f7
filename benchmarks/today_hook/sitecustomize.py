"""Inside each rank of a case: Flight Recorder dumps when asked for, and a trace of ten steps.

benchmarks/today.py puts this folder on PYTHONPATH and names a folder in TODAY_FOLDER. It stands
for what a user of these tools has to add to a job by hand.
"""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

WAIT, ACTIVE = 10, 10  # optimizer steps before the trace and in it


def dump_when_asked(folder, rank):
    """gloo has no watchdog that would dump on time-out, so a thread does it when a file appears."""
    while not (folder / "dump").exists():
        time.sleep(0.2)
    distributed = sys.modules.get("torch._C._distributed_c10d")
    if distributed is not None:
        (folder / f"fr_{rank}").write_bytes(distributed._dump_fr_trace())


def trace_steps(folder, rank):
    """A scheduled profiler, stepped by the optimizer: its marks of steps are what HTA goes by."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=WAIT, warmup=1, active=ACTIVE, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(folder / f"trace_{rank}.json")),
    )
    state = {"step": 0}

    def after_step(*_):
        state["step"] += 1
        if state["step"] == 1:
            profiler.start()
        elif state["step"] <= WAIT + ACTIVE + 3:
            profiler.step()

    register_optimizer_step_post_hook(after_step)


def begin():
    folder, rank = Path(os.environ["TODAY_FOLDER"]), os.environ["RANK"]
    threading.Thread(target=dump_when_asked, args=(folder, rank), daemon=True).start()
    if os.environ.get("TODAY_TRACE"):
        with contextlib.suppress(ImportError):
            trace_steps(folder, rank)


if "RANK" in os.environ and "TODAY_FOLDER" in os.environ:
    begin()
