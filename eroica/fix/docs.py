"""Writes the page of all fixers from their documentation and their tested examples.

python -m eroica.fix.docs > docs/fixers.md
"""

import difflib
import sys

from eroica.fix.context import Example, Fixer
from eroica.fix.examples import source_of
from eroica.fix.registry import load_fixers, title

_HEAD = """\
# Fixers

Made from the fixers themselves by `python -m eroica.fix.docs`; a test keeps it whole. Every
example is run by the tests. `safe` keeps the program's meaning, `review` may change its behavior:
read the line that says how.

A fixer of your own is a module with the same parts as those in `fixers/`: a docstring that begins
with its code and has the three headings, `CODE`, `ANSWERS` (categories), `LABEL`, `FIXES` and
`KEEPS` (examples), and `fix(context)`, which returns `context.result(...)` or None. Offer it from
your package:

    [project.entry-points."eroica.fixers"]
    mine = "my_package.my_fixer"

| code | what | label | causes |
|---|---|---|---|
"""


def page() -> str:
    """Return the whole page as Markdown."""
    fixers = load_fixers()
    rows = [
        f"| [{code}](#{_anchor(fixer)}) | {title(fixer)} | {fixer.LABEL} "
        f"| {', '.join(sorted(fixer.ANSWERS))} |"
        for code, fixer in fixers.items()
    ]
    return _HEAD + "\n".join(rows) + "\n\n" + "\n".join(section(f) for f in fixers.values())


def _anchor(fixer: Fixer) -> str:
    words = f"{fixer.CODE} {title(fixer)}".lower()
    return "".join(c if c.isalnum() or c in " -_" else "" for c in words).replace(" ", "-")


def section(fixer: Fixer) -> str:
    """Return one fixer's part: its documentation, then its first example as a diff."""
    lines = (fixer.__doc__ or "").strip().split("\n")
    body = "\n".join(
        line.replace("## ", "### ", 1) if line.startswith("## ") else line for line in lines[1:]
    )
    head = f"## {fixer.CODE} {title(fixer)}"
    return f"{head}\n{body.rstrip()}\n\n### Example\n\n```diff\n{example_diff(fixer.FIXES[0])}```\n"


def example_diff(example: Example) -> str:
    before, _ = source_of(example)
    lines = difflib.ndiff(before.splitlines(), example.after.splitlines())
    return "".join(f"{line[0]}{line[2:]}".rstrip() + "\n" for line in lines if line[0] != "?")


if __name__ == "__main__":
    sys.stdout.write(page())
