"""A report as plain blocks: content is written once, Markdown and HTML only render it.

All text in blocks is plain and foreign until a renderer has escaped it. Two marks are known: text
between backticks is code, and ids of findings and causes become links where the renderer can.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Text:
    text: str
    tone: str = ""
    """``lead``, ``note`` or ``alarm``; empty for running text."""


@dataclass(frozen=True)
class Bullets:
    items: tuple[str, ...]
    is_numbered: bool = False


@dataclass(frozen=True)
class Facts:
    """Name and value pairs."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    anchors: tuple[str, ...] = ()
    """One id a row, which prose links to."""
    numeric: frozenset[int] = frozenset()
    """Columns to be set right."""


@dataclass(frozen=True)
class Code:
    text: str
    language: str = ""


@dataclass(frozen=True)
class Picture:
    """A drawing with what it says in words. Markdown shows the words."""

    id: str
    title: str
    alt: str
    svg: str


@dataclass(frozen=True)
class Stop:
    """One moment of a strip."""

    label: str
    when: str
    offset: str
    tone: str = ""
    """``good``, ``bad`` or empty."""


@dataclass(frozen=True)
class Strip:
    """Moments in the order they came, evenly apart: seconds and hours stand side by side."""

    stops: tuple[Stop, ...]


Block = Text | Bullets | Facts | Table | Code | Picture | Strip


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    blocks: tuple[Block, ...]
    children: "tuple[Section, ...]" = ()


@dataclass(frozen=True)
class Document:
    title: str
    symptom: str
    subtitle: str
    sections: tuple[Section, ...]
    footer: str = ""
    anchors: frozenset[str] = field(default_factory=frozenset)
    """Ids that prose may link to."""


def all_anchors(sections: tuple[Section, ...]) -> frozenset[str]:
    """Return every id a reader can jump to: rows of tables, pictures and sections."""
    found: set[str] = set()
    for section in sections:
        found.add(section.id)
        for block in section.blocks:
            if isinstance(block, Table):
                found |= set(block.anchors)
            elif isinstance(block, Picture):
                found.add(block.id)
        found |= all_anchors(section.children)
    return frozenset(found)
