"""An incident in the terminal: the answer first, evidence under it, the next command last."""

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from eroica import units
from eroica.explain.rules import as_sentence
from eroica.records import Breakdown, Cause, Diagnosis, Finding, Incident, Patch, Place, RankRow
from eroica.text import one_line, visible

STYLES = {
    "stuck": "bold red",
    "failed": "bold red",
    "slow": "bold yellow",
    "healthy": "bold green",
    "unknown": "bold blue",
}
LABEL_STYLES = {"safe": "green", "review": "yellow", "display-only": "dim"}
INDENT = 10
MAX_CLAIMS = 5


def print_incident(
    console: Console, incident: Incident, diagnoses: Sequence[Diagnosis] = (), *, evidence: int = 6
) -> None:
    """Print the verdict: headline, places, tables, evidence, what was not seen."""
    first = incident.causes[0] if incident.causes else None
    _print_headline(console, incident, first)
    if first is not None:
        _print_cause(console, first)
    if incident.deadline_ns is not None and incident.symptom == "stuck":
        left = units.duration(incident.deadline_ns)
        _line(console, f"the collective time-out will end the job in {left}")
    for other in incident.causes[1:]:
        _print_other(console, other)
    if incident.ranks_table:
        _print_table(console, _ranks_table(incident.ranks_table, first))
    elif incident.breakdown and first is not None:
        _print_breakdown(console, incident.breakdown, first)
    console.print()
    _print_explanation(console, incident, diagnoses)
    _print_evidence(console, incident.findings, first, evidence)
    for sentence in incident.not_seen:
        _labelled(console, "not seen", sentence)
    for warning in incident.warnings:
        where = f"{warning.file}: " if warning.file else ""
        _labelled(console, "warning", f"{where}{warning.what}")


def print_patch(console: Console, patch: Patch) -> None:
    """Print one candidate patch: title, label, why, diff, gates that failed, rehearsal."""
    console.print()
    title = Text("PATCH", style="bold cyan")
    title.append(f"   {one_line(patch.title)}", style="bold")
    title.append(f"   {one_line(patch.source)}   label: ", style="dim")
    title.append(patch.label, style=LABEL_STYLES[patch.label])
    console.print(title, soft_wrap=True)
    for text in (patch.why, patch.behaviour):
        if text:
            _line(console, text)
    print_diff(console, patch.diff)
    for gate in patch.gates:
        if not gate.passed:
            _labelled(console, "refused", f"{gate.name}: {gate.reason}")
    if patch.rehearsal is not None:
        _labelled(console, "rehearsal", f"{patch.rehearsal.verdict}: {patch.rehearsal.summary}")


def print_diff(console: Console, diff: str) -> None:
    """Print a unified diff; colors only where the console has them."""
    shown = visible(diff)
    if console.is_terminal and not console.no_color:
        code = Syntax(shown, "diff", theme="ansi_dark", background_color="default")
        console.print(Padding(code, (1, 0, 0, 2)))
        return
    console.print()
    for line in shown.splitlines():
        console.print(Text("  " + line), soft_wrap=True)


def print_next(console: Console, commands: Iterable[tuple[str, str]]) -> None:
    """Print the next commands with what each does."""
    rows = list(commands)
    if not rows:
        return
    console.print()
    width = max(len(command) for command, _ in rows)
    for number, (command, what) in enumerate(rows):
        line = Text(("next" if number == 0 else "").ljust(INDENT), style="bold")
        line.append(one_line(command).ljust(width), style="cyan")
        line.append(f"   {what}", style="dim")
        console.print(line, soft_wrap=True)


def place(where: Place) -> str:
    """``train.py:28  save_checkpoint()`` as far as it is known."""
    name = where.name if where.name.startswith("<") else f"{where.name}()"
    if where.file is None:
        return name
    line = f":{where.line}" if where.line is not None else ""
    return f"{where.file}{line}  {name}"


def _print_headline(console: Console, incident: Incident, first: Cause | None) -> None:
    line = Text(incident.symptom.upper().ljust(INDENT), style=STYLES[incident.symptom])
    line.append(one_line(incident.headline or (first.summary if first else "")), style="bold")
    if first is not None:
        line.append(f"   confidence {first.confidence:.2f}", style="dim")
    console.print(line, soft_wrap=True)


def _print_cause(console: Console, cause: Cause) -> None:
    about = cause.category
    if cause.share is not None:
        about += f", {units.share(cause.share)} of each step"
    ranks = "all ranks" if cause.ranks == "all" else units.rank_phrase(cause.ranks)
    hosts = f" on {', '.join(cause.hosts)}" if cause.hosts and cause.action == "drain" else ""
    _line(console, f"{about}; {ranks}{hosts}")
    for number, where in enumerate(cause.functions[:2]):
        _line(console, ("" if number == 0 else "from ") + place(where))
    if cause.advice:
        _labelled(console, "do", cause.advice)


def _print_other(console: Console, cause: Cause) -> None:
    line = Text("also".ljust(INDENT), style="bold")
    share = f", {units.share(cause.share)} of each step" if cause.share is not None else ""
    where = f"  {place(cause.functions[0])}" if cause.functions else ""
    line.append(one_line(f"{cause.id} {cause.category}{share}: {cause.summary}{where}"))
    console.print(line, soft_wrap=True)


def _ranks_table(rows: Sequence[RankRow], first: Cause | None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for name in ("rank", "last collective", "where its training thread is", "since", ""):
        table.add_column(name, overflow="fold")
    odd = set() if first is None or first.ranks == "all" else set(first.ranks)
    for row in rows:
        is_odd = bool(odd) and set(row.ranks) <= odd and len(rows) > 1
        since = units.duration(row.since_ns) if row.since_ns is not None else ""
        note = row.note or ("<- odd one out" if is_odd else "")
        cells = [units.ranks(row.ranks), row.last_collective, row.place, since, note]
        table.add_row(*(Text(one_line(cell)) for cell in cells), style="bold" if is_odd else None)
    return table


def _print_table(console: Console, table: Table) -> None:
    """Print a table; without the blanks that fill up its last column."""
    console.print()
    with console.capture() as captured:
        console.print(Padding(table, (0, 0, 0, 2)), soft_wrap=False)
    for line in captured.get().splitlines():
        console.print(Text.from_ansi(line.rstrip()), soft_wrap=True)


def _print_breakdown(console: Console, rows: Sequence[Breakdown], first: Cause) -> None:
    odd = set() if first.ranks == "all" else set(first.ranks)
    groups = [("the others", [row for row in rows if row.rank not in odd])]
    if odd:
        groups.insert(0, (units.rank_phrase(sorted(odd)), [r for r in rows if r.rank in odd]))
    else:
        groups = [("all ranks", list(rows))]
    console.print()
    for name, members in groups:
        if not members:
            continue
        line = Text(f"  {name:<14}")
        for label, style in _PARTS:
            value = sum(getattr(row, label) for row in members) / len(members)
            if value >= 0.01:
                line.append(f" {label.replace('exposed_communication', 'exposed comm')} ")
                line.append("█" * max(1, round(value * 30)), style=style)
                line.append(f" {units.share(value)} ")
        console.print(line, soft_wrap=True)


_PARTS = (
    ("data", "magenta"),
    ("python", "yellow"),
    ("compute", "green"),
    ("memory", "cyan"),
    ("exposed_communication", "blue"),
    ("idle", "dim"),
)


def _print_explanation(
    console: Console, incident: Incident, diagnoses: Sequence[Diagnosis]
) -> None:
    """Print the reasons that the headline and the evidence below do not say already."""
    if not diagnoses or not incident.causes:
        return
    print_diagnosis(console, incident, diagnoses[0])


def print_diagnosis(console: Console, incident: Incident, first: Diagnosis) -> None:
    """Print one explanation, less what the verdict says already."""
    said = {incident.headline, incident.causes[0].summary}
    said |= {as_sentence(text) for text in said}
    findings = [finding.text for finding in incident.findings]
    said |= {*findings, *(as_sentence(text) for text in findings)}
    if first.source != "rules" and first.summary not in said:
        _labelled(console, "why", first.summary)
    claims = [claim for claim in first.claims if claim.text not in said][:MAX_CLAIMS]
    for number, claim in enumerate(claims):
        sources = [key for key in claim.citations if key not in claim.text]
        cited = f"  [{', '.join(sources)}]" if sources else ""
        mark = "" if claim.is_resolved else "  (not confirmed by the evidence)"
        _labelled(console, "why" if number == 0 else "", f"{claim.text}{cited}{mark}")
    for note in first.notes:
        if note not in incident.not_seen:  # it is said below
            _labelled(console, "note", note)


def _print_evidence(
    console: Console, findings: Sequence[Finding], first: Cause | None, limit: int
) -> None:
    cited = set(first.findings) if first is not None else set()
    chosen = [finding for finding in findings if finding.id in cited] if cited else list(findings)
    texts = [f"{finding.id} {finding.text}" for finding in chosen if finding.text]
    if not texts:
        return
    for number, text in enumerate(texts[:limit]):
        _labelled(console, "evidence" if number == 0 else "", text)
    if len(texts) > limit:
        _labelled(console, "", f"and {len(texts) - limit} more in incident.json")


def _labelled(console: Console, label: str, text: str) -> None:
    """Print text beside a label; on a terminal wrapped between words, under itself.

    A path longer than the line stays whole, so that it can be copied.
    """
    lines = [one_line(text)]
    if console.is_terminal:
        width = max(console.width - INDENT, INDENT)
        lines = textwrap.wrap(lines[0], width, break_long_words=False, break_on_hyphens=False)
    for number, one in enumerate(lines or [""]):
        line = Text((label if number == 0 else "").ljust(INDENT), style="dim")
        line.append(one, style="not dim")
        console.print(line, soft_wrap=True)


def _line(console: Console, text: str) -> None:
    _labelled(console, "", text)
