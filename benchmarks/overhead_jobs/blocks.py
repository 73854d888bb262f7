"""Trains in spells with the hook and the agent, and spells without, in random order by pairs."""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.optim.optimizer as optimizers
import torch.utils.data.dataloader as loaders
from model import steps

WARM_S = 12.0  # the agent learns, takes its healthy window and reads it
BLOCK_S = 0.3
LIMIT_S = 90.0
folder, out, pairs, agent = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rank = int(os.environ["RANK"])
base = loaders._BaseDataLoaderIter
hooked = base.__next__
before, after = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
kept = dict(before), dict(after)
assert kept[0] and kept[1], "the hook is not there"


def arrange(is_on):
    before.clear()
    after.clear()
    if is_on:
        before.update(kept[0])
        after.update(kept[1])
    base.__next__ = hooked if is_on else hooked.__wrapped__
    if rank == 0:
        os.kill(agent, signal.SIGCONT if is_on else signal.SIGSTOP)


def agent_cpu_ns():
    total = 0
    for task in Path(f"/proc/{agent}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total


def tools_cpu_ns():
    """Of what the agent started and that has ended: py-spy, mostly."""
    fields = Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def agree(number):
    """Rank 0's number on all ranks."""
    if int(os.environ["WORLD_SIZE"]) == 1:
        return number
    told = torch.tensor([number])
    dist.broadcast(told, 0)
    return int(told)


loop = steps(folder, int(sys.argv[5]))
next(loop)
start = time.monotonic()
count = 0
while agree(int(time.monotonic() - start < WARM_S)):
    for _ in range(20):
        next(loop)
    count += 20
# All ranks run blocks of equally many steps, so that they change at the same one.
per_block = agree(max(3, int(count / WARM_S * BLOCK_S)))
choose = random.Random(3)
tools = tools_cpu_ns() if rank == 0 else 0
found, used, watched = [], 0, 0.0
for _ in range(pairs):
    if agree(int(time.monotonic() - start > LIMIT_S)):
        break
    times = {}
    for is_on in choose.sample((True, False), 2):
        arrange(is_on)
        cpu = agent_cpu_ns() if rank == 0 else 0
        began = time.perf_counter()
        for _ in range(per_block):
            next(loop)
        took = time.perf_counter() - began
        times[is_on] = took / per_block * 1e3
        if is_on and rank == 0:
            used += agent_cpu_ns() - cpu
            watched += took
    found.append([times[True], times[False]])
arrange(True)
if rank == 0:
    told = {"pairs": found, "agent": used / 1e9 / watched}
    told["tools"] = (tools_cpu_ns() - tools) / 1e9 / watched
    Path(out).write_text(json.dumps(told))
