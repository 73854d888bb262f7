"""What a run of a case says, and how much of the truth an answer holds: rules in cases.py."""

import json
import re
import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eroica.records import FAMILY

PROGRESS = re.compile(r"\b(?:epoch|step|stage|iter|it|batch|round|phase)\D{0,3}\d", re.IGNORECASE)
LOSS = re.compile(r"\bloss\D{0,3}([-+]?\d[\d.]*(?:e[-+]?\d+)?)", re.IGNORECASE)
PACE = re.compile(r"([\d.]+) ms/it")


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


def split_command(text: str) -> tuple[dict[str, str], list[str]]:
    """'A=1 torchrun train.py' -> ({'A': '1'}, ['torchrun', 'train.py'])."""
    words, extra = shlex.split(text), {}
    while words and re.match(r"[A-Z_][A-Z0-9_]*=", words[0]):
        key, _, extra[key] = words.pop(0).partition("=")
    return extra, words


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
        "exact": said == reading["category"],
        "ranks": bool(cause.get("ranks"))
        if reading.get("ranks_vary")
        else ranks_of(cause.get("ranks"), world_size) == ranks_of(reading["ranks"], world_size),
        "place": cause.get("action") != "patch"
        if outside
        else any(is_at(f, p) for f in functions for p in reading["functions"]),
    }


def readings(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The accepted readings of the truth; the labeller's own where there is no list."""
    own = {"category": case["expected_category"], "ranks": case["guilty_ranks"]}
    return case.get("accept") or [own | {"functions": [case["guilty_file_line"]]}]


def judge(incident: dict[str, Any], case: dict[str, Any], left_behind: int) -> dict[str, bool]:
    """What of the truth the answer holds, for the reading that fits it best."""
    causes, symptom = incident["causes"], incident["symptom"]
    if case["symptom"] == "healthy":
        return {"solved": not causes and symptom in ("healthy", "unknown") and not left_behind}
    best: dict[str, bool] = {"solved": False}
    for reading in readings(case) if causes else ():
        got = {"symptom": symptom == case["symptom"]} | matches(causes[0], reading, case)
        needed = all(got[key] for key in ("symptom", "family", "ranks", "place"))
        got["solved"] = needed and not left_behind
        if (got["solved"], sum(got.values())) > (best["solved"], sum(best.values())):
            best = got
    return best
