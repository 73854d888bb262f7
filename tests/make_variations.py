"""A fixer's example as somebody else would have written it: same program, other text."""

import re

import libcst as cst

from eroica.fix.examples import MARK

NOTE = cst.Comment("# note: save it once, all_reduce")


def annotated(text: str) -> str:
    """Types on arguments, results and assignments; a comment above and behind every line."""

    class Types(cst.CSTTransformer):
        depth = 0

        def visit_FunctionDef(self, node):
            self.depth += 1

        def leave_FunctionDef(self, old, new):
            self.depth -= 1
            return new.with_changes(returns=cst.Annotation(cst.Name("object")))

        def leave_Assign(self, old, new):
            target = new.targets[0].target
            if len(new.targets) > 1 or not self.depth or isinstance(target, cst.Tuple):
                return new
            if isinstance(target, cst.Subscript):
                return new
            kind = cst.Annotation(cst.Name("object"))
            return cst.AnnAssign(target=target, annotation=kind, value=new.value)

        def leave_SimpleStatementLine(self, old, new):
            end = new.trailing_whitespace
            if end.comment is None:
                space = cst.SimpleWhitespace("  ")
                end = end.with_changes(whitespace=space, comment=NOTE)
            lead = [*new.leading_lines, cst.EmptyLine(comment=NOTE)]
            return new.with_changes(trailing_whitespace=end, leading_lines=lead)

    return cst.parse_module(text).visit(Types()).code


ALIASES = {"torch": "th", "threading": "thr", "time": "clock", "queue": "qs", "socket": "sk"}


def renamed_modules(text: str) -> str:
    """Modules under other names, blocks of one line on that line, tabs."""
    text = blocks_on_one_line(text)
    if "import torch.distributed as dist" in text:
        text = text.replace("import torch.distributed as dist", "import torch.distributed as td")
        text = re.sub(r"(?<![\w.])dist\.", "td.", text)
    for module, name in ALIASES.items():
        if re.search(rf"^import {module}$", text, re.M):
            text = re.sub(rf"^import {module}$", f"import {module} as {name}", text, flags=re.M)
            text = re.sub(rf"(?<![\w.])(?<!import )(?<!from ){module}\.", f"{name}.", text)
    return re.sub(r"^((?:    )+)", lambda m: "\t" * (len(m[1]) // 4), text, flags=re.M)


def plain_names(text: str) -> str:
    """``from torch.distributed import all_reduce`` and so on; conditions in parentheses."""
    for full, short in (
        ("torch.distributed", "dist"),
        ("threading", "threading"),
        ("time", "time"),
    ):
        line = f"import {full} as {short}" if full != short else f"import {full}"
        used = sorted(set(re.findall(rf"(?<![\w.]){short}\.(\w+)", text)))
        if used and re.search(rf"^{re.escape(line)}$", text, re.M):
            new = f"from {full} import {', '.join(used)}"
            text = re.sub(rf"^{re.escape(line)}$", new, text, flags=re.M)
            text = re.sub(rf"(?<![\w.]){short}\.(\w+)", r"\1", text)
    return re.sub(r"^(\s+(?:if|while)) ([^(\n].*):", r"\1 (\2):", text, flags=re.M)


def blocks_on_one_line(text: str) -> str:
    """``if x: continue`` on one line."""
    mark = re.escape(MARK)
    rule = rf"^(\s+if .*:)({mark})?\n\s+(\w[^\n]*?)({mark})?\n(?!\1)"

    def joined(match: re.Match[str]) -> str:
        return f"{match[1]} {match[3]}{match[2] or match[4] or ''}\n"

    lines = text.split("\n")
    made, at = [], 0
    while at < len(lines):
        two = "\n".join(lines[at : at + 2]) + "\n"
        match = re.fullmatch(rule, two)
        deeper = at + 2 < len(lines) and _indent(lines[at + 2]) >= _indent(lines[at + 1])
        if match and not deeper and not lines[at + 1].rstrip().endswith((":", "(", "[")):
            made += joined(match).splitlines()
            at += 2
        else:
            made.append(lines[at])
            at += 1
    return "\n".join(made)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else 0


VARIATIONS = {one.__name__: one for one in (annotated, renamed_modules, plain_names)}
