"""DET001 Name what ranks share by a hash that is the same in every process.

## What it does
Replaces `hash(...)` by a checksum of the value's text.

## Why it hurts
Python salts the hash of strings anew in each process. Files, keys and parts that ranks find by it
have another name on each: one rank writes what the others never look for.

## When it is wrong
The text of the value holds an address, as that of an object without `__repr__` does, or the
hash only serves a table within one process.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, code

CODE = "DET001"
ANSWERS = frozenset(
    {
        "polling_wait",
        "blocked_io",
        "divergent_control_flow",
        "collective_count_mismatch",
        "collective_order_mismatch",
        "collective_shape_mismatch",
        "rank_conditional_collective",
        "uneven_inputs",
        "sampler_misconfiguration",
        "load_imbalance",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="polling_wait",
        before="""\
import os
import time

def shared_path(config):
    return f"cache/{hash(str(config)) & 0xffff:x}.pt"

def wait(config):
    path = shared_path(config)
    while not os.path.exists(path):  # <-- here
        time.sleep(0.1)
    return path
""",
        after="""\
import os
import time
import zlib

def shared_path(config):
    return f"cache/{zlib.crc32(repr(str(config)).encode()) & 0xffff:x}.pt"

def wait(config):
    path = shared_path(config)
    while not os.path.exists(path):
        time.sleep(0.1)
    return path
""",
    ),
    Example(
        category="uneven_inputs",
        before="""\
import zlib

class Shards:
    def mine(self, names):
        return [n for n in names if hash(n) % self.world == self.rank]  # <-- here
""",
        after="""\
import zlib

class Shards:
    def mine(self, names):
        return [n for n in names if zlib.crc32(repr(n).encode()) % self.world == self.rank]
""",
    ),
)
KEEPS = (
    Example(
        category="polling_wait",
        before="""\
class Key:
    def __hash__(self):
        return hash((self.a, self.b))  # <-- here
""",
    ),
    Example(
        category="polling_wait",
        before="""\
from blake import hash

def path(config):
    return hash(config)  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Use a checksum; None where no file near the cause takes a salted hash."""
    edits: dict[str, Edits] = {}
    places: list[str] = []
    score = 0.0
    for source, call in context.every(cst.Call, 0.4):
        if not _is_salted(source, call):
            continue
        edit = edits.setdefault(source.path, Edits(source))
        zlib = edit.module("zlib", call)
        edit.replace_text(call, f"{zlib}.crc32(repr({_text(call)}).encode())")
        places.append(f"{source.path}:{source.line(call)}")
        score = max(score, context.closeness(source, call))
    if not places:
        return None
    return context.result(
        *edits.values(),
        why=f"{', '.join(places)} hashes with a salt of this process, so that ranks do not mean "
        "the same by it.",
        behaviour="Names and parts made from it are others than before; old files are made anew.",
        score=0.9 * max(score, 0.7),
    )


def _is_salted(source: Source, call: cst.Call) -> bool:
    if not isinstance(call.func, cst.Name) or call.func.value != "hash" or len(call.args) != 1:
        return False
    if "hash" in source.imports or source.functions_named("hash"):
        return False
    function = source.function_of(call)
    return function is None or not function.name.value.startswith("__")


def _text(call: cst.Call) -> str:
    """The value; sets in an order, since theirs is salted as well."""
    value = call.args[0].value
    is_set = isinstance(value, cst.Call) and code(value.func) in ("set", "frozenset")
    return f"sorted({code(value)})" if is_set else code(value)
