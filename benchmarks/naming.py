"""When an explanation names the truth of a case: the rule of benchmarks/recorded.py.

An explanation names the truth when, for one accepted reading of the case,

- kind: the summary, which is read first, holds a word of the reading's category (below),
- place: the summary, or a claim that resolves and holds such a word, names the function of an
  accepted place, or a citation of it lies in that function (for main and the module's own level:
  within 3 lines of the place),
- ranks: the ranks that the summary names first hold each guilty rank and are not all ranks; a
  reading of all ranks, or of no rank, asks for none,
- verdict: after the check it is not "insufficient evidence".

Words and lines alone would take many wrong explanations for right; ``--mixed`` of recorded.py
tells how many: it holds each explanation against the truth of each other incident.

``confirmed`` says that the engine's first cause had that reading too, ``corrected`` that it had
not and the explanation says so. Of a healthy program the right explanation is one that finds the
evidence insufficient or offers a hypothesis at most.
"""

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from judging import matches, readings

from eroica.records import Cause, Diagnosis

WORDS = {
    "rank_conditional_collective": r"condition|only rank|rank \d (?:alone|skips)|if rank"
    r"|not (?:in|a member of) (?:the|that) group"
    r"|(?:never|not) (?:reach|enter|call|join|make|take part)",
    "collective_count_mismatch": r"(?:more|fewer|less|extra|missing|different number|skip|without)"
    r".{0,60}(?:all_reduce|collective|call|gather|send|recv|broadcast)|one (?:more|fewer)",
    "collective_order_mismatch": r"order|both (?:ranks )?(?:send|wait|block)|interleav|same group"
    r"|two threads|each waits|neither",
    "collective_dtype_mismatch": r"dtype",
    "collective_shape_mismatch": r"shape|size",
    "checkpoint_collective_on_one_rank": r"state_dict|checkpoint|consolidat",
    "uneven_inputs": r"uneven|runs? out|(?:more|fewer) (?:batch|sample|step)|exhaust|ends? earlier",
    "divergent_control_flow": r"local|own (?:loss|batch|data|clock|time)|skips?|diverg|decides?"
    r"|only when|on its own|branch|returns? (?:from|at once|early)|early return",
    "fork_lock_deadlock": r"\bfork",
    "thread_lock_deadlock": r"\block(?:s|ed)?\b|queue",
    "exception_swallowed": r"except|swallow|caught|raise|error",
    "rank_exited": r"exit|ended|left|returned|finished|gone|died",
    "blocked_io": r"\brecv|\bread(?:line|s|ing)?\b|socket|pipe|time-?out|stderr",
    "polling_wait": r"\bpoll|\bsleep",
    "excessive_small_collectives": r"(?:small|scalar|one (?:all_reduce )?(?:per|for each)|separate"
    r"|each).{0,80}(?:all_reduce|collective|reduc|exchange|call)|(?:all_reduce|collective)s? (?:per"
    r"|for each)",
    "excessive_object_collectives": r"object|pickl",
    "excessive_barriers": r"barrier",
    "redundant_gradient_sync": r"no_sync|gradient",
    "logging_overhead": r"\blog|histogram|metric|statistic|print",
    "straggler_rank_logging": r"\blog|\bdump|metric|print|record",
    "growing_state": r"grow|longer (?:each|every|with)|all (?:earlier|past|previous|values)|so far"
    r"|never (?:emptied|cleared|reset)",
    "gc_pause": r"garbage|\bgc\b|gc\.|collections?\b",
    "checkpoint_overhead": r"checkpoint|snapshot|\bsav(?:e|es|ing)\b",
    "serialized_on_rank0": r"rank 0 alone|only rank 0|alone on rank 0|only on rank 0|one rank",
    "host_sync": r"\.item|synchron",
    "python_overhead": r"python|interpreter",
    "dataloader_bottleneck": r"loader|worker|dataset|tokeniz|encod|pars|unpickl|pickl",
    "straggler_data_loading": r"augment|decod|decompress|loads? |loading|loader|sampler?\b|fetch",
    "sampler_misconfiguration": r"sampler|whole (?:data|set)|all \d+ samples|every sample",
    "straggler_compute": r"spin|busy|(?:background |second |own )?thread|GIL|slower",
    "cpu_oversubscription": r"(?:threads?|cores?).{0,60}(?:cores?|threads?)|oversubscri",
    "load_imbalance": r"imbalanc|unequal|longer (?:rows|sequences|sentences|texts|samples|batches)"
    r"|more (?:tokens|work|particles|samples|rows|elements)|(?:sorted|split) by|padding|dens"
    r"|nearly all|most of",
    "recompilation": r"compil",
    "debug_setting_left_on": r"anomaly|tracemalloc|profiler|debug|detect",
    "straggler_network": r"network|\blink|transfer|wire|interconnect",
    "nic_degraded": r"network|\bnic\b|\blink|transfer|wire|interconnect",
}
_RANKS = re.compile(r"(?i)\branks\s+(?:\d+(?:\s*(?:-|to|,|and)\s*)*)+|\brank\s+\d+")


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
    kind = re.compile(WORDS.get(reading["category"], "."), re.IGNORECASE)
    places = reading.get("functions") or []
    said = [(diagnosis.summary, ())]
    said += [(claim.text, claim.citations) for claim in diagnosis.claims if claim.is_resolved]
    lost = [] if kind.search(diagnosis.summary) else ["kind"]
    of_kind = [one for one in said if kind.search(one[0])] or said
    if places and not any(is_named(place, *one, job) for place in places for one in of_kind):
        lost.append("place")
    wanted, first = ranks_wanted(reading, case), _RANKS.search(diagnosis.summary)
    named = ranks_named(first.group()) if first else set()
    if wanted and not (wanted <= named and len(named) < case["world_size"]):
        lost.append("ranks")
    return lost


def ranks_wanted(reading: dict[str, Any], case: dict[str, Any]) -> set[int]:
    ranks = reading.get("ranks")
    named = set() if ranks == "all" or reading.get("ranks_vary") else set(ranks or ())
    return set() if len(named) == case["world_size"] else named


def ranks_named(text: str) -> set[int]:
    found: set[int] = set()
    for part in _RANKS.findall(text):
        for first, last in re.findall(r"(\d+)(?:\s*(?:-|to)\s*(\d+))?", part):
            found |= set(range(int(first), min(int(last or first), int(first) + 64) + 1))
    return found


def is_named(place: dict[str, Any], text: str, cited: Iterable[str], job: Path) -> bool:
    """Say whether a sentence, or what it cites, names a place."""
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
