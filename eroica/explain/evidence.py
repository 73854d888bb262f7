"""The evidence pack of one cause: what a model may know of it, bounded, differential, citable.

Parts carry a weight; what does not fit the budget is left out from the lowest weight up, and the
pack says so. Tokens are estimated as characters / 4: counting them exactly would need a table
that some libraries download.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from eroica.columns import RankPatterns
from eroica.explain import parts
from eroica.explain.privacy import Share
from eroica.explain.profiles import profiles
from eroica.explain.sources import Excerpt, Sources
from eroica.records import Cause, Incident, JobEvidence, Place

TOKEN_CHARS = 4
DEFAULT_BUDGET = 12_000
"""Tokens of evidence: fits the smallest context window in common use with room to answer."""


@dataclass(frozen=True)
class Part:
    name: str
    text: str
    weight: int
    """Larger stays longer."""

    @property
    def tokens(self) -> int:
        return len(self.text) // TOKEN_CHARS + 8


@dataclass(frozen=True)
class Pack:
    """What is sent of one cause, and what citations may name."""

    cause: Cause | None
    parts: tuple[Part, ...]
    left_out: tuple[str, ...] = ()
    excerpts: tuple[Excerpt, ...] = ()
    source_sha256: str = ""
    """Of the guilty function's source; empty where it was not found."""

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.parts)

    @property
    def files(self) -> list[str]:
        """The project's files of which something is shown, relative to its root."""
        return sorted({excerpt.file for excerpt in self.excerpts})


def gather(
    incident: Incident,
    cause: Cause | None,
    *,
    evidence: JobEvidence | None = None,
    patterns: Sequence[RankPatterns] = (),
    source_root: str | None = None,
    share: Share = "functions",
    budget: int = DEFAULT_BUDGET,
    may_show: Callable[[str], bool] | None = None,
) -> Pack:
    """Return the evidence pack of a cause, or of an incident without one.

    ``may_show`` leaves out files by their path, as those that a patch may not change.
    """
    root = source_root or (evidence.source_root if evidence else None) or incident.job.source_root
    recorded = (evidence.source_root if evidence else None) or incident.job.source_root
    sources = Sources(root, recorded)
    shown = share in _WITH_SOURCE
    excerpts = list(_excerpts(sources, incident, cause, evidence, share)) if shown else []
    excerpts = [one for one in excerpts if may_show is None or may_show(one.file)]
    guilty = sources.function(cause.functions[0]) if cause and cause.functions else None
    collected = [
        Part("verdict", parts.verdict(incident, cause), 100),
        Part("findings", parts.findings(incident, cause), 95),
        Part("difference", parts.difference(incident, cause, evidence), 90),
        Part("profile", profiles(incident, cause, patterns), 88),
        Part("waiting", parts.waiting(incident, evidence), 85),
        *(Part(_name_of(e), e.text, 80 - 3 * n) for n, e in enumerate(excerpts)),
        Part("environment", parts.environment(incident, evidence), 60),
        Part("logs", "" if share == "none" else parts.logs(cause, evidence), 40),
        Part("commits", _commits(sources, excerpts), 30),
        Part("not collected", _unseen(incident, cause, evidence, excerpts, share), 70),
        Part("other causes", parts.others(incident, cause), 50),
    ]
    kept, left_out = _within([part for part in collected if part.text], budget)
    names = {part.name for part in kept}
    return Pack(
        cause=cause,
        parts=tuple(kept),
        left_out=tuple(left_out),
        excerpts=tuple(e for e in excerpts if _name_of(e) in names),
        source_sha256=guilty.sha256 if guilty else "",
    )


def _name_of(excerpt: Excerpt) -> str:
    """What an excerpt's part is called; a file's name is foreign text like any other."""
    file = parts.inert(excerpt.file).replace('"', "'")
    return f"source {file}:{excerpt.first}-{excerpt.last} ({excerpt.about})"


def _unseen(
    incident: Incident,
    cause: Cause | None,
    evidence: JobEvidence | None,
    excerpts: list[Excerpt],
    share: Share,
) -> str:
    text = parts.unseen(incident, evidence)
    if cause is not None and cause.functions and not excerpts:
        why = "is not shared" if share not in _WITH_SOURCE else "was not found on this machine"
        text += f"\nthe source of the guilty function {why}"
    return text.strip("\n")


_WITH_SOURCE = ("functions", "files")
_MAX_FILE_LINES = 400
_MAX_EXPLAINED = 5
"""Excerpts whose classes and helpers are shown too."""


def _within(collected: list[Part], budget: int) -> tuple[list[Part], list[str]]:
    """Drop parts, lowest weight first, until the rest fits; cut the last one rather than all."""
    kept, left_out = list(collected), []
    while sum(part.tokens for part in kept) > budget and kept:
        least = min(kept, key=lambda part: part.weight)
        over = sum(part.tokens for part in kept) - budget
        place = kept.index(least)
        room = (least.tokens - over) * TOKEN_CHARS
        if room > 400 or len(kept) == 1:
            text = least.text[: max(room, 0)].rpartition("\n")[0]
            kept[place] = Part(least.name, text + "\n[cut here for size]", least.weight)
            left_out.append(f"{least.name}: its end")
            break
        del kept[place]
        left_out.append(least.name)
    return kept, left_out


def _excerpts(
    sources: Sources,
    incident: Incident,
    cause: Cause | None,
    evidence: JobEvidence | None,
    share: Share,
) -> Iterable[Excerpt]:
    """The guilty function, its caller, then the project's frames on the odd and a healthy rank.

    After them what explains them: their classes, what they use, the scripts they start. Whoever
    reads a method cannot judge it without the place its attributes are set.
    """
    places: list[tuple[str, Place]] = []
    names = ("the guilty function", "its caller or where it was set up")
    if cause is not None:
        places += zip(names, cause.functions[:2], strict=False)
    for about, rank in parts.pair(cause, evidence):
        about = f"on the stack of {about} rank {rank.rank}"
        places += [(about, p) for p in parts.frames(rank) if p.name != "<module>"]
    places += [("on the way to it", p) for p in _callers(incident, cause)]
    yielded: list[Excerpt] = []
    for about, place in places:
        if share == "files" and (lines := sources.lines(place.file or "")):
            small = len(lines) <= _MAX_FILE_LINES
            excerpt = sources.whole(place.file or "", about) if small else None
        else:
            excerpt = None
        excerpt = excerpt or sources.function(place, about)
        if excerpt is not None and not any(_covers(one, excerpt) for one in yielded):
            yielded.append(excerpt)
            yield excerpt
    main = yielded[:_MAX_EXPLAINED]
    classes = [other for one in main for other in sources.class_of(one)]
    heads = [sources.head(file) for file in dict.fromkeys(one.file for one in main[:3])]
    used = [other for one in (*main, *classes) for other in sources.used_by(one)]
    scripts = [other for one in (*main, *classes, *used) for other in sources.started_by(one)]
    for extra in (*classes, *heads, *used, *scripts):
        if extra is not None and not any(_covers(one, extra) for one in yielded):
            yielded.append(extra)
            yield extra


def _callers(incident: Incident, cause: Cause | None) -> list[Place]:
    """The functions on the way to what the cause's findings measured, innermost first."""
    wanted = cause.findings if cause is not None else ()
    stacks = [f.function.stack for f in incident.findings if f.id in wanted and f.function]
    return [place for stack in stacks[:1] for place in stack if place.name != "<module>"]


def _covers(one: Excerpt, other: Excerpt) -> bool:
    return one.file == other.file and one.first <= other.first and other.last <= one.last


def _commits(sources: Sources, excerpts: list[Excerpt]) -> str:
    rows = []
    for excerpt in excerpts[:2]:
        found = [parts.inert(line) for line in sources.commits(excerpt)]
        if found:
            rows.append(f"{excerpt.file}:{excerpt.first}-{excerpt.last}")
            rows += [f"  {line}" for line in found]
    return "\n".join(rows)


__all__ = ["DEFAULT_BUDGET", "Pack", "Part", "gather"]
