"""A watched job for a long time, with faults at random: does what watches it stay small?

    python benchmarks/soak.py --minutes 60                 what a release is held to
    python benchmarks/soak.py --minutes 3 --ranks 2 --seed 4

A training job of gloo ranks runs under ``eroica run``. Every half minute or so a fault is put into
one rank, each lasting some seconds and then over: sleeping in a step, slow steps, a busy thread,
storms of garbage collection, SIGSTOP and SIGCONT. Once a second the memory, open files, threads and
child processes of eroica are read, and the files of its folder and store are counted. At the end
the first third of these is compared with the last: what grows fails. So does a job that does not
end well, an incident that is not whole, and anything left behind.

Faults that were told within a minute are counted too; that is no part of the verdict: short slow
spells may pass untold by design (at most six windows a day).
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
SETTLE, SETTLE_S = 0.2, 110.0  # before the first third begins: the first window loads the readers
GROWTH, GROWTH_MB = 1.15, 24.0  # memory that grows by both is growing
TOLD_S = 60.0

JOB = """
import gc, json, os, pathlib, sys, threading, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

orders = pathlib.Path(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
layers = [torch.nn.Linear(64, 256), *(torch.nn.Linear(256, 256) for _ in range(6))]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = TensorDataset(torch.randn(4096, 64))
mine = orders / f"rank-{rank}.json"


def burn(until):
    while time.monotonic() < until:
        sum(range(1000))


def storm():
    rings = [[] for _ in range(20000)]
    for one in rings:
        one.append(one)
    del rings
    gc.collect()


def sleep_once(seconds):
    time.sleep(seconds)


def slow_step():
    time.sleep(0.05)


fault, until, step, is_over = "", 0.0, 0, torch.zeros(1)
while not is_over.item():
    for (x,) in DataLoader(data, batch_size=64):
        if mine.exists():
            order = json.loads(mine.read_text())
            mine.unlink()
            fault, until = order["kind"], time.monotonic() + order["seconds"]
            if fault == "busy":
                threading.Thread(target=burn, args=(until,), daemon=True).start()
            if fault == "sleep":
                sleep_once(order["seconds"])
        if time.monotonic() < until:
            if fault == "slow":
                slow_step()
            elif fault == "gc":
                storm()
        model(x).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    if rank == 0:
        is_over[0] = float((orders / "stop").exists())
        (orders / "steps").write_text(str(step))
    dist.broadcast(is_over, 0)
dist.destroy_process_group()
"""
SECONDS = {
    "sleep": (8.0, 14.0),
    "stop": (8.0, 14.0),
    "slow": (15.0, 25.0),
    "gc": (15.0, 25.0),
    "busy": (10.0, 20.0),
}


@dataclass
class Sample:
    """eroica at one moment."""

    seconds: float
    rss_mb: float
    num_fds: int
    num_threads: int
    num_children: int
    num_files: int
    """In the folder of the running job."""
    num_stored: int
    """Files in the incident store."""


@dataclass
class Fault:
    kind: str
    rank: int
    seconds: float
    at: float
    told: str = ""


@dataclass
class Soak:
    folder: Path
    minutes: float
    ranks: int
    random: random.Random
    samples: list[Sample] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    started: float = 0.0
    """Unix time."""
    run_folder: Path | None = None
    """Where the hook of the ranks meets eroica."""

    def run(self) -> list[str]:
        """Run it all; return what is wrong."""
        self.folder.joinpath("train.py").write_text(JOB)
        orders = self.folder / "orders"
        orders.mkdir()
        command = [
            *(sys.executable, "-P", "-m", "eroica", "run", "--"),
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc_per_node={self.ranks}", "train.py", str(orders)),
        ]
        env = os.environ | {"EROICA_HOME": str(self.folder / "home"), "NO_COLOR": "1"}
        log = (self.folder / "log").open("wb")
        process = subprocess.Popen(
            command, cwd=self.folder, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        try:
            self._watch(process, orders)
            (orders / "stop").touch()
            status = process.wait(120)
            time.sleep(2)
            left = left_behind(str(orders), self.run_folder, status)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
            return [f"the job did not end: {error!r}"]
        finally:
            end_all(process, str(orders))
            log.close()
        return [*self._growth(), *self._incidents(), *left]

    # --- while it runs

    def _watch(self, process: "subprocess.Popen[bytes]", orders: Path) -> None:
        start, self.started = time.monotonic(), time.time()
        next_fault = start + 25
        while (now := time.monotonic()) < start + self.minutes * 60:
            if process.poll() is not None:
                raise KeyboardInterrupt(f"eroica ended with {process.returncode}")
            with contextlib.suppress(OSError, IndexError, ValueError):
                self.samples.append(self._sample(process.pid, now - start))
            is_room = now < start + self.minutes * 60 - 45
            if self.run_folder is None:
                self.run_folder = find_run_folder(str(orders))
            if now >= next_fault and is_room and (ranks := rank_pids(str(orders))):
                fault = self._inject(orders, ranks, now - start)
                next_fault = now + fault.seconds + self.random.uniform(15, 40)
            if int(now - start) % 60 == 0:
                self._say(int(now - start) // 60, orders)
            time.sleep(1)

    def _inject(self, orders: Path, ranks: dict[int, int], at: float) -> Fault:
        kind = self.random.choice(list(SECONDS))
        rank = self.random.choice(sorted(ranks))
        fault = Fault(kind, rank, self.random.uniform(*SECONDS[kind]), at)
        self.faults.append(fault)
        if kind == "stop":
            os.kill(ranks[rank], signal.SIGSTOP)
            timer = threading.Timer(fault.seconds, continue_again, (ranks[rank],))
            timer.daemon = True
            timer.start()
        else:
            scratch = orders / "order"
            scratch.write_text(json.dumps({"kind": kind, "seconds": fault.seconds}))
            scratch.replace(orders / f"rank-{rank}.json")
        return fault

    def _sample(self, pid: int, seconds: float) -> Sample:
        base = Path(f"/proc/{pid}")
        stat = (base / "stat").read_text().rpartition(")")[2].split()
        store = self.folder / "home"
        children = [
            one for one in children_of(pid) if "torch.distributed.run" not in command_of(one)
        ]
        return Sample(
            seconds=seconds,
            rss_mb=int((base / "statm").read_text().split()[1]) * PAGE / 1e6,
            num_fds=len(list((base / "fd").iterdir())),
            num_threads=int(stat[17]),
            num_children=len(children),
            num_files=sum(len(names) for _, _, names in os.walk(self.run_folder or "")),
            num_stored=sum(len(names) for _, _, names in os.walk(store)),
        )

    def _say(self, minute: int, orders: Path) -> None:
        if not self.samples:
            return
        last = self.samples[-1]
        steps = (orders / "steps").read_text() if (orders / "steps").exists() else "0"
        print(
            f"{minute:4d} min  rss {last.rss_mb:6.1f} MB  files open {last.num_fds:3d}  "
            f"threads {last.num_threads:2d}  children {last.num_children}  "
            f"in memory {last.num_files:3d}  stored {last.num_stored:4d}  "
            f"faults {len(self.faults):3d}  steps {steps}",
            flush=True,
        )

    # --- afterwards

    def _growth(self) -> list[str]:
        begin = max(SETTLE_S, SETTLE * self.minutes * 60)
        settled = [sample for sample in self.samples if sample.seconds > begin]
        third = len(settled) // 3
        if third < 5:
            return ["too short to say whether anything grows: 3 minutes are the least"]
        first, last = settled[:third], settled[-third:]
        wrong = []
        for name in ("rss_mb", "num_fds", "num_threads", "num_children", "num_files"):
            old, new = (statistics.median(getattr(s, name) for s in part) for part in (first, last))
            slack = GROWTH_MB if name == "rss_mb" else 4
            grows = new > GROWTH * old and new > old + slack
            print(f"{name:13s} {old:8.1f} -> {new:8.1f}{'   GROWS' if grows else ''}")
            wrong += [f"{name} grows from {old:.1f} to {new:.1f}"] if grows else []
        return wrong

    def _incidents(self) -> list[str]:
        """Read every incident back, and match them with the faults."""
        wrong = []
        told: list[tuple[float, str]] = []
        for path in sorted((self.folder / "home" / "incidents").glob("*/incident.json")):
            try:
                record = json.loads(path.read_text())
                told.append((path.stat().st_mtime - self.started, record["symptom"]))
            except (OSError, ValueError, KeyError) as error:
                wrong.append(f"{path.parent.name} is not whole: {error!r}")
        for fault in self.faults:
            near = [s for at, s in told if fault.at <= at <= fault.at + fault.seconds + TOLD_S]
            fault.told = near[0] if near else ""
        for kind in SECONDS:
            some = [fault for fault in self.faults if fault.kind == kind]
            if some:
                names = sorted({fault.told for fault in some if fault.told})
                number = sum(bool(fault.told) for fault in some)
                how = f" as {', '.join(names)}" if names else ""
                print(f"{kind:13s} {number} of {len(some)} told{how}")
        print(f"incidents     {len(told)}")
        return wrong


# --- processes ------------------------------------------------------------------------------


def command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace")


def environment_of(pid: int, name: str) -> str | None:
    with contextlib.suppress(OSError):
        for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if one.startswith(name.encode() + b"="):
                return one.partition(b"=")[2].decode()
    return None


def all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def children_of(pid: int) -> list[int]:
    found = []
    for one in all_pids():
        with contextlib.suppress(OSError, IndexError):
            stat = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == pid and stat[0] != "Z":
                found.append(one)
    return found


def of_this_soak(mark: str) -> list[int]:
    """Every process that was started with the soak's folder in its command, but us."""
    return [pid for pid in all_pids() if pid != os.getpid() and mark in command_of(pid)]


def rank_pids(mark: str) -> dict[int, int]:
    """Rank to process id, of the ranks that run."""
    found: dict[int, int] = {}
    for pid in of_this_soak(mark):
        rank = environment_of(pid, "RANK")
        if rank is not None and "torch.distributed.run" not in command_of(pid):
            found.setdefault(int(rank), pid)
    return found


def find_run_folder(mark: str) -> Path | None:
    given = (environment_of(pid, "EROICA_RUN") for pid in rank_pids(mark).values())
    return next((Path(folder) for folder in given if folder), None)


def continue_again(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def end_all(process: "subprocess.Popen[bytes]", mark: str) -> None:
    """End what is left of the soak, by process id."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    for pid in of_this_soak(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def left_behind(mark: str, folder: Path | None, status: int) -> list[str]:
    wrong = [] if status == 0 else [f"the job ended with exit status {status}"]
    wrong += [f"process {pid} is left: {command_of(pid)[:80]}" for pid in of_this_soak(mark)]
    if folder is not None and folder.exists():
        wrong.append(f"{folder} is left")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eroica-soak-") as folder:
        soak = Soak(Path(folder), given.minutes, given.ranks, random.Random(given.seed))
        wrong = soak.run()
        for line in wrong:
            print(f"WRONG         {line}")
        if wrong:
            print((Path(folder) / "log").read_text(errors="replace")[-3000:])
    print("flat" if not wrong else f"{len(wrong)} things are wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
