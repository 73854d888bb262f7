"""A thread of the project that spins and takes the interpreter lock from the training thread."""

import ast

import numpy as np

from eroica import units
from eroica.localize.rules.draft import (
    Draft,
    percent,
    where,
)
from eroica.localize.rules.phase import (
    statement_at,
)
from eroica.localize.rules.view import Bool, Float64, JobView, Row
from eroica.localize.source_flow import loops
from eroica.records import Finding, Place

BUSY_THREAD = 0.5  # of its samples on the tests of a loop


def spinning_thread(view: JobView) -> Draft | None:
    """A thread of the project that never rests takes the interpreter lock from the trainer.

    Whether it runs is not enough: a thread that waits for the lock looks idle to the kernel. So a
    thread counts whose samples stand on the tests of a loop, never in a call that blocks.
    """
    totals: dict[tuple[str, str | None, str], Float64] = {}
    spins: dict[tuple[str, str | None, str], Float64] = {}
    busy: dict[tuple[str, str | None, str], Float64] = {}
    masks: dict[tuple[str, str | None, str], Bool] = {}
    for position, row in enumerate(view.others):
        if not row.process.startswith("thread") or not row.project:
            continue
        key = (row.process, row.project[-1].file, row.project[-1].name)
        zeros = np.zeros(view.num_ranks)
        share = view.others_share_FR[position]
        totals[key] = totals.get(key, zeros) + share
        busy[key] = busy.get(key, zeros) + np.nan_to_num(view.others_busy_FR[position])
        if _tests_a_loop(view, row):
            spins[key] = spins.get(key, zeros) + share
            masks.setdefault(key, np.zeros(len(view.others), dtype=bool))[position] = True
    knows = bool(np.isfinite(view.others_busy_FR).any())
    for key in sorted(spins, key=lambda k: -float(spins[k].max())):
        column = int(spins[key].argmax())
        spinning = float(spins[key][column])
        on_cpu = float(busy[key][column])
        is_most = spinning >= max(BUSY_THREAD, BUSY_THREAD * float(totals[key][column]))
        if is_most and (not knows or on_cpu >= 0.1):
            return _thread_draft(view, spins[key], masks[key])
    return None


def _tests_a_loop(view: JobView, row: Row) -> bool:
    """The thread stands on a ``while`` or ``if`` test, ``pass`` or ``continue`` in a loop that
    never waits."""
    site = row.project[0]
    if row.frames[0] != site and not _quick(row):
        return False
    info = view.project.enclosing(site.file, site.line)
    if info is None or site.line is None:
        return False
    statement = statement_at(info, site.line)
    if not isinstance(statement, ast.While | ast.If | ast.Pass | ast.Continue):
        return False
    loop = next((b.node for b in loops(info, site.line) if isinstance(b.node, ast.While)), None)
    if loop is None and isinstance(statement, ast.While):
        loop = statement
    return loop is not None and not _waits_first(loop)


def _quick(row: Row) -> bool:
    """Library calls that return at once: ``Queue.empty``, ``Event.is_set`` and the like."""
    return row.frames[0].name.rsplit(".", 1)[-1] in (
        "empty",
        "qsize",
        "is_set",
        "is_alive",
        "full",
        "_qsize",
        "locked",
        "poll",
        "done",
    )


def _waits_first(loop: ast.While) -> bool:
    """Whether the idle way through the loop sleeps or blocks: each does, or the branch taken when
    nothing is there does."""
    for statement in loop.body:
        if isinstance(statement, ast.If):
            if any(isinstance(n, ast.Continue) for n in statement.body):
                return any(_blocks(n) for n in statement.body)
            if statement.orelse and any(_blocks(n) for n in statement.orelse):
                return True
            continue
        if _blocks(statement):
            return True
    return False


def _blocks(node: ast.AST) -> bool:
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            name = (
                part.func.attr
                if isinstance(part.func, ast.Attribute)
                else getattr(part.func, "id", "")
            )
            if name in ("sleep", "wait", "get", "acquire", "join", "recv", "select", "result"):
                return True
    return False


def _thread_draft(view: JobView, spins_R: Float64, mask: Bool) -> Draft:
    top = float(spins_R.max())
    guilty = view.ranks_where(spins_R > 0.5 * top)
    everyone = len(guilty) == view.num_ranks
    weights: dict[tuple[Place, ...], float] = {}
    for position in np.flatnonzero(mask):
        chain = view.others[position].project[:2]
        weights[chain] = weights.get(chain, 0.0) + float(view.others_share_FR[position].sum())
    places = max(weights, key=lambda c: weights[c])
    at = where(places[0], view)
    rest = [r for r in view.ranks if r not in guilty]
    who = "a thread of all ranks" if everyone else f"a thread of {units.rank_phrase(guilty)}"
    text = f"{who} runs without rest at {at} and takes the interpreter from the training thread"
    return Draft(
        rule="spinning_thread",
        category="polling_wait" if everyone else "straggler_compute",
        ranks="all" if everyone else guilty,
        places=places,
        share=None,
        rank_share=min(0.9, top),
        confidence=0.9,
        summary=text,
        why=[
            f"In {percent(top)} of the samples that thread tests its loop and never blocks.",
            "Python runs one thread at a time: the training thread waits for it at every "
            "instruction" + (f", and {units.rank_phrase(rest)} for that rank." if rest else "."),
        ],
        against=["What it costs here was not measured."],
        advice="Block on the queue (get with a time-out) or sleep instead of spinning.",
        findings=[
            Finding(
                id="",
                kind="stack",
                ranks=guilty,
                text=text,
                details={
                    "spinning": {
                        str(r): round(float(b), 3) for r, b in zip(view.ranks, spins_R, strict=True)
                    }
                },
            )
        ],
        victims=tuple(rest),
        claims=top,
    )
