"""Reading and diagnosing eight ranks: eroica beside HolisticTraceAnalysis, orjson and json.

    python benchmarks/read.py --hta-python /path/to/venv/bin/python

Makes the eight ranks itself (one real trace, the rank number changed) in a temporary folder and
runs every row in a process of its own, one after another. Installs nothing: HTA is measured only
if --hta-python points to an interpreter that has it. What was measured: docs/benchmarks.md.
"""

import argparse
import gzip
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")

WORLD_SIZE = 8
SHARED = Path(os.environ.get("EROICA_SHARED", Path(__file__).parents[2] / "shared"))
SOURCE = SHARED / "data/kineto/before_after/control.json.gz"
RANK = re.compile(rb'("distributedInfo"\s*:\s*\{[^}]*"rank"\s*:\s*)\d+')

# Each runs in a fresh interpreter with the files as arguments and prints the CPU seconds that the
# work took, start-up left out.
READERS = {
    "read only": "for path in paths:\n    open(path, 'rb').read()",
    "eroica": """
from eroica.read.kineto import read_timeline
start = time.process_time()
for path in paths:
    timeline = read_timeline(path)""",
    "orjson.loads": """
import orjson
start = time.process_time()
for path in paths:
    trace = orjson.loads(open(path, 'rb').read())""",
    "json.loads": """
import json
start = time.process_time()
for path in paths:
    trace = json.loads(open(path, 'rb').read())""",
}
_READER = """
import sys, time
paths = sys.argv[1:]
start = time.process_time()
{work}
print(time.process_time() - start)
"""
_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
print(analysis.get_temporal_breakdown(visualize=False).to_string())
"""


@dataclass
class Row:
    """One process: all its CPU time and that of its children, the largest of them in memory."""

    name: str
    wall_s: float
    cpu_s: float
    peak_mb: float
    work_s: float | None
    num_bytes: int
    exit_code: int

    @property
    def rate(self) -> float:
        """Uncompressed MB/s a core."""
        return self.num_bytes / 1e6 / (self.work_s or self.cpu_s)

    def line(self) -> str:
        note = "" if self.exit_code == 0 else f" (exit {self.exit_code})"
        return (
            f"| {self.name}{note} | {self.wall_s:.2f} | {self.cpu_s:.2f} | {self.rate:.0f} "
            f"| {self.peak_mb:.0f} |"
        )


def measure(name: str, command: list[str], num_bytes: int, folder: Path | None = None) -> Row:
    """Run one command to its end; wait4 tells what it and all it waited for have used."""
    # As in a shell of a user's: Python keeps what it has compiled of its modules.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        last = output.read().strip().rpartition(b"\n")[2]
    return Row(
        name=name,
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mb=usage.ru_maxrss / 1000,  # Linux gives kB
        work_s=float(last) if re.fullmatch(rb"[0-9.e-]+", last) else None,
        num_bytes=num_bytes,
        exit_code=process.returncode,
    )


def measure_reader(name: str, paths: list[Path], num_bytes: int) -> Row:
    code = _READER.format(work=READERS[name])
    return measure(name, [sys.executable, "-c", code, *map(str, paths)], num_bytes)


def best_of(repeats: int, rows: "list[Row]") -> Row:
    assert len(rows) == repeats
    return min(rows, key=lambda row: row.work_s or row.cpu_s)


def apart(function: Callable[..., Result], *arguments: object) -> Result:
    """Call it in a process of its own: on Linux a child's peak memory is at least its parent's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def make_ranks(source: Path, folder: Path) -> tuple[list[Path], list[Path], int]:
    """Write the trace as ranks 0-7, packed and plain; return (packed, plain, raw bytes)."""
    raw = gzip.decompress(source.read_bytes())
    packed, plain = [], []
    for rank in range(WORLD_SIZE):
        data = RANK.sub(rb"\g<1>%d" % rank, raw, count=1)
        for kind, paths in (("packed", packed), ("plain", plain)):
            (folder / kind).mkdir(exist_ok=True)
            path = folder / kind / (f"rank{rank}.json" + (".gz" if kind == "packed" else ""))
            path.write_bytes(gzip.compress(data, 6) if kind == "packed" else data)
            paths.append(path)
    return packed, plain, sum(path.stat().st_size for path in plain)


def make_repeated(source: Path, path: Path, times: int) -> int:
    """Write one trace whose events are those of ``source`` again and again; return its size."""
    raw = gzip.decompress(source.read_bytes())
    start = raw.index(b"[", raw.index(b'"traceEvents"')) + 1
    end = raw.rindex(b"]")
    with path.open("wb") as file:
        file.write(raw[:start])
        for k in range(times):
            file.write((b"," if k else b"") + raw[start:end])
        file.write(raw[end:])
    return path.stat().st_size


def growth(source: Path, folder: Path, repeats: int, large_gb: float) -> list[str]:
    """Return the rows on one trace of 1, 2, 4 and 8 times the events, and a large one."""
    sizes = [1, 2, 4, 8]
    if large_gb:
        one = apart(make_repeated, source, folder / "grown.json", 1)
        sizes.append(round(large_gb * 1e9 / one))
    lines = [
        "",
        "| events | raw MB | read CPU s | MB/s a core | peak MB |",
        "|---|---|---|---|---|",
    ]
    for times in sizes:
        path = folder / "grown.json"
        size = apart(make_repeated, source, path, times)
        rows = [measure_reader("eroica", [path], size) for _ in range(repeats)]
        row = best_of(repeats, rows)
        lines.append(
            f"| {times}x | {size / 1e6:.0f} | {row.work_s or row.cpu_s:.2f} | {row.rate:.0f} "
            f"| {row.peak_mb:.0f} |"
        )
        path.unlink()
    return lines


def ratios(rows: dict[str, Row]) -> list[str]:
    lines = [""]
    if {"eroica", "orjson.loads"} <= rows.keys():
        times = rows["eroica"].rate / rows["orjson.loads"].rate
        lines.append(f"reading: {times:.1f} x orjson.loads in MB/s a core")
    ours, theirs = rows.get("eroica diagnose, .gz"), rows.get("HTA load + breakdown, .gz")
    if ours and theirs and ours.exit_code == theirs.exit_code == 0:
        lines.append(f"diagnose: {theirs.wall_s / ours.wall_s:.1f} x faster than HTA by wall, "
                     f"{theirs.cpu_s / ours.cpu_s:.1f} x by CPU, "
                     f"{ours.peak_mb / theirs.peak_mb:.2f} of its peak memory")  # fmt: skip
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=Path, default=SOURCE, help="a Kineto trace, .json.gz")
    parser.add_argument("--hta-python", help="interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--repeats", type=int, default=3, help="runs a row, of which the best")
    parser.add_argument("--large-gb", type=float, default=3.0, help="size of the large trace")
    parser.add_argument("--no-diagnose", action="store_true", help="leave the whole command out")
    parser.add_argument("--no-readers", action="store_true", help="leave reading alone out")
    parser.add_argument("--no-growth", action="store_true", help="leave the growing trace out")
    arguments = parser.parse_args()
    if not arguments.source.is_file():
        parser.error(f"{arguments.source} is not here; name a trace with --source")
    with tempfile.TemporaryDirectory(prefix="eroica-read-") as name:
        folder = Path(name)
        packed, plain, num_bytes = apart(make_ranks, arguments.source, folder)
        measure_reader("eroica", plain[:1], 1)  # compiles, if nobody has
        commands: dict[str, list[str]] = {}
        if not arguments.no_diagnose:
            commands["eroica diagnose, .gz"] = [
                sys.executable, "-m", "eroica", "diagnose", str(folder / "packed"), "--json",
            ]  # fmt: skip
        if arguments.hta_python:
            commands["HTA load + breakdown, .gz"] = [
                arguments.hta_python, "-c", _HTA, str(folder / "packed"),
            ]  # fmt: skip
        if not arguments.no_diagnose:
            measure("", commands["eroica diagnose, .gz"], num_bytes, folder)  # likewise
        rows: dict[str, Row] = {}
        for reader in () if arguments.no_readers else READERS:
            found = [measure_reader(reader, plain, num_bytes) for _ in range(arguments.repeats)]
            rows[reader] = best_of(arguments.repeats, found)
        if not arguments.no_readers:
            found = [measure_reader("eroica", packed, num_bytes) for _ in range(arguments.repeats)]
            rows["eroica, .gz"] = best_of(arguments.repeats, found)
            rows["eroica, .gz"].name = "eroica, .gz"
        for label, command in commands.items():
            found = [measure(label, command, num_bytes, folder) for _ in range(arguments.repeats)]
            rows[label] = best_of(arguments.repeats, found)
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
              f"{WORLD_SIZE} ranks, {num_bytes / 1e6:.0f} MB raw")  # fmt: skip
        print("\n| | wall s | CPU s | MB/s a core | peak MB |\n|---|---|---|---|---|")
        print("\n".join(row.line() for row in rows.values()))
        print("\n".join(ratios(rows)))
        if not arguments.no_growth:
            lines = growth(arguments.source, folder, arguments.repeats, arguments.large_gb)
            print("\n".join(lines))
        print("\n" + json.dumps({row.name: vars(row) for row in rows.values()}))


if __name__ == "__main__":
    main()
