"""A report as one self-contained HTML page: no script, no network, printable.

Everything foreign passes ``escape``; a content security policy forbids whatever would be missed.
"""

import re
from html import escape as _escape

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
from eroica.report.style import CSS
from eroica.text import visible

_CODE = re.compile(r"(`[^`\n]+`)")
_ANCHOR = re.compile(r"\b([FCP]\d+)\b")
_NO_ANCHORS: frozenset[str] = frozenset()
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def render(folder: IncidentFolder, options: Options | None = None) -> str:
    """Return the report of an incident as one HTML page."""
    return render_document(build(folder, options or Options()))


def render_document(document: Document) -> str:
    anchors = document.anchors
    nav = "".join(
        f'<a href="#{escape(section.id)}">{escape(section.title)}</a>'
        for section in document.sections
    )
    body = "".join(_section(section, 2, anchors) for section in document.sections)
    symptom = escape(document.symptom)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{symptom}: {escape(document.title.replace('`', ''))}</title>\n"
        f'<link rel="icon" href="data:,">\n<style>\n{CSS}</style>\n</head>\n<body>\n'
        f'<header class="{symptom}"><p class="symptom">{symptom.upper()}</p>'
        f"<h1>{inline(document.title, _NO_ANCHORS)}</h1>"
        f"<p>{escape(document.subtitle)}</p></header>\n"
        f'<nav aria-label="Sections">{nav}</nav>\n<main>\n{body}</main>\n'
        f"<footer>{escape(document.footer)}</footer>\n</body>\n</html>\n"
    )


def escape(text: str) -> str:
    """Escape foreign text for element content and attributes; show what is invisible."""
    return _escape(visible(text), quote=True)


def _section(section: Section, level: int, anchors: frozenset[str]) -> str:
    blocks = "".join(_block(block, anchors) for block in section.blocks)
    children = "".join(_section(child, level + 1, anchors) for child in section.children)
    return (
        f'<section id="{escape(section.id)}">'
        f"<h{level}>{inline(section.title, _NO_ANCHORS)}</h{level}>\n{blocks}{children}</section>\n"
    )


def _block(block: Block, anchors: frozenset[str]) -> str:
    match block:
        case Text(text, tone):
            css = f' class="{escape(tone)}"' if tone else ""
            return f"<p{css}>{inline(text, anchors)}</p>\n"
        case Bullets(items, is_numbered):
            tag = "ol" if is_numbered else "ul"
            rows = "".join(f"<li>{inline(item, anchors)}</li>" for item in items)
            return f"<{tag}>{rows}</{tag}>\n"
        case Facts(items):
            rows = "".join(
                f"<div><dt>{escape(name)}</dt><dd>{inline(value, anchors)}</dd></div>"
                for name, value in items
            )
            return f"<dl>{rows}</dl>\n"
        case Table():
            return _table(block, anchors)
        case Strip(stops):
            rows = "".join(
                f'<li class="{escape(stop.tone)}"><span class="what">{inline(stop.label, anchors)}'
                f'</span><span class="when">{escape(stop.when)}</span>'
                f'<span class="when">{escape(stop.offset)}</span></li>'
                for stop in stops
            )
            return f'<ol class="strip" aria-label="Timeline">{rows}</ol>\n'
        case Code(text, language):
            return _diff(text) if language == "diff" else f"<pre>{escape(text)}</pre>\n"
        case Picture(key, title, alt, svg):
            return (
                f'<figure id="{escape(key)}"><figcaption>{escape(title)}</figcaption>'
                f'<div class="picture" role="img" aria-label="{escape(alt)}">{svg}</div>'
                f'<p class="note">{inline(alt, anchors)}</p></figure>\n'
            )


def _table(table: Table, anchors: frozenset[str]) -> str:
    head = "".join(
        f'<th scope="col"{" class=number" if n in table.numeric else ""}>{escape(cell)}</th>'
        for n, cell in enumerate(table.header)
    )
    rows = []
    for number, row in enumerate(table.rows):
        anchor = table.anchors[number] if table.anchors else ""
        key = f' id="{escape(anchor)}"' if anchor else ""
        linked = anchors - {anchor}
        cells = "".join(
            f"<td{' class=number' if n in table.numeric else ''}>{inline(cell, linked)}</td>"
            for n, cell in enumerate(row)
        )
        rows.append(f"<tr{key}>{cells}</tr>")
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        "</table></div>\n"
    )


def _diff(text: str) -> str:
    """Color a diff by line; the signs stay, so that it reads without color."""
    rows = []
    for line in text.rstrip("\n").split("\n"):
        kind = {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "")
        css = f' class="{kind}"' if kind else ""
        rows.append(f"<span{css}>{escape(line)}</span>")
    return f'<pre class="diff">{chr(10).join(rows)}</pre>\n'


def inline(text: str, anchors: frozenset[str]) -> str:
    """Escape running text, set code spans and link the ids that exist on the page."""
    parts = []
    for part in _CODE.split(text):
        if _CODE.fullmatch(part):
            parts.append(f"<code>{escape(part[1:-1])}</code>")
        else:
            parts.append(_ANCHOR.sub(lambda match: _link(match, anchors), escape(part)))
    return "".join(parts)


def _link(match: "re.Match[str]", anchors: frozenset[str]) -> str:
    key = match.group(1)
    return f'<a href="#{key}">{key}</a>' if key in anchors else key
