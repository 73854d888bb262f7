"""Runs a fixer on its own examples: they are its tests and its page in the docs."""

from eroica.fix.context import Context, Example, Fixer
from eroica.fix.project import make_spot
from eroica.fix.tree import Source
from eroica.records import Cause, Place, Setting

MARK = "  # <-- here"
FILE = "train.py"


def source_of(example: Example) -> tuple[str, list[int]]:
    """Return an example's source without its marks, and the lines that were marked."""
    lines = example.before.split("\n")
    marked = [number for number, line in enumerate(lines, 1) if line.endswith(MARK)]
    return "\n".join(line.removesuffix(MARK) for line in lines), marked


def context_of(fixer: Fixer, example: Example, text: str | None = None) -> Context:
    """Return the context a fixer is given for an example (or for another text of its file)."""
    own, lines = source_of(example)
    source = Source(FILE, own if text is None else text)
    spots = []
    for line in lines:
        function = Source(FILE, own).function_at(line)
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
    return Context(cause, {FILE: source}, tuple(spots), settings, world_size=2)


def outcome(fixer: Fixer, example: Example, text: str | None = None) -> str | None:
    """Return the file after the fixer, or None where it offers nothing."""
    result = fixer.fix(context_of(fixer, example, text))
    return None if result is None else result.texts[FILE]
