"""What people use today, on the same labelled programs: each judged by a rule a machine can apply.

    python benchmarks/today.py                          every case of tests/cases
    python benchmarks/today.py --only saver --rows rows.json
    python benchmarks/today.py --hta-python VENV/bin/python --eroica-rows cases.json --write

A tool is right about a case where its output fits one accepted reading of the truth:

- torchfrtrace (stuck): Flight Recorder dumps of all ranks, taken once the job is silent. The ranks
  it calls missing or culprit are exactly the guilty ones. On gloo it crashes at a key of its own
  dumps; the key is mended here first, so that its matching can be judged.
- TORCH_DISTRIBUTED_DEBUG=DETAIL (stuck): it prints a mismatch of collectives, and the ranks that it
  shows with another collective than most are exactly the guilty ones. No mismatch, no answer.
- py-spy dump (stuck): an accepted place (same file, and the same function or a line within 3) lies
  on the main thread's stack of every guilty rank, and on that of no other rank. It names nobody:
  this says that a person who knows what to look for finds it there, not that anything was told.
- HTA (slow): of traces of ten steps, get_potential_stragglers(num_candidates=1) names exactly the
  guilty ranks. Where all ranks are guilty there is no straggler to name: not counted. It goes by
  kernels of collectives on a device, and traces of jobs on CPU have none: here it can only fail.

A person may see more in an output than the rule takes from it. Nothing is installed: a tool that is
not there is named and left out. Run it alone on the machine.
"""

# More than 300 lines: the rules above are printed with the table.

import argparse
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from cases import ROOT, adopt_orphans, copy_of, end_leftovers, write_section
from judging import PROGRESS, is_at, ranks_of, readings, split_command

from eroica.errors import InputError
from eroica.read.unpickle import load_plain

HOOK = Path(__file__).parent / "today_hook"
SILENT_S = 6.0  # without a line of output a job counts as stuck
HEADING = "## What people use today"
TOOLS = ("torchfrtrace", "DETAIL", "py-spy", "HTA")
HTA = """
import json, sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_dir=sys.argv[1]).get_potential_stragglers(num_candidates=1)
print("RANKS", json.dumps([int(rank) for rank in found]))
"""


class Job:
    """A running case. Its lines are timed, so that silence can be seen."""

    def __init__(self, case, folder, more):
        extra, command = split_command(case["run"])
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        environment |= {"PYTHONUNBUFFERED": "1"} | extra | more
        given = [p for p in (more.get("PYTHONPATH"), extra.get("PYTHONPATH")) if p]
        environment["PYTHONPATH"] = os.pathsep.join(given)
        self.lines, self.last, self.has_begun = [], time.monotonic(), False
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.take(line)

    def take(self, line):
        self.lines.append(line)
        self.last = time.monotonic()
        self.has_begun = self.has_begun or PROGRESS.search(line) is not None

    def wait(self, limit_s, silent_s):
        """Until it ends, is silent after its first progress, or the limit is reached."""
        end = time.monotonic() + limit_s
        while self.process.poll() is None and time.monotonic() < end:
            if self.has_begun and time.monotonic() - self.last > silent_s:
                return
            time.sleep(0.2)

    def close(self):
        end_leftovers(0)
        self.process.wait(5)
        return "".join(self.lines)


def rank_processes(job):
    """Pids of the ranks, by rank: processes below the job that have RANK in their environment."""
    import psutil

    found = {}
    for process in psutil.Process(job.process.pid).children(recursive=True):
        try:
            rank = process.environ().get("RANK")
            parent = process.parent().environ().get("RANK")
        except (psutil.Error, AttributeError):
            continue
        if rank is not None and parent is None:
            found[int(rank)] = process.pid
    return found


def fits(named, case):
    """Whether the ranks that a tool names are those of an accepted reading."""
    world_size = case["world_size"]
    return any(
        set(named) == ranks_of(r["ranks"], world_size)
        for r in readings(case)
        if r["ranks"] != "all"
    )


def by_stacks(stacks, case):
    """``stacks``: (file, function, line) of the main thread, by rank."""
    for reading in readings(case):
        guilty = ranks_of(reading["ranks"], case["world_size"])
        for place in reading["functions"]:
            holds = {
                rank for rank, frames in stacks.items() if any(is_at(f, place) for f in frames)
            }
            if holds == guilty:
                return True
    return False


def frames_of(text):
    """The main thread of a ``py-spy dump --json``."""
    threads = json.loads(text)
    main = next((t for t in threads if t.get("thread_name") == "MainThread"), None)
    frames = main["frames"] if main else []
    return [{"file": f["filename"], "name": f["name"], "line": f["line"]} for f in frames]


def odd_ranks(text):
    """Ranks that a DETAIL message shows with another collective than most; None without one."""
    said = {}
    pattern = r"Rank (\d+) is running collective: CollectiveFingerPrint\(([^)]*)"
    for rank, what in re.findall(pattern, text):
        operation = re.search(r"OpType=(\w+)", what)
        said.setdefault(int(rank), operation[1] if operation else what)
    if not said:
        return None
    (_, most), *rest = Counter(said.values()).most_common()
    usual = Counter(said.values()).most_common(1)[0][0]
    if rest and rest[0][1] == most:
        return set(said)  # as many on each side: it does not say which is the odd one
    return {rank for rank, what in said.items() if what != usual}


def mend_dumps(folder):
    """Give gloo's dumps the key that torchfrtrace looks for; returns how many there are."""
    count = 0
    for path in folder.glob("fr_*"):
        try:
            data = load_plain(path.read_bytes(), path.name).value
        except InputError:
            continue
        groups = data.get("pg_config", {})
        if "" in groups:
            groups.setdefault("0", groups[""])
        path.write_bytes(pickle.dumps(data))
        count += 1
    return count


def named_by_torchfrtrace(folder):
    """The ranks it calls missing or culprit, and its last line where it crashes."""
    tool = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
    command = [*tool, str(folder), "-p", "fr_", "--allow-incomplete-ranks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    text = done.stdout + done.stderr
    found = {int(r) for r in re.findall(r"Culprit rank (\d+)", text)}
    for group in re.findall(r"missing ranks: \{([^}]*)\}", text):
        found |= {int(r) for r in re.findall(r"\d+", group)}
    crashed = done.returncode != 0 and "Traceback" in text
    return found, text.strip().splitlines()[-1] if crashed else ""


def verdict(is_right, said):
    return {"right": bool(is_right), "said": said}


def try_stuck(case, folder, scratch, limit_s):
    """One run under py-spy and the Flight Recorder, one with DETAIL."""
    row, dumps = {}, Path(tempfile.mkdtemp(dir=scratch))
    given = {"TODAY_FOLDER": str(dumps), "PYTHONPATH": str(HOOK), "TORCH_FR_BUFFER_SIZE": "2000"}
    job = Job(case, copy_of(folder, scratch), given)
    job.wait(limit_s, SILENT_S)
    pids, spy = rank_processes(job), shutil.which("py-spy")
    stacks = {}
    for rank, pid in pids.items() if spy else ():
        dumped = subprocess.run([spy, "dump", "--json", "--pid", str(pid)], capture_output=True)
        if dumped.returncode == 0:
            stacks[rank] = frames_of(dumped.stdout)
    (dumps / "dump").touch()
    end = time.monotonic() + 5
    while len(list(dumps.glob("fr_*"))) < len(pids) and time.monotonic() < end:
        time.sleep(0.2)
    time.sleep(0.5)
    job.close()
    if spy:
        row["py-spy"] = verdict(by_stacks(stacks, case), f"stacks of {len(stacks)} ranks")
    if mend_dumps(dumps):
        named, crash = named_by_torchfrtrace(dumps)
        row["torchfrtrace"] = verdict(fits(named, case), crash or f"ranks {sorted(named)}")
    else:
        row["torchfrtrace"] = verdict(False, "no dump")
    job = Job(case, copy_of(folder, scratch), {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    job.wait(limit_s, SILENT_S)
    odd = odd_ranks(job.close())
    row["DETAIL"] = verdict(
        odd is not None and fits(odd, case), "no message" if odd is None else f"ranks {sorted(odd)}"
    )
    return row


def try_slow(case, folder, scratch, limit_s, hta):
    """One run that leaves a trace a rank, read by HTA in its own interpreter."""
    if hta is None or all(r["ranks"] == "all" for r in readings(case)):
        return {}
    traces = Path(tempfile.mkdtemp(dir=scratch))
    given = {"TODAY_FOLDER": str(traces), "TODAY_TRACE": "1", "PYTHONPATH": str(HOOK)}
    job = Job(case, copy_of(folder, scratch), given)
    job.wait(limit_s, limit_s)
    job.close()
    if not list(traces.glob("trace_*.json")):
        return {"HTA": verdict(False, "no optimizer of torch: no trace")}
    command = [hta, "-c", HTA, str(traces)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    found = re.search(r"^RANKS (.*)$", done.stdout, re.M)
    if found is None:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return {"HTA": verdict(False, last[:120])}
    named = set(json.loads(found[1]))
    return {"HTA": verdict(fits(named, case), f"ranks {sorted(named)}")}


def table(rows, solved):
    """The counts by tool, then what each said of each case."""
    lines = ["| tool | symptom | cases | right |", "|---|---|--:|--:|"]
    for tool in TOOLS:
        tried = [r for r in rows if tool in r]
        right = sum(r[tool]["right"] for r in tried)
        kind = "slow, some ranks" if tool == "HTA" else "stuck"
        lines.append(f"| {tool} | {kind} | {len(tried)} | {right if tried else 'not there'} |")
    for kind in ("stuck", "slow") if solved else ():
        some = [r["id"] for r in rows if r["symptom"] == kind and r["id"] in solved]
        right = sum(solved[name] for name in some)
        lines.append(f"| eroica | {kind} | {len(some)} | {right} |")
    lines += ["", f"| case | {' | '.join(TOOLS)} |", "|---|---|---|---|---|"]
    for row in rows:
        said = [row.get(tool) for tool in TOOLS]
        cells = [f"{'**right**' if s['right'] else 'no'}: {s['said']}" if s else "" for s in said]
        lines.append(f"| {row['id']} | {' | '.join(cells)} |")
    rules = __doc__.partition("\n\n- ")[2].rpartition("\n\nA person")[0]
    return "\n".join(lines) + "\n\nRight is what fits these rules:\n\n- " + rules


def main():
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--dir", type=Path, default=ROOT / "tests/cases")
    options.add_argument("--only", default="", help="part of a case's name")
    options.add_argument("--limit", type=float, default=60, help="seconds for one run")
    options.add_argument("--hta-python", help="an interpreter that has HolisticTraceAnalysis")
    options.add_argument("--eroica-rows", type=Path, help="rows of cases.py, for the same table")
    options.add_argument("--rows", type=Path, help="file for the rows; those it holds are kept")
    options.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    asked = options.parse_args()
    adopt_orphans()
    if shutil.which("py-spy") is None:
        print("py-spy is not on PATH: left out")
    if asked.hta_python is None:
        print("no --hta-python: HTA is left out")
    rows = json.loads(asked.rows.read_text()) if asked.rows and asked.rows.exists() else []
    with tempfile.TemporaryDirectory(prefix="eroica-today-") as scratch:
        for path in sorted(asked.dir.glob("*/case.json")):
            case, name = json.loads(path.read_text()), path.parent.name
            if asked.only not in name or name in {r["id"] for r in rows}:
                continue
            if case["symptom"] not in ("stuck", "slow"):
                continue
            if case["symptom"] == "stuck":
                row = try_stuck(case, path.parent, Path(scratch), asked.limit)
            else:
                row = try_slow(case, path.parent, Path(scratch), asked.limit, asked.hta_python)
            rows.append({"id": name, "symptom": case["symptom"], **row})
            print(name, *(f"{tool}: {row[tool]}" for tool in TOOLS if tool in row), flush=True)
            if asked.rows:
                asked.rows.write_text(json.dumps(rows, indent=1))
    solved = {}
    if asked.eroica_rows:
        solved = {r["id"]: r["solved"] for r in json.loads(asked.eroica_rows.read_text())}
    text = table([r for r in rows if any(t in r for t in TOOLS)], solved)
    print(text)
    if asked.write:
        write_section(ROOT / "docs/benchmarks.md", text, HEADING, "today.py --write")


if __name__ == "__main__":
    main()
