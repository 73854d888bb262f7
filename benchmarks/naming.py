"""When an explanation names the truth of a case: the rule of benchmarks/recorded.py.

An explanation names the truth when, for one accepted reading of the case,

- place: a citation that resolves lies in the function of an accepted place (for main and the
  module's own level: within 3 lines of it), or the text names that function,
- ranks: the text names each guilty rank; a reading of all ranks, or of no rank, asks for none,
- kind: the text holds a word of the reading's category (the list below),
- verdict: after the check it is not "insufficient evidence".

``confirmed`` says that the engine's first cause had that reading too, ``corrected`` that it had
not and the explanation says so. Of a healthy program the right explanation is one that finds the
evidence insufficient or offers a hypothesis at most.
"""

import ast
import re
from pathlib import Path
from typing import Any

from judging import matches, readings

from eroica.records import Cause, Diagnosis

WORDS = {
    "rank_conditional_collective": r"only (?:some|rank|on|the)|condition|never (?:reach|enter)",
    "collective_count_mismatch": r"different number|more|fewer|once|skip|extra|count|never|less",
    "collective_order_mismatch": r"order|same group|both (?:send|block)|interleav|first",
    "collective_dtype_mismatch": r"dtype|type",
    "collective_shape_mismatch": r"shape|size",
    "checkpoint_collective_on_one_rank": r"state.?dict|checkpoint|sav|consolidat",
    "uneven_inputs": r"uneven|runs? out|more (?:batch|data|step)|fewer|different number|length",
    "divergent_control_flow": r"local|diverg|skip|decid|decision|branch|differ|condition|own",
    "fork_lock_deadlock": r"fork",
    "thread_lock_deadlock": r"lock|queue|full",
    "exception_swallowed": r"except|error|swallow|caught|died",
    "rank_exited": r"exit|ended|finish|returned|left|died",
    "blocked_io": r"read|write|recv|connect|pipe|socket|stderr",
    "polling_wait": r"poll|wait|sleep",
    "excessive_small_collectives": r"small|many|each|per|every",
    "excessive_object_collectives": r"object|pickl",
    "excessive_barriers": r"barrier",
    "redundant_gradient_sync": r"gradient|no_sync|unused",
    "logging_overhead": r"log|histogram|metric|record|monitor|print|summar",
    "straggler_rank_logging": r"log|dump|metric|writ|print|record|sav",
    "growing_state": r"grow|all (?:earlier|past|previous)|so far|longer|whole|accumul|every|each",
    "gc_pause": r"garbage|\bgc\b|collect",
    "checkpoint_overhead": r"checkpoint|sav|snapshot",
    "serialized_on_rank0": r"alone|only|others wait|waits?|serial",
    "host_sync": r"item|synchron",
    "python_overhead": r"python|loop",
    "dataloader_bottleneck": r"load|data|read|worker|fetch|pars",
    "straggler_data_loading": r"load|data|read|fetch|augment|sampl",
    "sampler_misconfiguration": r"sampler|shard|whole|every rank|same|all ranks",
    "straggler_compute": r"slow|cpu|comput|busy|thread|spin",
    "cpu_oversubscription": r"thread|core|oversubscri",
    "load_imbalance": r"imbalanc|uneven|more work|longer|pad|unequal|more",
    "recompilation": r"compil",
    "debug_setting_left_on": r"debug|anomaly|trac|profil|detect",
    "straggler_network": r"network|link|transfer|wire|slow",
    "nic_degraded": r"network|nic|link|transfer|wire|slow",
}


def names_truth(cause: Cause | None, diagnosis: Diagnosis, case: dict[str, Any], job: Path) -> str:
    """Return ``confirmed``, ``corrected`` or what of the truth is missing, after ``no: ``."""
    if case["symptom"] == "healthy":
        doubtful = diagnosis.verdict in ("insufficient evidence", "hypothesis")
        return "corrected" if doubtful else f"no: {diagnosis.verdict} of a healthy program"
    if diagnosis.verdict == "insufficient evidence":
        return "no: insufficient evidence"
    missing = [lacking(diagnosis, reading, case, job) for reading in readings(case)]
    best = min(missing, key=len)
    if best:
        return f"no: {', '.join(best)}"
    return "confirmed" if engine_is_right(cause, case) else "corrected"


def engine_is_right(cause: Cause | None, case: dict[str, Any]) -> bool:
    if cause is None:
        return False
    where = [{"name": p.name, "file": p.file, "line": p.line} for p in cause.functions]
    plain = {"category": cause.category, "ranks": cause.ranks, "functions": where}
    plain["action"] = cause.action
    found = [matches(plain, reading, case) for reading in readings(case)]
    return any(all(one[key] for key in ("family", "ranks", "place")) for one in found)


def lacking(
    diagnosis: Diagnosis, reading: dict[str, Any], case: dict[str, Any], job: Path
) -> list[str]:
    """What of one accepted reading an explanation does not hold."""
    text = "\n".join([diagnosis.summary, *(claim.text for claim in diagnosis.claims)])
    cited = [key for claim in diagnosis.claims for key in claim.citations if claim.is_resolved]
    lost = []
    places = reading.get("functions") or []
    if places and not any(is_named(place, text, cited, job) for place in places):
        lost.append("place")
    if not (ranks_wanted(reading, case) <= ranks_named(text)):
        lost.append("ranks")
    if not re.search(WORDS.get(reading["category"], "."), text, re.IGNORECASE):
        lost.append("kind")
    return lost


def ranks_wanted(reading: dict[str, Any], case: dict[str, Any]) -> set[int]:
    ranks = reading.get("ranks")
    named = set() if ranks == "all" or reading.get("ranks_vary") else set(ranks or ())
    return set() if len(named) == case["world_size"] else named


def ranks_named(text: str) -> set[int]:
    found: set[int] = set()
    for part in re.findall(r"(?i)\branks?\s+((?:\d+(?:\s*(?:-|to|,|and)\s*)*)+)", text):
        for first, last in re.findall(r"(\d+)(?:\s*(?:-|to)\s*(\d+))?", part):
            found |= set(range(int(first), min(int(last or first), int(first) + 64) + 1))
    return found


def is_named(place: dict[str, Any], text: str, cited: list[str], job: Path) -> bool:
    name, file = place["function"], job / place["file"]
    is_wide = name in ("main", "<module>") or place.get("line_only")
    if not is_wide and re.search(rf"\b{re.escape(name)}\b", text):
        return True
    first, last = place["line"] - 3, place["line"] + 3
    if not is_wide:
        first, last = function_around(file, place["line"])
    pattern = rf"{re.escape(Path(place['file']).name)}:(\d+)(?:-(\d+))?"
    spans = re.findall(pattern, "\n".join([text, *cited]))
    return any(int(a) <= last and first <= int(b or a) for a, b in spans)


def function_around(file: Path, line: int) -> tuple[int, int]:
    """First and last line of the innermost function around a line."""
    spans = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(spans) if spans else (line - 3, line + 3)
