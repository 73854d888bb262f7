"""eroica on labelled training programs: what it says, and with --fix what its patches do.

    python benchmarks/cases.py                      every case of tests/cases
    python benchmarks/cases.py --only link --fix    cases whose name contains "link", patches tried
    python benchmarks/cases.py --dir OTHER --rows rows.json --resume --write

Each case runs in a copy of its folder without the truth, as `eroica run --once --json -- COMMAND`.
A case is solved when the symptom is right and the first cause matches one accepted reading: the
family of its category, exactly its ranks, one of its places among the first two functions (same
file, and the same function or a line within 3), and no process is left behind. A fault outside
the code needs no place, but must not ask for a patch. A healthy program is solved when there is
no cause. With --fix, `eroica fix ID --source . --accept all --apply --json` must leave a program
that does the work of fixed.py and ends (stuck), or wins back half of the time that fixed.py wins
(slow). Seconds are from the start of the job to the answer. --write puts the tables into
docs/benchmarks.md. Run it alone on the machine.
"""

import argparse
import contextlib
import ctypes
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from judging import Run, incident_in, judge, split_command

ROOT = Path(__file__).parents[1]
TRUTH = ("case.json", "fixed.py", "__pycache__")
HEADING = "## Cases"


def adopt_orphans() -> None:
    """torchrun starts ranks in sessions of their own; this makes orphans our children."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def end_leftovers(grace_s: float) -> int:
    """Waits for what is still running, then kills it; returns how many processes had to be."""
    me = psutil.Process()
    _, alive = psutil.wait_procs(me.children(recursive=True), timeout=grace_s)
    killed = 0
    while alive:
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                killed += 1
        psutil.wait_procs(alive, timeout=5)
        _, alive = psutil.wait_procs(me.children(recursive=True), timeout=0)
    return killed


def run(command: list[str], folder: Path, limit_s: float, extra: dict[str, str]) -> Run:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    environment |= {"PYTHONUNBUFFERED": "1"} | extra
    start = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        seconds = time.monotonic() - start
        left = end_leftovers(3 if status is not None else 0)
        out.seek(0), err.seek(0)
        texts = (stream.read().decode(errors="replace") for stream in (out, err))
        return Run(status, *texts, seconds, left)


def copy_of(folder: Path, scratch: Path, *, with_truth: bool = False) -> Path:
    target = Path(tempfile.mkdtemp(dir=scratch)) / "job"
    ignore = None if with_truth else shutil.ignore_patterns(*TRUTH)
    shutil.copytree(folder, target, ignore=ignore)
    return target


def sources(folder: Path) -> dict[Path, bytes]:
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*.py")}


def mend(case: dict, folder: Path, changed: dict[Path, bytes], scratch: Path, limit_s: float):
    """Runs the patched program beside the faulty one and fixed.py."""
    extra, command = split_command(case["run"])
    model = [word.replace("train.py", "fixed.py") for word in command]
    want = run(model, copy_of(folder, scratch, with_truth=True), limit_s, extra)
    patched = copy_of(folder, scratch)
    for path, data in changed.items():
        (patched / path).parent.mkdir(parents=True, exist_ok=True)
        (patched / path).write_bytes(data)
    got = run(command, patched, max(45, 4 * want.seconds), extra)
    is_alike = got.progress >= max(1, 0.9 * want.progress) and (
        want.loss is None
        or (got.loss is not None and abs(got.loss - want.loss) <= 0.5 * abs(want.loss) + 0.05)
    )
    if got.status != 0 or not is_alike:
        what = f"exit {got.status}, {got.progress} of {want.progress} lines, loss {got.loss}"
        return {
            "mended": False,
            "worse": case["symptom"] == "slow" and got.status != 0,
            "mend": what,
        }
    if case["symptom"] == "stuck":
        return {"mended": True, "mend": "ends"}
    faulty = run(command, copy_of(folder, scratch), limit_s, extra).milliseconds
    if not (
        faulty and got.milliseconds and want.milliseconds and faulty > 1.15 * want.milliseconds
    ):
        return {"mend": "no verdict: fixed.py was not faster this time"}
    what = f"{faulty:.0f} -> {got.milliseconds:.0f} ms (fixed.py {want.milliseconds:.0f})"
    is_mended = got.milliseconds <= (faulty + want.milliseconds) / 2
    return {"mended": is_mended, "worse": got.milliseconds > 1.1 * faulty, "mend": what}


def try_case(path: Path, asked: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    case, folder = json.loads(path.read_text()), path.parent
    extra, command = split_command(case["run"])
    work = copy_of(folder, scratch)
    before = sources(work)
    asking = [*shlex.split(asked.eroica), "run", "--once", "--json", "--", *command]
    answer = run(asking, work, asked.limit, extra)
    incident = incident_in(answer.out)
    row = {"id": case["id"], "symptom": case["symptom"], "category": case["expected_category"]}
    row |= {"solved": False, "seconds": round(answer.seconds, 1), "left": answer.left_behind}
    if incident is None:
        return row | {"said": (answer.err.strip().splitlines() or ["nothing"])[-1][:160]}
    right = judge(incident, case, answer.left_behind)
    first = (incident["causes"] or [{}])[0]
    where = [
        f"{f.get('name')} ({f.get('file')}:{f.get('line')})" for f in first.get("functions", [])
    ]
    row |= {key: value for key, value in right.items() if key != "symptom"}
    row["right"] = [key for key, is_right in right.items() if is_right and key != "solved"]
    row["said"] = f"{incident['symptom']}, {first.get('category')}, ranks {first.get('ranks')}"
    row["said"] += f", {', '.join(where[:2])}" if where else ""
    if asked.fix:
        fix = [*shlex.split(asked.eroica), "fix", str(incident.get("id")), "--source", "."]
        fix += ["--accept", "all", "--apply", "--json", *shlex.split(asked.fix_args)]
        run(fix, work, asked.limit, {})
        changed = {p: data for p, data in sources(work).items() if before.get(p) != data}
        if case["symptom"] == "healthy" or case.get("fault_in") == "environment":
            row["worse"] = bool(changed)
        elif changed:
            row |= mend(case, folder, changed, scratch, asked.limit)
        else:
            row |= {"mended": False, "mend": "no patch"}
    return row


def tables(rows: list[dict[str, Any]]) -> str:
    lines = ["| category | cases | solved | exact | seconds |", "|---|--:|--:|--:|--:|"]
    kinds = {(r["symptom"], r["category"]): None for r in rows}
    groups = [
        (f"{symptom}: {category}", [r for r in rows if r["category"] == category])
        for symptom, category in sorted(kinds, reverse=True)
        if symptom != "healthy"
    ]
    groups += [
        (f"**{symptom}**", [r for r in rows if r["symptom"] == symptom])
        for symptom in ("stuck", "slow", "healthy")
    ]
    for name, some in groups:
        if some:
            times = [r["seconds"] for r in some if r["solved"]]
            typical = f"{statistics.median(times):.0f}" if times else ""
            solved, exact = (sum(bool(r.get(key)) for r in some) for key in ("solved", "exact"))
            lines.append(f"| {name} | {len(some)} | {solved} | {exact} | {typical} |")
    lines += ["", "| case | solved | right | seconds | patch |", "|---|---|---|--:|---|"]
    for r in rows:
        cells = (
            r["id"],
            "yes" if r["solved"] else "**no**",
            " ".join(r.get("right", ())),
            str(r["seconds"]),
            r.get("mend", ""),
        )
        lines.append(f"| {' | '.join(cells)} |")
    missed = [r for r in rows if not r["solved"]]
    lines += ["", "Missed:", ""] if missed else []
    lines += [f"- {r['id']} ({r['category']}): said {r.get('said')}" for r in missed]
    return "\n".join(lines)


def write_section(
    path: Path, text: str, heading: str = HEADING, script: str = "cases.py --write"
) -> None:
    """Puts a section in the place of the one before it, with date, machine and commit."""
    old = path.read_text() if path.exists() else "# Benchmarks\n"
    asking = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asking, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    facts = (
        f"`python benchmarks/{script}`",
        time.strftime("%Y-%m-%d"),
        f"{platform.system()} {platform.machine()} with {os.cpu_count()} cores",
        f"Python {platform.python_version()}",
        f"commit {commit}.",
    )
    section = f"{heading}\n\n{', '.join(facts)}\n\n{text}\n"
    found = re.search(rf"^{heading}\n.*?(?=^## |\Z)", old, re.MULTILINE | re.DOTALL)
    if found:
        new = f"{old[: found.start()]}{section}\n{old[found.end() :]}"
    else:
        new = f"{old.rstrip()}\n\n{section}"
    path.write_text(new.rstrip() + "\n")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--dir", type=Path, default=ROOT / "tests/cases")
    options.add_argument("--only", default="", help="part of a case's name")
    options.add_argument("--fix", action="store_true", help="apply the patches and run them")
    options.add_argument("--fix-args", default="", help="written as --fix-args=--no-llm")
    options.add_argument("--eroica", default=f"{shlex.quote(sys.executable)} -m eroica")
    options.add_argument("--limit", type=float, default=120, help="seconds for one run")
    options.add_argument("--rows", type=Path, help="file for the rows, written after each case")
    options.add_argument("--resume", action="store_true", help="keep the rows that --rows holds")
    options.add_argument(
        "--write", action="store_true", help="put the tables into docs/benchmarks.md"
    )
    asked = options.parse_args()
    adopt_orphans()
    keeps = asked.resume and asked.rows and asked.rows.exists()
    rows = json.loads(asked.rows.read_text()) if keeps else []
    with tempfile.TemporaryDirectory(prefix="eroica-cases-") as scratch:
        for path in sorted(asked.dir.glob("*/case.json")):
            if asked.only not in path.parent.name or path.parent.name in {r["id"] for r in rows}:
                continue
            row = try_case(path, asked, Path(scratch))
            rows.append(row)
            verdict = "solved" if row["solved"] else "MISSED"
            print(f"{verdict} {row['id']:36} {row['seconds']:6.1f} s  {row['said']}", flush=True)
            if asked.rows:
                asked.rows.write_text(json.dumps(rows, indent=1))
    print(tables(rows))
    if asked.write:
        write_section(ROOT / "docs/benchmarks.md", tables(rows))


if __name__ == "__main__":
    main()
