"""EXC003 Let a step that fails on one rank fail on all, where a handler skips it.

## What it does
Where a handler skips a failed call of a function that trains, the function first agrees with the
other ranks that its forward pass worked, and otherwise raises on all of them: the handler then
skips the step everywhere.

## Why it hurts
The rank that skipped goes on to its next step alone, and the others wait for its gradients.

## When it is wrong
The error leaves the rank unusable (a CUDA error): then the job must end.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.decisions import device_of, free
from eroica.fix.edits import Edits
from eroica.fix.facts import backward_call, calls_here, collectives, definitions
from eroica.fix.tree import Function, Source, code, dotted, find, main_block

CODE = "EXC003"
ANSWERS = frozenset(
    {
        "exception_swallowed",
        "divergent_control_flow",
        "collective_count_mismatch",
        "rank_exited",
        "rank_conditional_collective",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="exception_swallowed",
        symptom="stuck",
        before="""\
import torch
import torch.distributed as dist

class Trainer:
    def run(self, data):
        for batch in data:
            try:
                self.train_step(batch)
            except RuntimeError:  # <-- here
                self.skipped += 1

    def train_step(self, batch):
        loss = self.model(batch).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
""",
        after="""\
import torch
import torch.distributed as dist

class Trainer:
    def run(self, data):
        for batch in data:
            try:
                self.train_step(batch)
            except RuntimeError:
                self.skipped += 1

    def train_step(self, batch):
        worked = torch.ones(1)
        try:
            loss = self.model(batch).mean()
            self.opt.zero_grad()
        except RuntimeError:
            worked.zero_()
        dist.all_reduce(worked, op=dist.ReduceOp.MIN)
        if not worked.item():
            raise RuntimeError("the step failed on a rank, and all skip it")
        loss.backward()
        self.opt.step()
""",
    ),
)
KEEPS = (
    Example(
        category="exception_swallowed",
        symptom="stuck",
        before="""\
def step(model, x):
    model(x).backward()

def run(model, data):
    for x in data:
        try:
            step(model, x)
        except RuntimeError:  # <-- here
            raise
""",
    ),
    Example(
        category="exception_swallowed",
        symptom="stuck",
        before="""\
def read(path):
    return open(path).read()

def run(paths):
    for path in paths:
        try:
            read(path)
        except OSError:  # <-- here
            continue
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Agree in the function; None where no handler skips a call that trains."""
    for source, node in context.every(cst.Try, 0.5):
        kinds = [_kind(h) for h in node.handlers if _skips(h)]
        if not kinds or not source.loops(node) or backward_call(node.body) is not None:
            continue
        for call in calls_here(node.body):
            for home, function in definitions(source, call, context.files):
                result = _agree(context, home, function, kinds[0], source, node)
                if result is not None:
                    return result
    return None


def _skips(handler: cst.ExceptHandler) -> bool:
    return not any(True for _ in find(handler.body, cst.Raise)) and "exit" not in code(handler.body)


def _kind(handler: cst.ExceptHandler) -> str:
    """An exception that the handler takes, by name."""
    kind = handler.type
    if isinstance(kind, cst.Tuple):
        kind = kind.elements[0].value
    name = dotted(kind)
    return name if name and "." not in name and name not in ("Exception", "BaseException") else ""


def _agree(
    context: Context, source: Source, function: Function, kind: str, home: Source, node: cst.Try
) -> FixerResult | None:
    body = list(main_block(function))
    at = next((i for i, s in enumerate(body) if _moves_weights(s)), 0)
    if at == 0 or backward_call(function.body) is None:
        return None
    if any(collectives(source, s) or any(True for _ in find(s, cst.Try)) for s in body[:at]):
        return None
    edits = Edits(source)
    dist, torch = edits.module("torch.distributed", body[0]), edits.module("torch", body[0])
    flag = free("worked", function, source)
    device = device_of(context, source, cst.Name(flag))
    new = edits.statements(
        f"{flag} = {torch}.ones(1{device})\n"
        f"try:\n    __WORK__\nexcept {kind or 'Exception'}:\n    {flag}.zero_()\n"
        f"{dist}.all_reduce({flag}, op={dist}.ReduceOp.MIN)\nif not {flag}.item():\n"
        f'    raise {kind or "RuntimeError"}("the step failed on a rank, and all skip it")\n',
        WORK=[body[0].with_changes(leading_lines=()), *body[1:at]],
    )
    edits.replace(body[0], new)
    for statement in body[1:at]:
        edits.remove(statement)
    return context.result(
        edits,
        why=f"{home.path}:{home.line(node)} skips a step that failed on this rank alone, and "
        f"{source.path}:{source.line(function)} leaves the others waiting for its gradients.",
        behaviour="A step that fails on one rank is skipped on all; one small all-reduce more "
        "per step.",
        score=0.85 * context.closeness(home, node),
    )


def _moves_weights(statement: cst.CSTNode) -> bool:
    return any(
        isinstance(c.func, cst.Attribute) and c.func.attr.value in ("backward", "step")
        for c in find(statement, cst.Call)
    )
