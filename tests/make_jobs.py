"""Small real jobs, run with eroica and without: what they give must be the same.

A job trains on fixed numbers and writes what came of it to ``result-RANK``; ``EXTRA`` code runs
before the loop, and ``each(i)``, where it is defined there, in every iteration.
"""

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from eroica.collect import proc
from eroica.collect.hook import layout

TRAIN = """
import os, signal, subprocess, sys, threading, time
import torch
import torch.distributed as dist

HERE = os.path.dirname(os.path.abspath(__file__))
rank = int(os.environ.get("RANK", 0))
each = lambda i: None

def is_window_open():
    attached = sys.modules.get("_eroica_attached")
    return attached is not None and bool(attached.ring.words[WINDOW_WORD])

def say(name, text=""):
    with open(os.path.join(HERE, name), "w") as stream:
        stream.write(text)

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(16, 16)
if "MASTER_PORT" in os.environ:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

# EXTRA

def train():
    for i in range(STEPS):
        each(i)
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(PAUSE)

def main():
    train()
    say(f"result-{rank}", float(sum(p.sum() for p in model.parameters())).hex())
    if dist.is_initialized():
        dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


class Job:
    """A training script in ``folder``, to be started in several ways."""

    def __init__(self, folder, extra="", *, steps=200, pause=0.01, ranks=1, options=()):
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.script = self.folder / "train.py"
        text = TRAIN.replace("# EXTRA", textwrap.dedent(extra))
        values = {"STEPS": steps, "PAUSE": pause, "WINDOW_WORD": layout.W_WINDOW}
        for name, value in values.items():
            text = text.replace(name, str(value))
        self.script.write_text(text)
        self.ranks = ranks
        self.command = [sys.executable, str(self.script)]
        if ranks > 1:
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            self.command = [*torchrun, f"--nproc_per_node={ranks}", *options, str(self.script)]

    @property
    def environment(self):
        given = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "EROICA"))}
        return given if self.ranks > 1 else given | {"RANK": "0", "WORLD_SIZE": "1"}

    def start(self, *before, **options):
        """Start it behind the words of another command."""
        given = {"env": self.environment, "stdin": subprocess.DEVNULL, "cwd": self.folder}
        return subprocess.Popen([*before, *self.command], **{**given, **options})

    def start_under_eroica(self, *options, **arguments):
        return self.start(sys.executable, "-m", "eroica", "run", *options, "--", **arguments)

    @property
    def results(self):
        """What each rank wrote at its end."""
        return {int(path.name[7:]): path.read_text() for path in self.folder.glob("result-*")}

    def processes(self):
        """Every living process that has to do with it."""
        found = {}
        for pid in proc.all_stats():
            words = " ".join(proc.read_command(pid))
            if str(self.folder) in words and proc.is_alive(pid) and pid != os.getpid():
                found[pid] = words
        return found

    def left(self, seconds=5.0):
        """Those that are still there after a while; they are ended, lest a test leaves any."""
        until = time.monotonic() + seconds
        while self.processes() and time.monotonic() < until:
            time.sleep(0.1)
        found = self.processes()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        return found


def wait_for(condition, seconds=60.0):
    """Poll until it holds; its value."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")
