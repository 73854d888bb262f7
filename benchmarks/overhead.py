"""What watching costs: hook per iteration, step time watched over unwatched, agent, window pause.

    python benchmarks/overhead.py            all parts
    python benchmarks/overhead.py --pairs 10 --ranks 2

Pairs of runs alternate which comes first; the ratio's 95 % upper bound is of the mean of the
pairs' ratios of median step times (Student's t). Run it alone on the machine.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

INJECT = Path(__file__).parents[1] / "eroica" / "collect" / "inject"

JOB = """
import json, os, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
layers = [torch.nn.Linear(128, 128) for _ in range(8)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64 * int(sys.argv[1]), 128))
times = []
for (x,) in DataLoader(data, batch_size=64):
    start = time.perf_counter()
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter() - start)
if rank == 0:
    json.dump(times[20:], open(sys.argv[2], "w"))
dist.destroy_process_group()
"""

HOOK = """
import json, time
import torch
import torch.optim.optimizer as optimizers
import torch.utils.data.dataloader as loaders
class Loader(loaders._BaseDataLoaderIter):
    def __init__(self): self._dataset = None
    def __next__(self): return 0
class Nothing(torch.optim.Optimizer):
    def __init__(self): super().__init__([torch.zeros(1, requires_grad=True)], {})
    def step(self): return None
loader, optimizer = Loader(), Nothing()
hooked = Loader.__next__
before, after = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
kept = dict(before), dict(after)
assert kept[0] and kept[1], "the hook is not there"
def arrange(is_on):
    before.clear(), after.clear()
    if is_on: before.update(kept[0]), after.update(kept[1])
    Loader.__next__ = hooked if is_on else hooked.__wrapped__
times = {True: [], False: []}
for _ in range(100):
    for is_on in (True, False):
        arrange(is_on)
        start = time.thread_time_ns()
        for _ in range(2000):
            loader.__next__()
            optimizer.step()
        times[is_on].append((time.thread_time_ns() - start) / 2000)
print(json.dumps([times[True], times[False]]))
"""


def run_plain(script, steps, ranks):
    """Median step time in ms without eroica."""
    return run(script, steps, ranks, [])


def run_watched(script, steps, ranks):
    code = (
        "import sys; from eroica.watch.run import watch;"
        "result = watch(sys.argv[1:], once=False); sys.exit(result.exit_code or 0)"
    )
    return run(script, steps, ranks, [sys.executable, "-c", code])


def run(script, steps, ranks, prefix):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*prefix, *torchrun, f"--nproc_per_node={ranks}", str(script), str(steps), out]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        return statistics.median(json.loads(out.read_text())) * 1e3


def hook_cost_us():
    """What the hook adds to an empty loader next and an empty step, CPU time: (best, median, bare).

    With and without it alternate a hundred times in one process; ``best`` is the difference of the
    two minima, ``median`` that of the pairs.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        given = dict(os.environ, PYTHONPATH=str(INJECT), EROICA_RUN=folder)
        given.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        done = subprocess.run(
            [sys.executable, "-c", HOOK], env=given, check=True, capture_output=True, text=True
        )
    hooked, bare = json.loads(done.stdout)
    pairs = [a - b for a, b in zip(hooked, bare, strict=True)]
    return (min(hooked) - min(bare)) / 1e3, statistics.median(pairs) / 1e3, min(bare) / 1e3


def agent_share(seconds=10.0):
    """CPU of the agent's loop as a share of one core while four ranks step every 20 ms."""
    from eroica.collect.hook.ring import Ring
    from eroica.config import Parameters
    from eroica.watch.continuous import Continuous
    from eroica.watch.live import WatchedJob

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        rings = []
        for rank in range(4):
            os.environ.update(RANK=str(rank), WORLD_SIZE="4")
            rings.append(Ring.create(folder))
        job = WatchedJob(0, Path(folder), Parameters())
        loop = Continuous(
            job, Path(folder), Parameters(), on_incident=print, progress=lambda text: None
        )
        loop._is_baseline_taken = True
        writer_s = 0.0
        until = time.monotonic() + seconds
        start = time.process_time()
        while time.monotonic() < until:
            time.sleep(0.1)
            began = time.process_time()
            for ring in rings:
                for _ in range(5):
                    for kind in (1, 2, 3):
                        ring.record(kind)
                    ring.record(4)
            writer_s += time.process_time() - began
            loop.turn(time.monotonic())
        used = time.process_time() - start - writer_s
        loop.close()
        job.close()
        return used / seconds


def upper_bound(ratios):
    """Mean and its one-sided 95 % upper bound."""
    t95 = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89, 9: 1.86, 10: 1.83}
    mean = statistics.mean(ratios)
    spread = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    return mean, mean + t95.get(len(ratios), 1.7) * spread


def main():
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--pairs", type=int, default=10)
    given.add_argument("--ranks", type=int, default=2)
    given.add_argument("--steps", type=int, default=1500)
    asked = given.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    best, median, bare = hook_cost_us()
    print(f"hook           {best:.2f} us an iteration, median {median:.2f} (bare {bare:.2f} us)")
    print(f"agent          {100 * agent_share():.2f} % of a core, 4 ranks at 50 steps/s")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.py"
        script.write_text(textwrap.dedent(JOB))
        ratios = []
        for number in range(asked.pairs):
            both = [run_plain, run_watched]
            order = both if number % 2 else both[::-1]
            times = {way: way(script, asked.steps, asked.ranks) for way in order}
            ratios.append(times[run_watched] / times[run_plain])
            print(
                f"pair {number + 1:2}        {times[run_plain]:.2f} ms plain,"
                f" {times[run_watched]:.2f} ms watched, ratio {ratios[-1]:.3f}"
            )
        mean, upper = upper_bound(ratios)
        print(f"watched/plain  mean {mean:.3f}, 95 % upper bound {upper:.3f}")


if __name__ == "__main__":
    main()
