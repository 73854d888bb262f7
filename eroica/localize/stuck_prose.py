"""Sentences for ranks that went apart: what happened, why it is believed, what to do."""

import ast
from collections.abc import Sequence

from eroica.localize.collectives import Apart
from eroica.localize.source import Project
from eroica.localize.source_calls import collective_kind, group_of
from eroica.localize.source_depend import LOCAL, REGISTERED
from eroica.localize.source_lines import line_calls
from eroica.localize.stuck_reason import Reason
from eroica.localize.stuck_suspect import at
from eroica.localize.stuck_view import innermost
from eroica.localize.waits import Wait
from eroica.records import Place
from eroica.units import rank_phrase

FORWARD_ADVICE = (
    "run the part on every rank (on zeros where there is nothing), or wrap the model with "
    "find_unused_parameters=True"
)
ADVICE = {
    "rank_conditional_collective": "let every rank of the group reach the collective: move it out "
    "of the condition, or give it a group of the ranks that enter",
    "checkpoint_collective_on_one_rank": "call the state dictionary on every rank and write the "
    "file on one",
    "collective_count_mismatch": "make the number of collectives the same on every rank: iterate "
    "over a fixed list, contribute zeros where a rank has nothing",
    "uneven_inputs": "give every rank as many batches (drop_last, or the minimum over ranks), or "
    "wrap the loop in torch's Join context",
    "divergent_control_flow": "decide together: all_reduce or broadcast the flag before the branch",
    "exception_swallowed": "tell the other ranks of the error (all_reduce a flag) or re-raise it",
    "collective_shape_mismatch": "make the operands of the collective the same size on every rank",
    "collective_dtype_mismatch": "make the operands of the collective the same type on every rank",
    "collective_order_mismatch": "issue the collectives in one order on every rank",
}


def verb(ranks: Sequence[int], verb: str) -> str:
    return verb + "s" if len(ranks) == 1 else verb


def prose(project: Project, reason: Reason, category: str, inner: Place) -> tuple[str, list[str]]:
    waiter, skipper = reason.waiter, reason.skipper
    they, others = rank_phrase(waiter.ranks), rank_phrase(skipper.ranks)
    waits = verb(waiter.ranks, "wait")
    never = f"never {verb(skipper.ranks, 'enter')}"
    op, where = waiter.wait.op, at(inner, project)
    here = at(reason.place, project)
    why = [
        f"{they} {waits} in `{op}` at {where}",
        f"{others} {'is' if len(skipper.ranks) == 1 else 'are'} in `{skipper.wait.op}` at "
        f"{at(skipper.wait.user[0] if skipper.wait.user else None, project)}",
    ]
    if reason.kind == "condition":
        summary = f"{they} {waits} in a {op} that {others} {never}"
        under = reason.text if reason.text.startswith("@") else f"if {reason.text}"
        why.append(f"the call stands under `{under}` at {here}")
        why += _group_hint(project, waiter.wait)
    elif reason.kind == "guard":
        summary = f"{others} passed the {op} that {they} {waits} in, by `{reason.jump}`"
        why.append(f"`if {reason.text}` at {here} leads to `{reason.jump}` before the call")
    elif reason.kind == "handler":
        summary = f"{others} swallowed an error and went past the {op} that {they} {waits} in"
        why.append(f"`except {reason.text}` at {here} lets the program go on ({reason.jump})")
    elif reason.kind == "dispatch" or REGISTERED in reason.tags:
        summary = f"{they} {waits} in a {op} that {others} {never}"
        why.append(f"`{reason.text}` at {here} is not the same on every rank")
    elif reason.kind == "break":
        summary = f"{others} left the loop in which {they} still {waits}: `{reason.text}`"
        why.append(f"`if {reason.text}` at {here} leads to `{reason.jump}` out of the loop")
    elif category == "collective_count_mismatch":
        summary = f"ranks issue different numbers of {op}: {others} fewer than {they}"
        why.append(f"the call stands in `for ... in {reason.text}` at {here}, once an item")
    elif category == "uneven_inputs":
        summary = f"ranks run out of data at different steps: {others} first"
        why.append(f"the loop over `{reason.text}` at {here} is left by {others} only")
    elif reason.kind == "while":
        summary = f"{others} left the loop `while {reason.text}` in which {they} still {waits}"
        why.append(f"the condition at {here} is decided by each rank for itself")
    else:
        summary = f"the backward pass of {others} needed fewer all-reduces than that of {they}"
        if reason.text:
            why.append(
                f"the model runs a part only if `{reason.text}` at {here}: where it does not, "
                "those parameters get no gradient and their bucket is not reduced"
            )
    if reason.kind != "handler" and reason.tags & LOCAL and reason.text:
        names = ", ".join(sorted(reason.tags & LOCAL))
        why.append(f"`{reason.text}` depends on: {names}, so ranks may decide differently")
    return summary, why


def early_prose(
    project: Project, reason: Reason, came: Apart, inner: Place
) -> tuple[str, list[str]]:
    """Of a desync that came before the hang: the ranks paired the wrong calls since then."""
    they, others = rank_phrase(reason.waiter.ranks), rank_phrase(reason.skipper.ranks)
    condition = f" (`{reason.text}`)" if reason.text else ""
    summary = f"{others} did not make the {reason.waiter.wait.op} of {they}{condition}"
    other = innermost(reason.skipper.wait)
    why = [
        f"the ranks' collectives agree up to #{came.before.sequence} ({came.before.op})",
        f"#{came.sequence}: {they} called from {at(inner, project)}, {others} from "
        f"{at(other, project)}; since then wrong calls are paired",
        f"`{reason.text}` at {at(reason.place, project)} decides it",
    ]
    return summary, why


def _group_hint(project: Project, wait: Wait) -> list[str]:
    """Say so where the function's other collectives name a group and this one does not."""
    if not wait.user or wait.user[0].line is None:
        return []
    function = project.enclosing(wait.user[0].file, wait.user[0].line)
    if function is None:
        return []
    mine = line_calls(function, wait.user[0].line)[1]
    if any(group_of(call) is not None for call in mine):
        return []
    for call in (n for n in function.own_nodes if isinstance(n, ast.Call)):
        if collective_kind(call, function.module) and group_of(call) is not None:
            return ["other collectives of that function name a group; this one runs on all ranks"]
    return []
