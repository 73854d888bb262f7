"""From drafts to the few causes worth saying, best first.

Order is by ``share x confidence``. A vaguer cause gives way to a sharper one that explains the same
time: a straggler's waiting is not also slow collectives, a debug switch's work is not also plain
Python. What is left under the floors of ``config`` stays a finding.
"""

from collections.abc import Sequence

from eroica.config import Parameters
from eroica.localize.rules.draft import Draft
from eroica.records import Cause, Finding

# What a cause, once found, also explains, so that the vaguer one is not said beside it.
EXPLAINS: dict[str, frozenset[str]] = {
    "cores": frozenset({"straggler", "rotating"}),
    "port": frozenset({"straggler", "small_collectives", "stack_collective"}),
    "straggler": frozenset(
        {"small_collectives", "barriers", "stack_collective", "stack_barrier", "repeated_sync"}
    ),
    "rotating": frozenset(
        {"small_collectives", "barriers", "stack_collective", "stack_barrier", "repeated_sync"}
    ),
    "machine": frozenset(
        {
            *("straggler", "rotating", "bookkeeping", "python_in_step", "dataloader"),
            *("small_collectives", "barriers", "stack_collective", "stack_barrier"),
        }
    ),
    "checkpoint": frozenset({"straggler", "rotating", "barriers", "stack_barrier", "bookkeeping"}),
    "gc": frozenset({"straggler", "rotating", "bookkeeping", "stack_collective", "dataloader"}),
    "recompilation": frozenset({"straggler", "rotating", "bookkeeping", "python_in_step"}),
    "polling": frozenset({"straggler", "rotating", "dataloader", "bookkeeping", "python_in_step"}),
    "debug_setting": frozenset({"bookkeeping", "rotating", "python_in_step", "gc", "dataloader"}),
    "oversubscription": frozenset(
        {"straggler", "rotating", "bookkeeping", "python_in_step", "repeated_sync"}
    ),
    "growth": frozenset(
        {
            "rotating",
            "object_collectives",
            "small_collectives",
            "bookkeeping",
            "python_in_step",
            "stack_object_collective",
        }
    ),
    "object_collectives": frozenset({"bookkeeping", "python_in_step"}),
    "dataloader": frozenset({"python_in_step", "nested_loops", "rotating"}),
    "bookkeeping": frozenset({"python_in_step", "nested_loops"}),
    "nested_loops": frozenset({"python_in_step"}),
    "spinning_thread": frozenset(
        {"straggler", "rotating", "bookkeeping", "python_in_step", "dataloader"}
    ),
}
MAX_CAUSES = 5  # a person reads the first two
COVERS = 0.4  # of a vague cause's share that a sharper one must explain to stand for it


def rank_drafts(drafts: Sequence[Draft], parameters: Parameters) -> list[Draft]:
    """Return the drafts that stand, best first."""
    able = [d for d in drafts if _is_worth(d, parameters)]
    able.sort(key=lambda d: -d.weight)
    kept: list[Draft] = []
    for draft in able:
        explained = {
            name
            for other in able
            for name in EXPLAINS.get(other.rule, frozenset())
            if other is not draft and _covers(other, draft)
        }
        same = next((k for k in kept if _is_same(k, draft)), None)
        if same is not None and same.rule == "baseline":
            # What became slower there is known; what it is, the other rule says better.
            _join(draft, same)
            kept[kept.index(same)] = draft
        elif same is not None:
            _join(same, draft)
        elif draft.rule not in explained:
            kept.append(draft)
    return kept[:MAX_CAUSES]


def _join(kept: Draft, other: Draft) -> None:
    kept.why += [w for w in other.why if w not in kept.why]
    kept.findings += other.findings


def _is_same(one: Draft, other: Draft) -> bool:
    """The same place on the same ranks, seen by another rule (a baseline, say)."""
    if "baseline" not in (one.rule, other.rule):
        return False
    return one.ranks == other.ranks and one.places[:1] == other.places[:1]


def _covers(sharp: Draft, vague: Draft) -> bool:
    """A sharp cause explains a vague one unless the vague one is far larger.

    Cores that all ranks lack alike do not make one of them late.
    """
    if sharp.rule == "cores" and vague.rule == "straggler" and sharp.ranks != vague.ranks:
        return False
    return sharp.claims >= COVERS * (vague.share or vague.rank_share or 0.0)


def _is_worth(draft: Draft, parameters: Parameters) -> bool:
    value = draft.share if draft.share is not None else (draft.rank_share or 0.0)
    # What all ranks share is measured against the step itself; few ranks and the job's own past
    # are a yardstick, so less is enough.
    is_common = draft.ranks == "all" and draft.rule != "baseline"
    floor = parameters.common_share if is_common else parameters.straggler_share
    return value >= floor


def number(drafts: Sequence[Draft], known: Sequence[Finding]) -> tuple[list[Cause], list[Finding]]:
    """Give causes and findings their ids; findings of causes come first."""
    findings: list[Finding] = []
    causes: list[Cause] = []
    for position, draft in enumerate(drafts, 1):
        names: list[str] = []
        for finding in draft.findings:
            names.append(f"F{len(findings) + 1}")
            findings.append(replace_id(finding, names[-1]))
        causes.append(
            Cause(
                id=f"C{position}",
                category=draft.category,
                ranks=draft.ranks,
                functions=draft.places[:2],
                share=round(draft.share, 4) if draft.share is not None else None,
                confidence=round(min(draft.confidence, 0.99), 3),
                summary=draft.summary,
                action=draft.action,
                hosts=draft.hosts,
                findings=tuple(names),
                victims=draft.victims,
                why=tuple(draft.why),
                against=tuple(draft.against),
                advice=draft.advice,
            )
        )
    for finding in known:
        findings.append(replace_id(finding, f"F{len(findings) + 1}"))
    return causes, findings


def replace_id(finding: Finding, name: str) -> Finding:
    import msgspec

    return msgspec.structs.replace(finding, id=name)
