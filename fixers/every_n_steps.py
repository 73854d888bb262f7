"""LOG001 Do what is only reported every N steps every N steps.

## What it does
Puts a call of the training loop under the interval the loop already reports by, where its result
is used only there, or where the cause names it as the work to save.

## Why it hurts
Statistics, dumps and gathers of every step cost every step, and what one rank does alone holds
the others in the next collective.

## When it is wrong
The call also accumulates something of every step, such as a running mean.
"""

# More than 300 lines: the examples are half of it.

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import calls_here, conjuncts, definitions, joined
from eroica.fix.loops import counter_of, is_interval, step_loops
from eroica.fix.nodes import find_each
from eroica.fix.ranks import ranked
from eroica.fix.steps import is_training
from eroica.fix.tree import Loop, Source, assigned, called, code, dotted, find, names

CODE = "LOG001"
ANSWERS = frozenset(
    {
        "logging_overhead",
        "straggler_rank_logging",
        "straggler_compute",
        "host_sync",
        "python_overhead",
        "excessive_object_collectives",
        "excessive_small_collectives",
        "growing_state",
        "debug_setting_left_on",
        "excessive_barriers",
        "serialized_on_rank0",
        "checkpoint_overhead",
    }
)
LABEL = "review"
EVERY = 50  # steps, for a loop that says no interval of its own
FIXES = (
    Example(
        category="logging_overhead",
        before="""\
def record(model):
    return {name: p.norm().item() for name, p in model.named_parameters()}

def train(model, opt, rank, data):
    for step, x in enumerate(data):
        loss = model(x)
        loss.backward()
        opt.step()
        stats = record(model)  # <-- here
        if rank == 0 and step % 20 == 0:
            print(stats)
""",
        after="""\
def record(model):
    return {name: p.norm().item() for name, p in model.named_parameters()}

def train(model, opt, rank, data):
    for step, x in enumerate(data):
        loss = model(x)
        loss.backward()
        opt.step()
        if step % 20 == 0:
            stats = record(model)
        if rank == 0 and step % 20 == 0:
            print(stats)
""",
    ),
    Example(
        category="straggler_rank_logging",
        before="""\
def dump(path, step, tensors):
    open(path, "w").write(str(tensors))

def train(model, rank, data):
    for step, x in enumerate(data):
        loss = model(x)
        loss.backward()
        if rank == 0:
            dump("debug.txt", step, x)  # <-- here
        if rank == 0 and step % 15 == 0:
            print(step, loss)
""",
        after="""\
def dump(path, step, tensors):
    open(path, "w").write(str(tensors))

def train(model, rank, data):
    for step, x in enumerate(data):
        loss = model(x)
        loss.backward()
        if rank == 0 and step % 15 == 0:
            dump("debug.txt", step, x)
        if rank == 0 and step % 15 == 0:
            print(step, loss)
""",
    ),
    Example(
        category="logging_overhead",
        before="""\
def trace(step, model):
    for name, p in model.named_parameters():
        log.info("%s %s %s", step, name, p.norm().item())  # <-- here

def train(model, data):
    for step, x in enumerate(data):
        model(x).mean().backward()
        trace(step, model)
""",
        after="""\
def trace(step, model):
    for name, p in model.named_parameters():
        log.info("%s %s %s", step, name, p.norm().item())

def train(model, data):
    for step, x in enumerate(data):
        model(x).mean().backward()
        if step % 50 == 0:
            trace(step, model)
""",
    ),
)
KEEPS = (
    Example(
        category="logging_overhead",
        before="""\
def train(model, rank, data):
    total = 0.0
    for step, x in enumerate(data):
        loss = model(x)  # <-- here
        loss.backward()
        total += loss.item()
        if rank == 0 and step % 15 == 0:
            print(step, total)
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Put the work under the interval; None where the loop has none or needs it each step."""
    best: tuple[float, Source, Loop, list[cst.BaseStatement], str] | None = None
    for source in context.files:
        for loop in step_loops(source, context.files):
            found = _interval(source, loop, context)
            if found is None:
                continue
            for statement in _top_level(loop):
                feeding = _feeding(source, loop, statement, found)
                score = max(_named(context, source, s) for s in (*feeding, statement))
                if score and _may_wait(source, loop, statement, found, context):
                    if best is None or score > best[0]:
                        best = (score, source, loop, [*feeding, statement], found)
    if best is None:
        return None
    score, source, loop, statements, interval = best
    edits = Edits(source)
    last = statements[-1]
    if isinstance(last, cst.If) and len(statements) == 1:
        edits.replace(
            last.test,
            cst.parse_expression(joined([*conjuncts(last.test), cst.parse_expression(interval)])),
        )
    else:
        block = [statements[0].with_changes(leading_lines=()), *statements[1:]]
        edits.replace(statements[0], edits.statements(f"if {interval}:\n    __BODY__", BODY=block))
        for statement in statements[1:]:
            edits.remove(statement)
    return context.result(
        edits,
        why=f"{source.path}:{source.line(last)} works in every step for what is used only when "
        f"`{interval}`.",
        behaviour=f"It runs only when `{interval}`; in the other steps its result is the last one.",
        score=0.85 * score,
    )


def _top_level(loop: Loop) -> list[cst.BaseStatement]:
    return list(loop.body.body)  # type: ignore[arg-type]


def _interval(source: Source, loop: Loop, context: Context) -> str | None:
    """The interval of the loop's report: of a block that prints, else any, else one of our own."""
    found: list[tuple[bool, str]] = []
    for node in find(loop.body, cst.If):
        for part in conjuncts(node.test):
            if is_interval(part):
                prints = any(
                    code(c.func).rpartition(".")[2]
                    in ("print", "info", "log", "set_postfix", "write")
                    for c in find(node.body, cst.Call)
                )
                found.append((not prints, code(part)))
    if found:
        return min(found, key=lambda item: item[0])[1]
    counter = counter_of(loop)
    return f"{counter} % {EVERY} == 0" if counter and context.cause.category in _REPORTS else None


_REPORTS = ("logging_overhead", "straggler_rank_logging", "growing_state")


def _named(context: Context, source: Source, statement: cst.BaseStatement) -> float:
    """How the cause points at a statement of the loop: by line, or by the function it calls."""
    if any(
        s.source is source
        and s.line is not None
        and source.line(statement) <= s.line <= source.last_line(statement)
        for s in context.spots
    ):
        return 1.0
    named = {id(s.function) for s in context.spots if s.function is not None}
    for call in calls_here(statement):
        for other, function in definitions(source, call, context.files):
            if id(function) in named:
                return 0.95
            for inner in calls_here(function.body):
                if any(id(f) in named for _, f in definitions(other, inner, context.files)):
                    return 0.85
    return 0.0


def _may_wait(
    source: Source, loop: Loop, statement: cst.BaseStatement, interval: str, context: Context
) -> bool:
    """Nothing of the step itself depends on the statement outside the interval."""
    if is_training(context, source, statement) or interval in code(statement):
        return False
    if isinstance(statement, cst.If):
        is_plain = statement.orelse is None and ranked(source, statement.test)
        return is_plain and not _assigned(statement) - _used_late(loop, statement, interval)
    if called(statement) is not None:
        return True
    given = assigned(statement)
    if given is None or not any(True for _ in find(given[1], cst.Call)):
        return False
    made = _assigned(statement)
    return bool(made) and made <= _used_late(loop, statement, interval)


def _assigned(statement: cst.CSTNode) -> set[str]:
    found: set[str] = set()
    for node in find_each(statement, cst.AssignTarget, cst.AnnAssign):
        assert isinstance(node, cst.AssignTarget | cst.AnnAssign)
        found |= {dotted(node.target)} if dotted(node.target) else names(node.target)
    for aug in find(statement, cst.AugAssign):
        found.add(dotted(aug.target) + "+=")
    return found


def _used_late(loop: Loop, statement: cst.BaseStatement, interval: str) -> set[str]:
    """The names a statement makes that later statements read only under the interval."""
    made = _assigned(statement)
    for other in _top_level(loop):
        if other is statement:
            continue
        under = isinstance(other, cst.If) and any(
            code(p) == interval for p in conjuncts(other.test)
        )
        if not under:
            used = names(other)
            made = {name for name in made if name.partition(".")[0] not in used}
    return made


def _feeding(
    source: Source, loop: Loop, statement: cst.BaseStatement, interval: str
) -> list[cst.BaseStatement]:
    """The assignments right before that only feed the statement."""
    feeding: list[cst.BaseStatement] = []
    block = _top_level(loop)
    at = block.index(statement)
    for other in reversed(block[:at]):
        if assigned(other) is None:
            break
        made = _assigned(other)
        elsewhere = [s for s in block if s is not other and s is not statement and s not in feeding]
        if made & names(statement) and not any(made & names(s) for s in elsewhere):
            feeding.insert(0, other)
        else:
            break
    return feeding
