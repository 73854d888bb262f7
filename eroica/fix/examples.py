"""Runs a fixer on its own examples: they are its tests and its page in the docs."""

import re
from collections.abc import Iterator

from eroica.fix.context import Context, Example, Fixer
from eroica.fix.diff import file_edit
from eroica.fix.gates import check
from eroica.fix.project import make_spot
from eroica.fix.tree import Source
from eroica.records import FAMILY, Cause, Place, Setting

MARK = "  # <-- here"
FILE = "train.py"
HEADINGS = ["What it does", "Why it hurts", "When it is wrong"]


def source_of(example: Example) -> tuple[str, list[int]]:
    """Return an example's source without its marks, and the lines that were marked."""
    lines = example.before.split("\n")
    marked = [number for number, line in enumerate(lines, 1) if line.endswith(MARK)]
    return "\n".join(line.removesuffix(MARK) for line in lines), marked


def context_of(fixer: Fixer, example: Example, text: str | None = None) -> Context:
    """Return the context a fixer is given for an example (or for another text of its file)."""
    own, lines = source_of(example)
    marked = Source(FILE, own)
    source = marked if text is None else Source(FILE, text)
    spots = []
    for line in lines:
        function = marked.function_at(line)
        name = function.name.value if function is not None else "<module>"
        spots.append(make_spot(source, name, line))
    category = example.category or min(fixer.ANSWERS)
    cause = Cause(
        id="C1",
        category=category,
        ranks="all",
        functions=tuple(
            Place(name=s.function.name.value if s.function else "<module>", file=FILE, line=s.line)
            for s in spots
        ),
        share=None,
        confidence=1.0,
        summary="",
        action="patch",
    )
    settings = tuple(Setting(key=k, value=v) for k, v in example.settings.items())
    return Context(
        cause, {FILE: source}, tuple(spots), settings, world_size=2, symptom=example.symptom
    )


def outcome(fixer: Fixer, example: Example, text: str | None = None) -> str | None:
    """Return the file after the fixer, or None where it offers nothing."""
    result = fixer.fix(context_of(fixer, example, text))
    return None if result is None else result.texts[FILE]


def problems(fixer: Fixer) -> list[str]:
    """Return what is wrong with a fixer: its documentation, its parts, its examples.

    ``eroica fixers CODE --check`` prints it; a test of your own package asserts that it is empty.
    """
    return [*_in_words(fixer), *_in_examples(fixer)]


def _in_words(fixer: Fixer) -> Iterator[str]:
    text = (fixer.__doc__ or "").strip()
    if not re.fullmatch(r"[A-Z][A-Z0-9]{1,2}\d{3}", fixer.CODE):
        yield f"CODE {fixer.CODE} is not two or three capitals and three digits"
    if not text.startswith(f"{fixer.CODE} "):
        yield f"the docstring does not begin with {fixer.CODE} and a title"
    if re.findall(r"^## (.+)$", text, re.M) != HEADINGS:
        yield f"the docstring's headings are not {', '.join(HEADINGS)}"
    if fixer.LABEL not in ("safe", "review"):
        yield f"LABEL is {fixer.LABEL!r}, not safe or review"
    unknown = sorted(fixer.ANSWERS - FAMILY.keys())
    if unknown:
        yield f"ANSWERS names unknown categories: {', '.join(unknown)}"
    if not fixer.KEEPS:
        yield "KEEPS has no example of a source that is left alone"


def _in_examples(fixer: Fixer) -> Iterator[str]:
    for kind, examples in (("FIXES", fixer.FIXES), ("KEEPS", fixer.KEEPS)):
        for number, example in enumerate(examples, 1):
            name = f"{kind} {number}"
            before, marked = source_of(example)
            if not marked:
                yield f"{name} marks no line with{MARK}"
                continue
            made = outcome(fixer, example)
            if kind == "KEEPS" and made is not None:
                yield f"{name} is changed"
            elif kind == "FIXES" and made != example.after:
                yield f"{name} does not become its after; it becomes:\n{made or '(unchanged)'}"
            elif kind == "FIXES":
                yield from _in_patch(fixer, example, before, name)


def _in_patch(fixer: Fixer, example: Example, before: str, name: str) -> Iterator[str]:
    failed = [one for one in check([file_edit(FILE, before, example.after)]) if not one.passed]
    for gate in failed:
        yield f"{name} fails the gate {gate.name}: {gate.reason}"
    if not failed and outcome(fixer, example, text=example.after) is not None:
        yield f"{name} is changed again by a second run"
