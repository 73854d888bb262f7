"""What watching costs, part by part; each part is one command of at most two minutes.

    python benchmarks/overhead.py hook               the hook's CPU time an iteration
    python benchmarks/overhead.py agent              the agent's share of a core while idle
    python benchmarks/overhead.py blocks --ranks 1   step time, watched over unwatched, in one job
    python benchmarks/overhead.py pairs --ranks 1    the same, pairs of whole runs
    python benchmarks/overhead.py window --ranks 1   step time inside a window, pause of its end
    python benchmarks/overhead.py stuck              from the stuck threshold to the printed cause
    python benchmarks/overhead.py growth             200 windows: memory, open files, files

``blocks`` is the sharpest: within one job, spells with the hook and the agent alternate with
spells without (the hook's wrappers are taken out, the agent is stopped by SIGSTOP), in random
order within each pair, so that start-up, memory layout and a slowly changing neighbor cancel out.
Upper bounds are of the bootstrap over pairs (10,000 draws of the 20 % trimmed mean). Run it alone
on the machine; the agent needs a core to be on, so with as many ranks as cores it competes.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
INJECT = ROOT / "eroica" / "collect" / "inject"
JOBS = Path(__file__).with_name("overhead_jobs")
RANDOM = random.Random(7)


def environment(folder, rank=0, ranks=1, **more):
    """Variables of a rank that runs under watch without any launcher."""
    given = {
        **{k: v for k, v in os.environ.items() if not k.startswith("EROICA")},
        "PYTHONPATH": os.pathsep.join([str(INJECT), str(ROOT)]),
        "EROICA_RUN": str(folder),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "KINETO_LOG_LEVEL": "99",
        "OMP_NUM_THREADS": "1",
    }
    return {**given, **{name: str(value) for name, value in more.items()}}


def start_ranks(folder, script, *arguments, ranks=1, **more):
    words = [sys.executable, str(JOBS / script), str(folder), *map(str, arguments)]
    return [
        subprocess.Popen(words, env=environment(folder, rank, ranks, **more))
        for rank in range(ranks)
    ]


def start_agent(folder):
    given = {**environment(folder), "EROICA_HOME": str(Path(folder) / "incidents"), "EROICA": "0"}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "EROICA_RUN"):
        given.pop(name)
    given["EROICA_WINDOWS_PER_DAY"] = "0"  # a noisy machine looks slow: windows are another part
    return subprocess.Popen([sys.executable, "-m", "eroica.watch.agent", str(folder)], env=given)


def end(processes):
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()


def trimmed(values):
    """Mean without the lowest and highest fifth."""
    kept = sorted(values)[len(values) // 5 : len(values) - len(values) // 5]
    return statistics.mean(kept)


def upper_bound(ratios, draws=10_000):
    """Trimmed mean of the ratios and the bootstrap's one-sided 95 % upper bound of it."""
    found = sorted(trimmed(RANDOM.choices(ratios, k=len(ratios))) for _ in range(draws))
    return trimmed(ratios), found[int(0.95 * draws)]


# --- parts


def hook(asked):
    """Loop over an empty loader next and an empty step, with and without the hook in turns."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        done = subprocess.run(
            [sys.executable, str(JOBS / "hook.py")],
            env=environment(folder),
            check=True,
            capture_output=True,
            text=True,
        )
    hooked, bare = json.loads(done.stdout)
    pairs = [a - b for a, b in zip(hooked, bare, strict=True)]
    best = (min(hooked) - min(bare)) / 1e3
    median, bare_us = statistics.median(pairs) / 1e3, min(bare) / 1e3
    print(f"hook     {best:.2f} us an iteration, median {median:.2f} (bare {bare_us:.2f} us)")


def agent(asked):
    """CPU of the agent's loop and its sampler while four ranks step every 20 ms."""
    from eroica.config import Parameters
    from eroica.watch.continuous import TICK_S, Continuous
    from eroica.watch.live import WatchedJob

    incidents = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        words = [sys.executable, str(JOBS / "rings.py"), folder]
        writer = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)})
        job = WatchedJob(0, Path(folder), Parameters())
        loop = Continuous(
            job,
            Path(folder),
            Parameters(),
            on_incident=lambda result: incidents.append(result.hint),
            progress=lambda text: None,
        )
        loop._is_baseline_taken = True  # there is no profiler in those ranks
        used = {}
        for seconds in (6.0, 30.0):  # the first while everything opens
            until, start = time.monotonic() + seconds, time.process_time()
            while time.monotonic() < until:
                job.wait(TICK_S)
                loop.turn(time.monotonic())
            used[seconds] = (time.process_time() - start) / seconds
        steps = job.ranks[0].iteration.num_steps
        end([writer])
        loop.close()
        job.close()
    print(
        f"agent    {100 * used[30.0]:.2f} % of a core; 4 ranks, {steps / 36:.0f} steps/s,"
        f" counters on, incidents {incidents}"
    )


def blocks(asked):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        out = Path(folder) / "blocks.json"
        watcher = start_agent(folder)
        ranks = start_ranks(
            folder, "blocks.py", out, asked.pairs, watcher.pid, asked.width, ranks=asked.ranks
        )
        try:
            for process in ranks:
                process.wait(110)
        finally:
            end([*ranks, watcher])
        found = json.loads(out.read_text())
    ratios = [on / off for on, off in found["pairs"]]
    mean, upper = upper_bound(ratios)
    step = statistics.median(off for _, off in found["pairs"])
    print(
        f"blocks   {asked.ranks} ranks, step {step:.2f} ms, {len(ratios)} pairs of 0.3 s:"
        f" ratio {mean:.4f}, 95 % upper bound {upper:.4f}, median {statistics.median(ratios):.4f};"
        f" agent {100 * found['agent']:.2f} % of a core, its tools {100 * found['tools']:.2f} %"
    )


def pairs(asked):
    watch = "import sys; from eroica.watch.run import watch; watch(sys.argv[1:], once=False)"
    ratios = []
    for number in range(asked.pairs):
        times = {}
        for is_watched in (bool(number % 2), not number % 2):
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                out = Path(folder) / "times.json"
                words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
                words += [f"--nproc_per_node={asked.ranks}", str(JOBS / "plain.py"), str(out)]
                words.append(str(asked.width))
                if is_watched:
                    words = [sys.executable, "-c", watch, *words]
                given = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
                subprocess.run(words, check=True, capture_output=True, env=given)
                times[is_watched] = statistics.median(json.loads(out.read_text()))
        ratios.append(times[True] / times[False])
        print(
            f"pair {number + 1:2}  {times[False]:.2f} ms plain, ratio {ratios[-1]:.4f}", flush=True
        )
    mean, upper = upper_bound(ratios)
    print(f"pairs    {asked.ranks} ranks, {len(ratios)}: {mean:.4f}, 95 % upper bound {upper:.4f}")


def watched_job(folder, ranks):
    """The agent's view of a job started by ``start_ranks``, once its iteration is learned."""
    from eroica.config import Parameters
    from eroica.watch.live import WatchedJob

    job = WatchedJob(0, Path(folder), Parameters())
    until = time.monotonic() + 40
    while time.monotonic() < until and not (len(job.ranks) == ranks and job.is_learned):
        time.sleep(0.1)
        job.refresh()
        job.tick()
    return job


def window(asked):
    from eroica.watch.windows import WindowTaker

    for width in (64, 512):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            out = Path(folder) / "steps.json"
            ranks = start_ranks(folder, "steps.py", out, width, ranks=asked.ranks)
            job = watched_job(folder, asked.ranks)
            taker = WindowTaker(job, Path(folder), job.parameters)
            for _ in range(5):
                if taker.arm(length_s=job.parameters.window_s):
                    taker.finish(30)
                for path in taker.done[-1].paths.values():
                    path.unlink(missing_ok=True)
                time.sleep(1)
            (Path(folder) / "over").touch()
            for process in ranks:
                process.wait(30)
            taker.close()
            job.close()
            _report_window(width, taker.done[1:], json.loads(out.read_text()))


def _report_window(width, windows, steps):
    results = [one for each in windows for one in each.results.values() if "pause_ns" in one]
    inside, outside = [], []
    for begin, took in steps:
        is_inside = any(
            r["start_ns"] <= begin and begin + took <= r["start_ns"] + r["window_ns"]
            for each in windows
            for rank, r in each.results.items()
            if rank == 0 and "pause_ns" in r
        )
        (inside if is_inside else outside).append(took / 1e6)
    pause = max(r["pause_ns"] for r in results) / 1e9
    export = max(r.get("export_ns", 0) for r in results) / 1e9
    size = max(r.get("bytes", 0) for r in results) / 1e6
    ratio = statistics.median(inside) / statistics.median(outside)
    print(
        f"window   width {width}: step {statistics.median(outside):.2f} ms, inside x{ratio:.2f};"
        f" {max(each.num_steps for each in windows)} steps, longest pause {pause:.2f} s,"
        f" export {export:.2f} s, {size:.0f} MB a rank"
    )


def stuck(asked):
    from eroica.incident import IncidentFolder

    with tempfile.TemporaryDirectory() as home:
        words = [sys.executable, "-m", "eroica", "run", "--once", "--json", "--"]
        words += [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        words += ["--nproc_per_node=4", str(JOBS / "stuck.py")]
        given = {**os.environ, "PYTHONPATH": str(ROOT), "EROICA_HOME": home, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            words, env=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=home
        ) as process:
            assert process.stdout is not None
            first = process.stdout.read(1)
            printed_ns = time.time_ns()
            text = process.stdout.read()
            process.wait()
            ended_ns = time.time_ns()
        incident = json.loads(first + text)
        folder = IncidentFolder(next(Path(home).rglob(incident["id"])))
        evidence = folder.read_evidence()
        last_ns = max(rank.last_event_ns for rank in evidence.ranks)
        steps = [d for rank in evidence.ranks if rank.steps for d in rank.steps.duration_ns]
        limit_s = max(5.0, 5 * statistics.mean(steps) / 1e9)
        cause = incident["causes"][0]
        print(
            f"stuck    {(printed_ns - last_ns) / 1e9 - limit_s:.2f} s from the threshold"
            f" ({limit_s:.1f} s of silence) to the answer, {(ended_ns - printed_ns) / 1e9:.2f} s"
            f" more to the end of the job: {cause['category']} {cause['ranks']}"
        )


def growth(asked):
    import psutil

    from eroica.watch.windows import WindowTaker

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        ranks = start_ranks(folder, "steps.py", Path(folder) / "steps.json", 32)
        job = watched_job(folder, 1)
        taker = WindowTaker(job, Path(folder), job.parameters)
        seen = []
        for number in range(asked.windows):
            if taker.arm(length_s=0.05, pause_s=0.05):
                taker.finish(20)
            for path in taker.done[-1].paths.values():
                path.unlink(missing_ok=True)
            if number in (asked.windows // 5, asked.windows - 1):
                seen.append(_held(psutil.Process(ranks[0].pid), Path(folder), len(taker.done)))
        mine = psutil.Process().memory_info().rss / 1e6
        (Path(folder) / "over").touch()
        ranks[0].wait(30)
        taker.close()
        job.close()
    for row in seen:
        print("growth   after {} windows: {:.0f} MB, {} open files, {} files".format(*row))
    print(f"growth   the agent's side: {mine:.0f} MB")


def _held(process, folder, number):
    files = [path for path in folder.iterdir() if not path.name.startswith("steps")]
    return number, process.memory_info().rss / 1e6, process.num_fds(), len(files)


PARTS = (hook, agent, blocks, pairs, window, stuck, growth)


def main():
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("part", choices=[part.__name__ for part in PARTS])
    given.add_argument("--ranks", type=int, default=1)
    given.add_argument("--pairs", type=int, default=0)
    given.add_argument("--width", type=int, default=512, help="of the model: 256 steps in 3 ms")
    given.add_argument("--windows", type=int, default=200)
    asked = given.parse_args()
    asked.pairs = asked.pairs or {"blocks": 120, "pairs": 5}.get(asked.part, 1)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    next(part for part in PARTS if part.__name__ == asked.part)(asked)


if __name__ == "__main__":
    main()
