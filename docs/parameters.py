"""The page of every number that decides, made from the code that holds it; see generate.py."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "eroica" / "config.py"
RULES = ROOT / "eroica" / "localize"
_FIELD = re.compile(r"    (\w+): (?:int|float) = ([\w.+-]+)(?:  # (.*))?$")
_GROUP = re.compile(r"    # (.+)$")
INTRODUCTION = """# Parameters

Every number that decides something. `paper` is the EROICA paper (arXiv 2506.08528) as far as it is
known, `ours` a choice of this project. One of the first tables is changed for a run with
`EROICA_<NAME>=value` in the environment, for example `EROICA_STRAGGLER_SHARE=0.1`.
"""
CONSTANTS = """## Constants of single rules

Numbers that only one rule of `eroica/localize` knows; they are changed in its file.
"""


class Row(NamedTuple):
    """One parameter; ``group`` is the heading it stands under."""

    group: str
    name: str
    value: str
    source: str
    reason: str


def parameters(path: Path = CONFIG) -> list[Row]:
    """The fields of ``config.Parameters`` with the comment beside each."""
    rows, group, is_inside = [], "", False
    for line in path.read_text().splitlines():
        is_inside = line.startswith("class Parameters") or (
            is_inside and not line.startswith("def")
        )
        heading, field = _GROUP.match(line), _FIELD.match(line)
        if is_inside and heading:
            group = heading[1]
        elif is_inside and field:
            source, _, reason = (field[3] or "").partition(": ")
            rows.append(Row(group, field[1], field[2].replace("_", ""), source, reason))
    return rows


def constants(folder: Path = RULES) -> list[Row]:
    """Numbers at the top of a module, with the comment beside or the string below each."""
    rows = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        lines, body = text.splitlines(), ast.parse(text).body
        for place, node in enumerate(body):
            name = _constant(node)
            if name is None:
                continue
            _, _, comment = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")
            below = body[place + 1] if place + 1 < len(body) else None
            reason = comment or _text(below) or _above(lines, node.lineno - 2)
            value = ast.unparse(node.value)  # type: ignore[attr-defined]
            rows.append(Row(path.relative_to(folder).as_posix(), name, value, "ours", reason))
    return rows


def _constant(node: ast.stmt) -> str | None:
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return None
    name, value = node.targets[0].id, node.value
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    is_number = isinstance(value, ast.Constant) and type(value.value) in (int, float)
    return name if is_number and name.strip("_").isupper() else None


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


def _above(lines: list[str], number: int) -> str:
    found = []
    while number >= 0 and lines[number].startswith("# "):
        found.append(lines[number][2:])
        number -= 1
    return " ".join(reversed(found))


def page() -> str:
    parts = [INTRODUCTION]
    rows = parameters()
    for group in dict.fromkeys(row.group for row in rows):
        parts.append(f"## {group}\n\n| name | default | source | why |\n|---|---|---|---|")
        parts += [
            f"| `{r.name}` | {r.value} | {r.source} | {r.reason} |"
            for r in rows
            if r.group == group
        ]
        parts.append("")
    parts += [CONSTANTS, "| file | name | value | why |\n|---|---|---|---|"]
    parts += [f"| {r.group} | `{r.name}` | {r.value} | {r.reason} |" for r in constants()]
    return "\n".join(parts) + "\n"
