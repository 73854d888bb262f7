"""DAT006 Parse a file once, not for each sample.

## What it does
Where a function that is called for each sample opens and parses a whole file whose path does not
depend on the sample, puts the parsing into a cached function.

## Why it hurts
An index, a vocabulary or a table of labels is read and parsed again for each sample, all of it for
one entry.

## When it is wrong
The file changes during the run, or the caller changes what was parsed.
"""

# More than 300 lines: the examples are half of it.

import re
from collections.abc import Sequence

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Function, Source, body_of, code, dotted, find, names

CODE = "DAT006"
ANSWERS = frozenset(
    {
        "dataloader_bottleneck",
        "straggler_data_loading",
        "python_overhead",
        "straggler_compute",
        "growing_state",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="dataloader_bottleneck",
        before="""\
import json
import os

class Corpus:
    def entry(self, i):
        with open(os.path.join(self.root, "index.json")) as f:
            return json.load(f)[i]  # <-- here

    def __getitem__(self, i):
        return self.entry(i)["label"]
""",
        after="""\
import functools
import json
import os


@functools.lru_cache(maxsize=8)
def parsed_once(path):
    \"\"\"Return what json.load makes of a file; callers must not change it.\"\"\"
    with open(path) as f:
        return json.load(f)


class Corpus:
    def entry(self, i):
        return parsed_once(os.path.join(self.root, "index.json"))[i]

    def __getitem__(self, i):
        return self.entry(i)["label"]
""",
    ),
    Example(
        category="python_overhead",
        before="""\
import numpy as np

class Rows:
    def __getitem__(self, i):
        table = np.load(self.path)  # <-- here
        return table[i]
""",
        after="""\
import functools
import numpy as np


@functools.lru_cache(maxsize=8)
def parsed_once(path):
    \"\"\"Return what np.load makes of a file; callers must not change it.\"\"\"
    return np.load(path)


class Rows:
    def __getitem__(self, i):
        table = parsed_once(self.path)
        return table[i]
""",
    ),
    Example(
        category="dataloader_bottleneck",
        before="""\
class Words:
    def __getitem__(self, i):
        vocabulary = open(self.words).read().split()  # <-- here
        return [vocabulary.index(w) for w in self.texts[i]]
""",
        after="""\
import functools


@functools.lru_cache(maxsize=8)
def parsed_once(path):
    \"\"\"Return what read makes of a file; callers must not change it.\"\"\"
    return open(path).read().split()


class Words:
    def __getitem__(self, i):
        vocabulary = parsed_once(self.words)
        return [vocabulary.index(w) for w in self.texts[i]]
""",
    ),
    Example(
        category="dataloader_bottleneck",
        before="""\
import zipfile

class Rows:
    def __getitem__(self, i):
        with zipfile.ZipFile(self.path) as archive:  # <-- here
            return archive.read(self.names[i])
""",
        after="""\
import functools
import os
import zipfile


@functools.lru_cache(maxsize=8)
def opened_once(path, process):
    \"\"\"Return an open zipfile.ZipFile, one a process: workers must not share a place in it.\"\"\"
    return zipfile.ZipFile(path)


class Rows:
    def __getitem__(self, i):
        archive = opened_once(self.path, os.getpid())
        return archive.read(self.names[i])
""",
    ),
)
KEEPS = (
    Example(
        category="dataloader_bottleneck",
        before="""\
import json

class Corpus:
    def __getitem__(self, i):
        with open(f"{self.root}/{i}.json") as f:
            return json.load(f)  # <-- here
""",
    ),
    Example(
        category="dataloader_bottleneck",
        before="""\
import json

class Corpus:
    def __init__(self, path):
        with open(path) as f:
            self.index = json.load(f)  # <-- here

    def __getitem__(self, i):
        return self.index[i]
""",
    ),
)
_FROM_FILE = re.compile(
    r"(?:json|yaml|pickle|tomllib|toml|msgpack|ujson|orjson)\.(?:load|safe_load|unpack)"
    r"|csv\.(?:reader|DictReader)"
)
_FROM_PATH = re.compile(
    r"(?:numpy|torch)\.(?:load|loadtxt|genfromtxt)|pandas\.read_\w+|safetensors\.torch\.load_file"
)
_TEXT = re.compile(r"\.read(?:lines|_text)?\([^()]*\)(?:\.split(?:lines)?\(.*?\))?", re.S)
_HANDLES = re.compile(r"zipfile\.ZipFile|h5py\.File|tarfile\.open|lmdb\.open|numpy\.memmap")
_HELPER = '''
@{functools}.lru_cache(maxsize=8)
def parsed_once(path):
    """Return what {name} makes of a file; callers must not change it."""
'''


def fix(context: Context) -> FixerResult | None:
    """Cache the parsing; None where no function near the cause parses one file again and again."""
    for source, call in context.every(cst.Call, 0.6):
        function = source.function_of(call)
        if function is None or not _is_called_again(context, source, function):
            continue
        if source.functions_named("parsed_once") or source.functions_named("opened_once"):
            continue
        edits = Edits(source)
        if not (
            _in_with(source, call, function, edits)
            or _by_path(source, call, function, edits)
            or _as_text(source, call, function, edits)
            or _as_handle(source, call, function, edits)
        ):
            continue
        return context.result(
            edits,
            why=f"{source.path}:{source.line(call)} parses the whole file for each call of "
            f"{function.name.value}().",
            behaviour="The file is parsed once a process, and stays in memory.",
            score=0.95 * context.closeness(source, call),
        )
    return None


def _is_called_again(context: Context, source: Source, function: Function) -> bool:
    """Called for a sample: ``__getitem__`` and its like, or a function that is given something."""
    name = function.name.value
    if name in ("__init__", "main", "__enter__", "setup", "prepare_data", "load", "worker_init"):
        return False
    given = [p.name.value for p in function.params.params if p.name.value not in ("self", "cls")]
    return name in ("__getitem__", "__next__", "__call__", "collate_fn", "collate") or bool(given)


def _is_free(path: cst.CSTNode, function: Function) -> bool:
    """The path depends on nothing that is given or made in the call."""
    own = {p.name.value for p in function.params.params} - {"self", "cls"}
    own |= {n for target in find(function.body, cst.AssignTarget) for n in names(target.target)}
    own |= {n for loop in find(function.body, cst.For) for n in names(loop.target)}
    attributes = {n.attr.value for n in find(path, cst.Attribute)}
    return not (names(path) - attributes) & own


def _helper(edits: Edits, name: str, body: str) -> str:
    return _HELPER.format(functools=edits.module("functools"), name=name) + body


def _further(args: Sequence[cst.Arg]) -> str:
    """Arguments after the first, as text."""
    return "".join(f", {code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT))}" for arg in args)


def _in_with(source: Source, call: cst.Call, function: Function, edits: Edits) -> bool:
    """``with open(path) as f: ... json.load(f)``."""
    above = source.enclosing(call, cst.With)
    if not isinstance(above, cst.With) or len(above.items) != 1 or not call.args:
        return False
    item = above.items[0]
    opened, alias = item.item, code(item.asname.name) if item.asname else ""
    if not isinstance(opened, cst.Call) or dotted(opened.func) != "open" or not opened.args:
        return False
    if not _FROM_FILE.fullmatch(source.full_name(call.func)) or code(call.args[0].value) != alias:
        return False
    path = opened.args[0].value
    if not _is_free(path, function) or sum(n.value == alias for n in find(above, cst.Name)) != 2:
        return False
    made = code(call)
    if "csv" in made:
        made = f"list({made})"
    edits.also_at_top(call)
    body = f"    with open(path{_further(opened.args[1:])}) as {alias}:\n        return {made}\n"
    edits.add_helper(_helper(edits, code(call.func), body))
    edits.replace_text(call, f"parsed_once({code(path)})")
    inner = [edits.edited(s) for s in body_of(above)]
    edits.replace(above, inner)
    return True


def _by_path(source: Source, call: cst.Call, function: Function, edits: Edits) -> bool:
    """``np.load(path)``."""
    if not _FROM_PATH.fullmatch(source.full_name(call.func)) or not call.args:
        return False
    path = call.args[0].value
    if not _is_free(path, function) or dotted(getattr(path, "func", None)) == "open":
        return False
    edits.also_at_top(call)
    body = f"    return {code(call.func)}(path{_further(call.args[1:])})\n"
    edits.add_helper(_helper(edits, code(call.func), body))
    edits.replace_text(call, f"parsed_once({code(path)})")
    return True


def _as_text(source: Source, call: cst.Call, function: Function, edits: Edits) -> bool:
    """``open(path).read().split()``, with nothing around it that depends on the call."""
    opened = _opened(call)
    if opened is None or isinstance(source.parent(call), cst.Attribute):
        return False
    rest = code(call).removeprefix(code(opened))
    path = opened.args[0].value
    if not _TEXT.fullmatch(rest) or not _is_free(path, function):
        return False
    body = f"    return {code(opened.func)}(path{_further(opened.args[1:])}){rest}\n"
    edits.add_helper(_helper(edits, "read", body))
    edits.replace_text(call, f"parsed_once({code(path)})")
    return True


def _opened(call: cst.Call) -> cst.Call | None:
    """The ``open(path)`` that a chain of calls begins with."""
    node: cst.BaseExpression = call
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        node = node.func.value
    is_open = isinstance(node, cst.Call) and code(node.func) in ("open", "Path", "pathlib.Path")
    return node if isinstance(node, cst.Call) and is_open and node.args else None


_OPENED = '''
@{functools}.lru_cache(maxsize=8)
def opened_once(path, process):
    """Return an open {name}, one a process: workers must not share a place in it."""
    return {call}(path{rest})
'''


def _as_handle(source: Source, call: cst.Call, function: Function, edits: Edits) -> bool:
    """``with zipfile.ZipFile(path) as z:`` for each sample: stays open instead."""
    item = source.parent(call)
    above = source.parent(item) if isinstance(item, cst.WithItem) else None
    if not isinstance(above, cst.With) or len(above.items) != 1 or not call.args:
        return False
    if not isinstance(item, cst.WithItem) or item.asname is None:
        return False
    if not _HANDLES.fullmatch(source.full_name(call.func)) or not _is_free(
        call.args[0].value, function
    ):
        return False
    rest = _further(call.args[1:])
    if re.search(r"[\"'][wa]", rest):
        return False
    edits.also_at_top(call)
    name, functools = code(call.func), edits.module("functools")
    edits.add_helper(_OPENED.format(functools=functools, name=name, call=name, rest=rest))
    os = edits.module("os", above)
    opened = f"{code(item.asname.name)} = opened_once({code(call.args[0].value)}, {os}.getpid())"
    edits.replace(above, [*edits.statements(opened), *body_of(above)])
    return True
