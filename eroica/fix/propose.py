"""Causes -> patches: which fixer fits which cause, where, and whether its edit may be shown."""

import logging
from collections.abc import Sequence
from pathlib import Path

from eroica.errors import EroicaError, InputError
from eroica.fix.apply import combine
from eroica.fix.context import Context, Fixer, FixerResult
from eroica.fix.diff import file_edit, unified
from eroica.fix.gates import check
from eroica.fix.project import Tree, locate, places_of
from eroica.fix.registry import load_fixers, title
from eroica.records import FAMILY, Cause, Incident, JobEvidence, Patch, Setting

log = logging.getLogger(__name__)
MIN_SHARE = 0.10  # a further cause of a slow job must be worth this much step time
MIN_CONFIDENCE = 0.6  # likewise: two guesses at once are hard to tell apart afterwards
MIN_SCORE, MIN_FURTHER_SCORE = 0.3, 0.6  # how well a fixer must fit the first cause, and others


def propose(
    incident: Incident, *, evidence: JobEvidence | None = None, source_root: str | Path
) -> list[Patch]:
    """Return the fixers' patches for an incident, the first cause's first; often one, maybe none.

    No patch for healthy jobs, for causes outside the code, or where no fixer fits. A stuck job
    gets patches for one cause only: the others are guesses beside it.
    """
    root = Path(source_root)
    if not root.is_dir():
        raise InputError(
            f"no source folder {root}",
            next_step="eroica fix ID --source DIR",
            found="patches are made for sources that are there",
        )
    tree = Tree(root)
    patches: list[Patch] = []
    for cause in causes_to_patch(incident):
        context = make_context(tree, cause, incident, evidence)
        least = MIN_FURTHER_SCORE if patches else MIN_SCORE
        patch = patch_for(context, len(patches) + 1, least)
        if patch is None or not fits_beside(patch, patches, tree):
            continue
        patches.append(patch)
        if incident.symptom in ("stuck", "failed"):
            break
    return patches


def causes_to_patch(incident: Incident) -> list[Cause]:
    """Return the causes that a change of code can cure and that are sure enough."""
    if incident.symptom in ("healthy", "unknown"):
        return []
    found = []
    for number, cause in enumerate(incident.causes):
        outside = FAMILY.get(cause.category) == "environment" or cause.action in (
            "drain",
            "configure",
        )
        weak = number > 0 and (
            cause.confidence < MIN_CONFIDENCE
            or (cause.share is not None and cause.share < MIN_SHARE)
        )
        if number == 0 and outside:
            return []  # the answer lies outside the code: a patch would only hide it
        if not outside and not weak:
            found.append(cause)
    return found


def make_context(
    tree: Tree, cause: Cause, incident: Incident, evidence: JobEvidence | None
) -> Context:
    """Parse the cause's files and gather the facts known about the job."""
    spots = tree.spots(places_of(cause, incident.findings))
    settings = distinct_settings(evidence)
    behind = tree.spots(place for setting in settings for place in setting.places[:2])
    named = [spot.source.path for spot in (*spots, *behind)]
    tree.load_with_imports(named)
    tree.load_importers(named)
    for word in incident.job.command:  # a launcher of the project's own is imported by nobody
        path = locate(word, tree.root) if word.endswith(".py") else None
        if path is not None:
            tree.load(path)
    return Context(
        cause=cause,
        sources=dict(tree.sources),
        spots=spots,
        settings=settings,
        world_size=incident.job.world_size,
        symptom=incident.symptom,
    )


def distinct_settings(evidence: JobEvidence | None) -> tuple[Setting, ...]:
    found: list[Setting] = []
    for rank in evidence.ranks if evidence is not None else ():
        for setting in rank.settings:
            if setting not in found:
                found.append(setting)
    return tuple(found)


def candidates(context: Context) -> list[tuple[Fixer, FixerResult]]:
    """Return what the fixers offer for a cause, the best match first."""
    found: list[tuple[Fixer, FixerResult]] = []
    if not context.spots:
        return found
    for fixer in load_fixers().values():
        if context.cause.category in fixer.ANSWERS:
            try:
                result = fixer.fix(context)
            except Exception:  # a fixer that fails on odd source must not cost the other patches
                log.warning("fixer %s failed", fixer.CODE, exc_info=True)
                continue
            if result is not None:
                found.append((fixer, result))
    return sorted(found, key=lambda pair: -pair[1].score)


def fits_beside(patch: Patch, others: Sequence[Patch], tree: Tree) -> bool:
    """Say whether a patch can be applied together with others, and what that makes is sound."""
    if not others:
        return True
    if patch.diff in {known.diff for known in others}:
        return False
    try:
        texts = combine([edit for item in (*others, patch) for edit in item.edits])
    except EroicaError:
        return False
    edits = [file_edit(path, old, new) for path, (old, new) in texts.items()]
    gates = check(edits, sources={path: s.text for path, s in tree.sources.items()})
    return all(gate.passed for gate in gates)


def patch_for(context: Context, number: int, least: float = MIN_SCORE) -> Patch | None:
    """Return the best patch that fits at least so well and passes every gate."""
    for fixer, result in candidates(context):
        if result.score < least:
            return None
        patch = make_patch(context, fixer, result, number)
        failed = [gate for gate in patch.gates if not gate.passed]
        if not failed:
            return patch
        log.info("fixer %s is dropped: %s", fixer.CODE, "; ".join(g.reason for g in failed))
    return None


def make_patch(context: Context, fixer: Fixer, result: FixerResult, number: int) -> Patch:
    edits = tuple(
        file_edit(path, context.sources[path].text, text)
        for path, text in sorted(result.texts.items())
    )
    return Patch(
        id=f"P{number}",
        cause=context.cause.id,
        source=f"fixer {fixer.CODE}",
        label=result.label or fixer.LABEL,
        title=title(fixer),
        edits=edits,
        diff=unified(edits),
        why=result.why,
        behaviour=result.behaviour,
        gates=tuple(check(edits, sources=_texts(context))),
    )


def _texts(context: Context) -> dict[str, str]:
    return {path: source.text for path, source in context.sources.items()}
