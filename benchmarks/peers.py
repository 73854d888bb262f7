"""eroica beside torchfrtrace, HTA and TraceLens on the same files: who names the guilty rank?

    python benchmarks/peers.py [--hta-python PATH] [--tracelens-python PATH]

Stuck jobs: the Flight Recorder dumps of ../shared/data (torchfrtrace comes with torch; it unpickles
what it reads, so that it is run on these files only). Slow jobs: real traces and simulated ones
with one known fault. Each peer is used as its documentation says and in a process of its own; one
that is not installed is said to be absent. Prints Markdown for docs/benchmarks.md.
"""

import argparse
import ast
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from peer_sets import SLOW, STUCK, Job

ROOT = Path(__file__).parents[1]
LIMIT_S = 300
ERROR = "ends with an error"


@dataclass(frozen=True)
class Answer:
    """What a tool made of one set."""

    ranks: tuple[int, ...] = ()
    """Ranks it names as guilty; empty where it names none."""
    says: str = ""
    seconds: float = 0.0
    noted: tuple[int, ...] = ()
    """Ranks that a finding names where there is no cause."""


def run(command: list[str], folder: Path, **more: str) -> tuple[int | None, str, float]:
    """Exit status (None at the limit), both outputs, seconds."""
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=folder.parent,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**os.environ, **more},
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer in {LIMIT_S} s", float(LIMIT_S)
    return done.returncode, done.stdout + done.stderr, time.perf_counter() - start


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "nothing"


def ranks_in(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


# --- the tools --------------------------------------------------------------------------------


def ask_eroica(folder: Path) -> Answer:
    home = folder.parent / "eroica-home"
    command = [sys.executable, "-m", "eroica", "diagnose", str(folder), "--json"]
    status, _, seconds = run(command, folder, EROICA_HOME=str(home), PYTHONPATH=str(ROOT))
    found = sorted((home / "incidents").glob("*/incident.json"))
    if not found:
        return Answer((), f"exit {status}", seconds)
    incident = json.loads(found[-1].read_text())
    shutil.rmtree(home)
    if not incident["causes"]:
        arrivals = [f for f in incident["findings"] if f["kind"] == "collective_arrival"]
        note = f"; finding: {arrivals[0]['text']}" if arrivals else ""
        noted = tuple(arrivals[0]["ranks"]) if arrivals else ()
        return Answer((), f"{incident['symptom']}{note}", seconds, noted)
    causes = incident["causes"]
    ranks = {r for c in causes if c["ranks"] != "all" for r in c["ranks"]}
    first = causes[0]
    place = first["functions"][0] if first["functions"] else None
    at = f" at {place['name']}" if place else ""
    return Answer(tuple(sorted(ranks)), f"{first['category']}{at}: {first['summary']}", seconds)


def ask_torchfrtrace(folder: Path) -> Answer:
    """Files named <prefix><rank>, as its help asks: the ending goes where there is one."""
    given = folder.parent / "torchfrtrace"
    given.mkdir()
    for path in folder.iterdir():
        shutil.copy(path, given / path.name.removesuffix(".pickle"))
    tool = Path(sys.executable).with_name("torchfrtrace")
    status, text, seconds = run([str(tool), str(given)], folder)
    if status != 0:
        again, more, _ = run([str(tool), str(given), "--allow-incomplete-ranks"], folder)
        if again != 0:
            return Answer((), f"{ERROR}: {last_line(text)}", seconds)
        text = more
    return Answer(*read_torchfrtrace(text), seconds)


def read_torchfrtrace(text: str) -> tuple[tuple[int, ...], str]:
    """All ranks it says are missing, and how often it says so of whom; else its last word."""
    said = Counter(re.findall(r"^(missing ranks: \{.*\}|culprit.*)$", text, re.MULTILINE))
    named = {rank for line in said for rank in ranks_in(line)}
    words = "; ".join(f"{line} ({count}x)" for line, count in said.most_common(4))
    if not words:
        errors = [line for line in text.splitlines() if re.search("mismatch|error", line, re.I)]
        words = errors[0].strip()[:160] if errors else last_line(text)
    return tuple(sorted(named)), words


_HTA = """
import sys, json
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_dir=sys.argv[1]).get_potential_stragglers(num_candidates=1)
print("RANKS", json.dumps([int(rank) for rank in found]))
"""
_TRACELENS = """
import sys, json, re, pathlib
from TraceLens import NcclAnalyser
paths = sorted(pathlib.Path(sys.argv[1]).iterdir())
number = lambda path: int(re.search(r"(?:rank|worker)(\\d+)", path.name)[1])
paths = [str(path) for path in sorted(paths, key=number)]
analyser = NcclAnalyser(paths, world_size=len(paths))
analyser.build_df_nccl_implicit_sync_cat()
table = analyser.build_df_straggler_summary()
print("ROW", table.iloc[0].to_json())
print("RANKS", json.dumps([int(table.iloc[0]["rank"])]))
"""


def ask_python(python: str, code: str) -> Callable[[Path], Answer]:
    def ask(folder: Path) -> Answer:
        status, text, seconds = run([*shlex.split(python), "-c", code, str(folder)], folder)
        told = re.findall(r"^RANKS (\[.*\])$", text, re.MULTILINE)
        if status != 0 or not told:
            return Answer((), f"{ERROR}: {last_line(text)}", seconds)
        rows = re.findall(r"^ROW (.*)$", text, re.MULTILINE)
        ranks = tuple(ast.literal_eval(told[-1]))
        return Answer(ranks, rows[0][:160] if rows else f"candidates {list(ranks)}", seconds)

    return ask


# --- the tables -------------------------------------------------------------------------------


def judge(job: Job, answer: Answer) -> str:
    """``right``; ``part``: some of them; ``and innocents``: more than them; ``wrong``; ``no``.

    ``as a finding``: said, but too small to be called a cause; ``error``: it ends with one.
    """
    if answer.says.startswith(ERROR):
        return "error"
    if job.ranks is None or not job.ranks:
        return "wrong" if answer.ranks else "right"
    if not answer.ranks:
        return "as a finding" if answer.noted == job.ranks else "no"
    named, true = set(answer.ranks), set(job.ranks)
    if named == true:
        return "right"
    if named > true:
        return "and innocents"
    return "part" if named & true else "wrong"


def table(title: str, jobs: tuple[Job, ...], tools: dict[str, Callable[[Path], Answer]]) -> None:
    """One row a set, one column a tool; below it, what each said in its own words."""
    print(f"### {title}\n\n| set | truth | {' | '.join(tools)} |\n|---|---|{'---|' * len(tools)}")
    words = []
    for job in jobs:
        cells = []
        for tool, ask in tools.items():
            with tempfile.TemporaryDirectory() as scratch:
                (Path(scratch) / "set").mkdir()
                answer = ask(job.make(Path(scratch) / "set"))
                says = answer.says.replace(scratch, "").replace(str(ROOT), "")
            named = f": {', '.join(map(str, answer.ranks))}" if answer.ranks else ""
            cells.append(f"{judge(job, answer)}{named} ({answer.seconds:.1f} s)")
            words.append(f"- {job.name}, {tool}: {says}")
        print(f"| {job.name} | {job.truth} | {' | '.join(cells)} |", flush=True)
    print("\nIn their words:\n", *words, "", sep="\n")


def version(python: str, name: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run([*shlex.split(python), "-c", code], capture_output=True, text=True)
    return done.stdout.strip() or "absent"


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("--hta-python", help="a command that has HolisticTraceAnalysis")
    given.add_argument("--tracelens-python", help="a command that has TraceLens")
    asked = given.parse_args()
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, torch "
        f"{version(sys.executable, 'torch')}.\n"
    )
    stuck: dict[str, Callable[[Path], Answer]] = {"eroica": ask_eroica}
    if Path(sys.executable).with_name("torchfrtrace").exists():
        stuck["torchfrtrace"] = ask_torchfrtrace
    else:
        print("torchfrtrace is absent: it comes with torch.\n")
    slow: dict[str, Callable[[Path], Answer]] = {"eroica": ask_eroica}
    for name, package, python, code in (
        ("HTA", "HolisticTraceAnalysis", asked.hta_python, _HTA),
        ("TraceLens", "TraceLens", asked.tracelens_python, _TRACELENS),
    ):
        told = version(python, package) if python else "absent"
        print(f"{name}: {told}\n")
        if told != "absent":
            slow[name] = ask_python(python, code)
    table("Stuck jobs, from Flight Recorder dumps alone", STUCK, stuck)
    table("Slow jobs, from traces", SLOW, slow)


if __name__ == "__main__":
    main()
