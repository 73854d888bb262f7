"""A report as Markdown, for tickets and chats; foreign text is escaped and links stay inside."""

import re

from eroica.incident import IncidentFolder
from eroica.report.blocks import (
    Block,
    Bullets,
    Code,
    Document,
    Facts,
    Picture,
    Section,
    Strip,
    Table,
    Text,
)
from eroica.report.content import Options, build
from eroica.text import visible

# An underscore inside a word is only an underscore in this dialect.
_SPECIAL = re.compile(r"([`\\*\[\]<#|~!&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_CODE = re.compile(r"(`[^`\n]+`)")


def render(folder: IncidentFolder, options: Options | None = None) -> str:
    """Return the report of an incident as GitHub-flavored Markdown."""
    return render_document(build(folder, options or Options(pictures=False)))


def render_document(document: Document) -> str:
    lines = [f"# {document.symptom.upper()}: {_line(document.title)}", "", _line(document.subtitle)]
    for section in document.sections:
        lines += _section(section, 2)
    if document.footer:
        lines += ["", "---", "", _line(document.footer)]
    return "\n".join(lines) + "\n"


def _section(section: Section, level: int) -> list[str]:
    lines = ["", f"{'#' * level} {_line(section.title)}"]
    for block in section.blocks:
        lines += ["", *_block(block)]
    for child in section.children:
        lines += _section(child, level + 1)
    return lines


def _block(block: Block) -> list[str]:
    match block:
        case Text(text, tone):
            return [f"> {_line(text)}" if tone in ("note", "alarm") else _line(text)]
        case Bullets(items, is_numbered):
            marks = [f"{n}." if is_numbered else "-" for n in range(1, len(items) + 1)]
            return [f"{mark} {_line(item)}" for mark, item in zip(marks, items, strict=True)]
        case Facts(items):
            return [f"- **{_line(name)}**: {_line(value)}" for name, value in items]
        case Table():
            return _table(block)
        case Strip(stops):
            parts = [f"**{_line(stop.label)}** {stop.when} ({stop.offset})" for stop in stops]
            return [" → ".join(parts)]
        case Code(text, language):
            return _fenced(text, language)
        case Picture(_, title, alt, _):
            return [f"*{_line(title)}*: {_line(alt)}"]


def _table(table: Table) -> list[str]:
    rules = ["---:" if n in table.numeric else "---" for n in range(len(table.header))]
    rows = [table.header, *table.rows]
    lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return [lines[0], "| " + " | ".join(rules) + " |", *lines[1:]]


def _fenced(text: str, language: str) -> list[str]:
    """Fence code with more backticks than it holds, so that it cannot end its fence."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *visible(text).rstrip("\n").split("\n"), fence]


def _cell(text: str) -> str:
    # A pipe ends a cell even inside a code span, so cells carry none.
    return _line(text.replace("`", "'"))


def _escaped(text: str) -> str:
    text = _SPECIAL.sub(r"\\\1", text)
    # GitHub makes links of these as well.
    text = re.sub(r"(?i)\b(www)\.", r"\1\.", text)
    return re.sub(r"(?<=\w)@(?=\w)", r"\@", text)


def _line(text: str) -> str:
    """Escape one line of foreign text; code spans stay, everything else is inert."""
    folded = " ".join(visible(text).split())
    parts = _CODE.split(folded)
    escaped = [part if _CODE.fullmatch(part) else _escaped(part) for part in parts]
    line = "".join(escaped)
    # What would begin a list, a quote or a heading at the start of a line; bare addresses are
    # broken so that nothing foreign becomes a link.
    line = re.sub(r"^([-+=>])", r"\\\1", line)
    line = re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", line)
    return re.sub(r"(?i)\b(https?|ftp|javascript|data|mailto):(?!\s)", r"\1:\\", line)
