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
(slow). --write puts the tables into docs/benchmarks.md. Run it alone on the machine.
"""

import argparse
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from eroica.records import FAMILY

ROOT = Path(__file__).parents[1]
TRUTH = ("case.json", "fixed.py", "__pycache__")
PROGRESS = re.compile(r"\b(?:epoch|step|stage|iter|it|batch|round|phase)\D{0,3}\d", re.IGNORECASE)
LOSS = re.compile(r"\bloss\D{0,3}([-+]?\d[\d.]*(?:e[-+]?\d+)?)", re.IGNORECASE)
PACE = re.compile(r"([\d.]+) ms/it")
HEADING = "## Cases"


@dataclass
class Run:
    """One command that was run to its end or to the limit."""

    status: int | None
    """None at the limit."""
    out: str
    err: str
    seconds: float
    left_behind: int = 0

    @property
    def milliseconds(self) -> float | None:
        """Median time of an iteration after the first report."""
        times = [float(t) for t in PACE.findall(self.out)]
        return statistics.median(times[1:] or times) if times else None

    @property
    def progress(self) -> int:
        return len(PROGRESS.findall(self.out))

    @property
    def loss(self) -> float | None:
        found = LOSS.findall(self.out)
        return float(found[-1]) if found else None


def adopt_orphans() -> None:
    """torchrun starts ranks in sessions of their own: orphans become ours (PR_SET_CHILD_SUBREAPER)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def end_leftovers(grace_s: float) -> int:
    """Waits for what is still running, then kills it; returns how many processes had to be."""
    me = psutil.Process()
    _, alive = psutil.wait_procs(me.children(recursive=True), timeout=grace_s)
    killed = 0
    while alive:
        for process in alive:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                killed += 1
                process.kill()
        psutil.wait_procs(alive, timeout=5)
        alive = [p for p in me.children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
    return killed


def run(command: list[str], folder: Path, limit_s: float, extra: dict[str, str]) -> Run:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    environment |= {"PYTHONUNBUFFERED": "1"} | extra
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
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
        return Run(status, out.read(), err.read(), seconds, left)


def split_command(text: str) -> tuple[dict[str, str], list[str]]:
    """'A=1 torchrun train.py' -> ({'A': '1'}, ['torchrun', 'train.py'])."""
    words, extra = shlex.split(text), {}
    while words and re.match(r"[A-Z_][A-Z0-9_]*=", words[0]):
        key, _, extra[key] = words.pop(0).partition("=")
    return extra, words


def copy_of(folder: Path, scratch: Path, *, with_truth: bool = False) -> Path:
    target = Path(tempfile.mkdtemp(dir=scratch)) / "job"
    ignore = None if with_truth else shutil.ignore_patterns(*TRUTH)
    shutil.copytree(folder, target, ignore=ignore)
    return target


def sources(folder: Path) -> dict[Path, bytes]:
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*.py")}


def incident_in(text: str) -> dict[str, Any] | None:
    """The last JSON object of the text that has a symptom and causes."""
    found = None
    for match in re.finditer(r"^\{", text, re.MULTILINE):
        try:
            value, _ = json.JSONDecoder().raw_decode(text, match.start())
        except ValueError:
            continue
        if isinstance(value, dict) and {"causes", "symptom"} <= value.keys():
            found = value
    return found


def is_at(function: dict[str, Any], place: dict[str, Any]) -> bool:
    if Path(function.get("file") or "").name != Path(place["file"]).name:
        return False
    line = function.get("line")
    if line is not None and abs(line - place["line"]) <= 3:
        return True
    # main and <module> hold the whole program: there the line has to be right.
    if place.get("line_only") or place["function"] in ("main", "<module>"):
        return False
    return str(function.get("name")).split(".")[-1] == place["function"]


def ranks_of(value: Any, world_size: int) -> set[int]:
    return set(range(world_size)) if value == "all" else set(value or ())


def matches(
    cause: dict[str, Any], reading: dict[str, Any], case: dict[str, Any]
) -> dict[str, bool]:
    outside = "environment" in (case.get("fault_in"), FAMILY.get(reading["category"]))
    said, world_size = cause.get("category"), case["world_size"]
    functions = (cause.get("functions") or ())[:2]
    return {
        "family": FAMILY.get(said, said) == FAMILY.get(reading["category"]),
        "category": said == reading["category"],
        "ranks": ranks_of(cause.get("ranks"), world_size) == ranks_of(reading["ranks"], world_size),
        "place": cause.get("action") != "patch"
        if outside
        else any(is_at(f, p) for f in functions for p in reading["functions"]),
    }


def judge(incident: dict[str, Any], case: dict[str, Any], left_behind: int) -> dict[str, bool]:
    """What of the truth the answer holds, for the reading that fits it best."""
    causes, symptom = incident["causes"], incident["symptom"]
    if case["symptom"] == "healthy":
        return {"solved": not causes and symptom in ("healthy", "unknown") and not left_behind}
    best: dict[str, bool] = {"solved": False}
    for reading in case["accept"] if causes else ():
        got = {"symptom": symptom == case["symptom"]} | matches(causes[0], reading, case)
        needed = all(got[key] for key in ("symptom", "family", "ranks", "place"))
        got["solved"] = needed and not left_behind
        if (got["solved"], sum(got.values())) > (best["solved"], sum(best.values())):
            best = got
    return best


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
    row |= right | {"right": [k for k, is_right in right.items() if is_right and k != "solved"]}
    row["said"] = f"{incident['symptom']}, {first.get('category')}, ranks {first.get('ranks')}"
    row["said"] += f", {', '.join(where[:2])}" if where else ""
    if case["symptom"] == "stuck" and case.get("seconds_to_symptom"):
        row["answer_s"] = round(answer.seconds - case["seconds_to_symptom"], 1)
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


def median(values: list[float]) -> str:
    return f"{statistics.median(values):.0f}" if values else ""


def tables(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| category | cases | solved | category exact | seconds to the answer |",
        "|---|--:|--:|--:|--:|",
    ]
    keys = [
        *dict.fromkeys(
            (r["symptom"], r["category"]) for r in sorted(rows, key=lambda r: r["symptom"])
        )
    ]
    groups = [
        (f"{s}: {c}" if s != c else s, [r for r in rows if (r["symptom"], r["category"]) == (s, c)])
        for s, c in keys
    ]
    groups += [
        (f"**all {s}**", [r for r in rows if r["symptom"] == s])
        for s in ("stuck", "slow", "healthy")
    ]
    for name, some in groups:
        if some:
            exact = sum(bool(r.get("category_exact")) for r in some)
            times = [r.get("answer_s", r["seconds"]) for r in some if r["solved"]]
            solved = sum(r["solved"] for r in some)
            lines.append(f"| {name} | {len(some)} | {solved} | {exact} | {median(times)} |")
    lines += ["", "| case | solved | right | seconds | patch |", "|---|---|---|--:|---|"]
    for r in rows:
        right, patch = " ".join(r.get("right", [])), r.get("mend", "")
        lines.append(
            f"| {r['id']} | {'yes' if r['solved'] else '**no**'} | {right} | {r['seconds']} | {patch} |"
        )
    missed = [
        f"- {r['id']} ({r['category']}): said {r.get('said')}" for r in rows if not r["solved"]
    ]
    return "\n".join([*lines, *(["", "Missed:", "", *missed] if missed else [])])


def write_section(path: Path, text: str) -> None:
    """Puts the section "Cases" in the place of the one before it."""
    old = path.read_text() if path.exists() else "# Benchmarks\n"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    intro = f"`python benchmarks/cases.py --write`, {time.strftime('%Y-%m-%d')}, {machine}, commit {commit.stdout.strip()}."
    section = f"{HEADING}\n\n{intro}\n\n{text}\n"
    found = re.search(rf"^{HEADING}\n.*?(?=^## |\Z)", old, re.MULTILINE | re.DOTALL)
    new = (
        old[: found.start()] + section + "\n" + old[found.end() :]
        if found
        else f"{old.rstrip()}\n\n{section}"
    )
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
            print(
                f"{'solved' if row['solved'] else 'MISSED':7} {row['id']:36} {row['seconds']:6.1f} s  {row.get('said', '')}",
                flush=True,
            )
            if asked.rows:
                asked.rows.write_text(json.dumps(rows, indent=1))
    print(tables(rows))
    if asked.write:
        write_section(ROOT / "docs/benchmarks.md", tables(rows))


if __name__ == "__main__":
    main()
