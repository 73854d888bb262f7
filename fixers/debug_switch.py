"""DBG001 Take out a debug switch that was left on.

## What it does
Removes calls that turn on anomaly detection, allocation tracing, profiling or synchronous
launches, and their imports where nothing else needs them.

## Why it hurts
These switches record a stack for every operation or allocation, or wait for the device after
each one: steps take several times as long.

## When it is wrong
Somebody is looking for a fault right now.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.imports import is_used
from eroica.fix.tree import Source, argument, called, code, dotted, find, single, walk

CODE = "DBG001"
ANSWERS = frozenset({"debug_setting_left_on", "python_overhead", "host_sync", "straggler_compute"})
LABEL = "safe"
FIXES = (
    Example(
        category="debug_setting_left_on",
        before="""\
import torch

torch.autograd.set_detect_anomaly(True)  # <-- here
torch.manual_seed(0)

def train(model):
    model().backward()
""",
        after="""\
import torch

torch.manual_seed(0)

def train(model):
    model().backward()
""",
    ),
    Example(
        category="debug_setting_left_on",
        before="""\
import tracemalloc

def train(model):
    tracemalloc.start(25)  # <-- here
    model().backward()
""",
        after="""\

def train(model):
    model().backward()
""",
    ),
    Example(
        category="debug_setting_left_on",
        before="""\
import torch

def train(model):
    torch.manual_seed(0)
    with torch.autograd.detect_anomaly():  # <-- here
        model().backward()
""",
        after="""\
import torch

def train(model):
    torch.manual_seed(0)
    model().backward()
""",
    ),
    Example(
        category="debug_setting_left_on",
        before="""\
import torch

def train(model, data):
    torch.manual_seed(0)
    with torch.profiler.profile(with_stack=True) as prof:  # <-- here
        for x in data:
            model(x).backward()
            prof.step()
    print(prof.key_averages())
""",
        after="""\
import torch

def train(model, data):
    torch.manual_seed(0)
    for x in data:
        model(x).backward()
""",
    ),
)
KEEPS = (
    Example(
        category="debug_setting_left_on",
        before="""\
import torch

torch.autograd.set_detect_anomaly(False)  # <-- here
""",
    ),
)
_CALLS = re.compile(
    r"torch\.autograd\.set_detect_anomaly|torch\.autograd\.anomaly_mode\.set_detect_anomaly"
    r"|tracemalloc\.start|sys\.settrace|sys\.setprofile|threading\.settrace|threading\.setprofile"
    r"|torch\.cuda\.set_sync_debug_mode|torch\.cuda\.memory\._record_memory_history"
    r"|torch\.cuda\.memory\._record_memory_history|torch\._logging\.set_logs|gc\.set_debug"
    r"|torch\.set_warn_always|torch\.use_deterministic_algorithms"
    r"|warnings\.simplefilter_all|asyncio\.set_debug|faulthandler\.dump_traceback_later"
)
_CONTEXTS = re.compile(
    r"torch\.autograd\.(?:anomaly_mode\.)?(?:detect_anomaly|set_detect_anomaly)"
    r"|torch\.autograd\.profiler\.(?:profile|emit_nvtx|record_function)|torch\.autograd\.profiler_legacy\.profile"
)
_VARIABLES = re.compile(
    r"CUDA_LAUNCH_BLOCKING|TORCH_DISTRIBUTED_DEBUG|NCCL_DEBUG|TORCH_SHOW_CPP_STACKTRACES|PYTHONTRACEMALLOC"
    r"|PYTHONMALLOC|PYTHONDEVMODE|TORCH_LOGS|TORCH_CPP_LOG_LEVEL|AUTOGRAD_ANOMALY|GLOO_LOG_LEVEL|NCCL_BLOCKING_WAIT"
)
_OFF = re.compile(r"False|0|None|\"0\"|'0'|\"default\"|'default'")


def fix(context: Context) -> FixerResult | None:
    """Remove the switches; None where the project turns none on."""
    edits: dict[str, Edits] = {}
    places: list[str] = []
    score = 0.0
    for source in context.files:
        for node in _switches(source):
            if context.cause.category != "debug_setting_left_on" and not context.is_near(
                source, node
            ):
                continue
            edit = edits.setdefault(source.path, Edits(source))
            _take_out(edit, node)
            places.append(f"{source.path}:{source.line(node)} `{_head(node)}`")
            score = max(score, 0.6 + 0.35 * context.closeness(source, node))
    if not places:
        return None
    for path, edit in edits.items():
        _drop_unused_imports(context.sources[path], edit)
    return context.result(
        *edits.values(),
        why=f"{'; '.join(places)}: switched on for a search that is over.",
        behaviour="The program computes the same; errors come with less detail.",
        score=score,
    )


def _head(node: cst.CSTNode) -> str:
    return code(node).split("\n")[0].removesuffix(":")


_PROFILERS = re.compile(
    r"torch\.profiler\.profile|torch\.autograd\.profiler\.profile|cProfile\.Profile|pyinstrument\.Profiler"
)


def _profilers(source: Source) -> list[cst.CSTNode]:
    """Profilers around the training: the block or object, and the lines that serve it."""
    found: list[cst.CSTNode] = []
    kept: dict[str, cst.CSTNode] = {}
    for block in find(source.module, cst.With):
        item = block.items[0]
        if len(block.items) == 1 and isinstance(item.item, cst.Call):
            if _PROFILERS.fullmatch(source.full_name(item.item.func)):
                found.append(block)
                if item.asname is not None:
                    kept[code(item.asname.name)] = block
    for target, value, node in source.assignments():
        if isinstance(value, cst.Call) and _PROFILERS.fullmatch(source.full_name(value.func)):
            statement = source.statement_of(node)
            if statement is not None and single(statement) is node:
                found.append(statement)
                kept[target] = statement
    for name, home in kept.items():
        for line in find(source.module, cst.SimpleStatementLine):
            call = called(line)
            if line is home or not any(dotted(n) == name for n in walk(line)):
                continue
            serves = call is not None and (
                code(call.func).startswith(f"{name}.") or code(call.func) == "print"
            )
            if not serves:
                return []  # something else needs it
            found.append(line)
        tests = [node.test for node in find(source.module, cst.If)]
        tests += [node.test for node in find(source.module, cst.While)]
        if any(dotted(n) == name for test in tests for n in walk(test)):
            return []
    return found


def _switches(source: Source) -> list[cst.CSTNode]:
    found: list[cst.CSTNode] = _profilers(source)
    for line in find(source.module, cst.SimpleStatementLine):
        call = called(line)
        if call is not None and _CALLS.fullmatch(source.full_name(call.func)) and not _is_off(call):
            found.append(line)
        small = single(line)
        if isinstance(small, cst.Assign) and isinstance(small.targets[0].target, cst.Subscript):
            target = small.targets[0].target
            key = code(target.slice[0]).strip("\"'")
            if (
                dotted(target.value).endswith("environ")
                and _VARIABLES.fullmatch(key)
                and not _OFF.fullmatch(code(small.value))
            ):
                found.append(line)
        if call is not None and dotted(call.func).endswith("environ.setdefault") and call.args:
            key = code(call.args[0].value).strip("\"'")
            if _VARIABLES.fullmatch(key):
                found.append(line)
    found += [
        block
        for block in find(source.module, cst.With)
        if any(_turns_on(source, item) for item in block.items)
    ]
    return found


def _turns_on(source: Source, item: cst.WithItem) -> bool:
    call = item.item
    if not isinstance(call, cst.Call) or _is_off(call):
        return False
    return _CONTEXTS.fullmatch(source.full_name(call.func)) is not None


def _is_off(call: cst.Call) -> bool:
    first = argument(call, "mode", 0) or argument(call, "enabled", 0)
    return first is not None and bool(_OFF.fullmatch(code(first.value)))


def _take_out(edit: Edits, node: cst.CSTNode) -> None:
    if isinstance(node, cst.With):
        kept = [item for item in node.items if not _turns_on(edit.source, item)]
        if kept and len(node.items) > 1:  # others stay: with detect_anomaly(), autocast():
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            edit.replace(node, lambda block: block.with_changes(items=kept))
        else:
            edit.unwrap(node)
    else:
        edit.remove(node)


def _drop_unused_imports(source: Source, edit: Edits) -> None:
    """Drop plain imports that only the removed lines needed."""
    after = cst.parse_module(edit.text())
    for line in find(source.module, cst.SimpleStatementLine):
        small = single(line)
        if (
            isinstance(small, cst.Import)
            and len(small.names) == 1
            and small.names[0].asname is None
        ):
            name = dotted(small.names[0].name)
            if "." not in name and is_used(source.module, name) and not is_used(after, name):
                edit.remove(line)
