"""What the review shows, as rich text made from the session; no widget in it."""

from collections.abc import Sequence

from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

from eroica import units
from eroica.records import Cause, Diagnosis, Finding, Incident, Patch
from eroica.review.heatmap import heatmap
from eroica.review.hunks import Line, shown_lines
from eroica.review.session import Item, Session
from eroica.text import one_line, visible

MARKS = {"open": (" ", "dim"), "accepted": ("✓", "bold green"), "rejected": ("✗", "bold red")}
BACKGROUND = {
    True: {"-": "on #4b1113", "+": "on #12361f", " ": ""},
    False: {"-": "on #ffd7d5", "+": "on #ccf2d5", " ": ""},
}
"""By whether the screen is dark."""
IN_ONE_LINE = (
    ("y", "accept", "accept"),
    ("n", "reject", "reject"),
    ("a", "safe ones", "accept_safe"),
    ("d", "rest of file", "reject_file"),
    ("s", "split", "split"),
    ("e", "edit", "edit"),
    ("c", "comment", "comment"),
    ("r", "rehearse", "rehearse"),
    ("v", "evidence", "evidence"),
    ("o", "whole file", "whole_file"),
    ("w", "write", "write"),
    ("u", "undo", "undo"),
    ("?", "keys", "help"),
    ("q", "quit", "leave"),
)
"""Key, word, action: the line at the bottom, to be clicked too."""


def causes(session: Session, current: Cause | None) -> Text:
    """The list of causes with category, ranks, share and number of proposals."""
    text = Text()
    for cause in session.incident.causes:
        is_current = current is not None and cause.id == current.id
        start = len(text)
        text.append("▶ " if is_current else "  ", style="bold cyan")
        text.append(f"{cause.id} {cause.category}\n", style="bold" if is_current else "")
        ranks = "all" if cause.ranks == "all" else units.rank_phrase(cause.ranks)
        parts = [ranks, f"{cause.confidence:.2f}"]
        if cause.share is not None:
            parts.insert(1, units.share(cause.share))
        proposals = {item.hunk.patch for item in session.items_of(cause)}
        parts.append(f"{len(proposals)} patch{'' if len(proposals) == 1 else 'es'}")
        text.append("  " + " · ".join(parts) + "\n", style="dim")
        text.stylize(_clicked(f"app.choose_cause({cause.id!r})"), start)
    if not session.incident.causes:
        text.append("no cause was found\n", style="dim")
    return text


def evidence(
    incident: Incident, cause: Cause | None, findings: list[Finding], *, marked: str = ""
) -> Text:
    """Who waits where, healthy beside guilty, and the findings; the ``marked`` one stands out."""
    text = Text()
    odd = set() if cause is None or cause.ranks == "all" else set(cause.ranks)
    for row in incident.ranks_table:
        style = "bold" if odd and set(row.ranks) <= odd else ""
        text.append(f"rank {units.ranks(row.ranks)}  ", style=style or "cyan")
        text.append(one_line(f"{row.last_collective}  {row.place}") + "\n", style=style)
    text.append_text(heatmap(findings))
    for finding in findings:
        style = "reverse" if finding.id == marked else ""
        text.append(f"{finding.id} ", style=style or "cyan")
        text.append(one_line(finding.text or finding.kind) + "\n", style=style)
        if finding.beta is not None:
            text.append(_pattern_line("here", finding) + "\n", style="dim")
            if finding.peers:
                text.append("   peers  " + _pairs(finding.peers) + "\n", style="dim")
    return text


def citations(diagnosis: Diagnosis | None) -> list[tuple[str, str]]:
    """Every citation of an explanation with the claim that makes it, in reading order."""
    claims = diagnosis.claims if diagnosis is not None else ()
    return [(cited, claim.text) for claim in claims for cited in claim.citations]


def diff(session: Session, item: Item) -> str:
    """The hunk with line numbers, as text; hidden characters escaped, tabs shown."""
    lines = shown_lines(item.hunk, session.before(item))
    return "\n".join(
        f"{line.mark}{line.number:>5}  {visible(line.text, tabs=True)}" for line in lines
    )


def highlighted(lines: Sequence[Line], path: str, is_dark: bool) -> list[Text]:
    """The lines' text in colors, all in one go: a lexer takes as long to start as for 50 lines."""
    shown = [visible(line.text, tabs=True) for line in lines]
    lexer = "python" if path.endswith(".py") else "text"
    theme = "ansi_dark" if is_dark else "ansi_light"
    syntax = Syntax("", lexer, theme=theme, background_color="default")
    bodies = list(syntax.highlight("\n".join(shown)).split("\n", allow_blank=True))[: len(lines)]
    if [body.plain for body in bodies] == shown:
        return bodies
    return [Text(body) for body in shown]  # a lexer that drops or adds a character is not shown


def title(session: Session, item: Item | None) -> str:
    """``train.py  hunk 1 of 2  COL001  review``."""
    if item is None:
        return "no proposal"
    patch = session.patch(item.hunk.patch)
    own = [other for other in session.items if other.hunk.patch == patch.id]
    mark, _ = MARKS[item.state]
    place = f"{item.hunk.path}  hunk {own.index(item) + 1} of {len(own)}"
    edited = "   edited" if item.is_edited else ""
    return one_line(f"{mark} {place}   {patch.source}   {session.label_of(item)}{edited}")


def about(patch: Patch | None, diagnosis: Diagnosis | None) -> Text:
    """Rehearsal, what the patch changes besides the cure, failed gates, and the explanation."""
    text = Text()
    if patch is not None:
        text.append(one_line(patch.title) + "\n", style="bold")
        for part in (patch.why, patch.behaviour):
            if part:
                text.append(one_line(part) + "\n")
        rehearsal = patch.rehearsal
        summary = f"{rehearsal.verdict}: {rehearsal.summary}" if rehearsal else "not rehearsed (r)"
        text.append("rehearsal  ", style="cyan")
        text.append(one_line(summary) + "\n")
        for gate in patch.gates:
            if not gate.passed:
                text.append(one_line(f"refused by {gate.name}: {gate.reason}") + "\n", style="red")
    if diagnosis is not None:
        text.append("why  ", style="cyan")
        text.append(one_line(diagnosis.summary) + "\n")
        for claim in diagnosis.claims:
            cited = f" [{', '.join(claim.citations)}]" if claim.citations else ""
            mark = "" if claim.is_resolved else " (not confirmed by the evidence)"
            text.append(one_line(f"- {claim.text}{cited}{mark}") + "\n")
    return text


def status(session: Session, message: str, width: int) -> Text:
    """The line at the bottom: a message or the keys, and how far the review is."""
    counts = session.counts()
    done = f"{counts['accepted']} accepted, {counts['rejected']} rejected, {counts['open']} open"
    left = Text(one_line(message)) if message else _keys(width - len(done) - 4)
    return left.append(" " * max(4, width - left.cell_len - len(done))).append(done)


def _keys(room: int) -> Text:
    """The keys with what they do, as many as there is room for; bare letters on a small screen."""
    in_words = sum(len(key) + len(word) + 3 for key, word, _ in IN_ONE_LINE) <= room
    text = Text()
    for key, word, action in IN_ONE_LINE:
        start = len(text)
        text.append(key, style="bold").append(f" {word}" if in_words else "", style="dim")
        text.stylize(_clicked(f"app.{action}"), start)
        text.append("  " if in_words else " ")
    return text


def _clicked(action: str) -> Style:
    """The style of text that does something when it is clicked."""
    return Style.from_meta({"@click": action})


def _pattern_line(name: str, finding: Finding) -> str:
    values = {"beta": finding.beta, "mu": finding.mu, "sigma": finding.sigma}
    return f"   {name:<6} " + _pairs({k: v for k, v in values.items() if v is not None})


def _pairs(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.3f}" for name, value in values.items())
