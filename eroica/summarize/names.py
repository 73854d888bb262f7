"""Event names to identities that are equal on every rank and host.

Kineto names a Python call ``path(line): function``, with the def line for a call that began in
the window and the current line for a frame that was already open, and it writes object
addresses into the names of builtins. Neither may be part of an identity, or the same function
has another name on each rank (measured: 431 of 521 names shared by four ranks raw, 515 of 515
normalized).
"""

import os
import re
import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

_CALL = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<name>.*)$", re.DOTALL)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_FX_COUNTER = re.compile(r"<eval_with_key>\.\d+")
_INDUCTOR = re.compile(r"^.*/torchinductor_[^/]*/")
_BUILTIN = re.compile(
    r"^<built-in (?:function|method) |^<(?:method|slot wrapper|class|method-wrapper) '"
)

GC_NAME = "Python GC"
MODULE_PREFIX = "nn.Module: "

# Code that calls the user's functions or is called by them, but is never what a person wrote for
# the job. Only used to choose where an operator was called from; the project's root, where it is
# known, decides later and better.
_MACHINERY = frozenset({"torch", "torch_npu", "torchvision", "numpy", "numba"})


class PythonName(NamedTuple):
    """One Python event name, taken apart."""

    name: str
    """The function, addresses stripped."""
    file: str | None
    line: int | None

    @property
    def identity(self) -> str:
        """Equal for the same function on every rank: no line, no address."""
        return f"{self.file or ''}|{self.name}"

    @property
    def is_builtin(self) -> bool:
        return self.file is None and bool(_BUILTIN.match(self.name))

    @property
    def is_machinery(self) -> bool:
        """Whether the frame belongs to torch, the standard library or the interpreter."""
        if self.file is None or self.file.startswith("<"):
            return True
        path = self.file.replace("\\", "/")
        if "/site-packages/" in path or "/dist-packages/" in path:
            path = re.split(r"/(?:site|dist)-packages/", path)[-1]
        elif re.search(r"/lib/python3\.\d+/", path):
            return True
        path = path.lstrip("/")
        return path.split("/", 1)[0].removesuffix(".py") in _MACHINERY or is_stdlib(path)


def is_stdlib(path: str) -> bool:
    """Whether a path that was cut at ``sys.path`` is the standard library's, by its name alone.

    ``queue.py`` and ``asyncio/tasks.py`` are; a user's folder ``code/`` is not the module ``code``.
    """
    head, _, rest = path.partition("/")
    return head in _stdlib_packages() if rest else head.removesuffix(".py") in _STDLIB


_STDLIB = frozenset(sys.stdlib_module_names) - {"test"}  # a folder of the user's more likely


@cache
def _stdlib_packages() -> frozenset[str]:
    folder = Path(os.__file__).parent
    return frozenset(name for name in _STDLIB if (folder / name).is_dir())


def strip_addresses(name: str) -> str:
    """Remove object addresses and per-process counters from a name."""
    if "0x" in name:
        name = _ADDRESS.sub("", name)
    if "<eval_with_key>" in name:
        name = _FX_COUNTER.sub("<eval_with_key>", name)
    return name


def parse_python_name(name: str) -> PythonName:
    """Take ``path(line): function`` apart; builtins and marks have no file and no line."""
    match = _CALL.match(name)
    if match is None:
        return PythonName(strip_addresses(name), None, None)
    file = _INDUCTOR.sub("torchinductor/", strip_addresses(match["file"]))
    return PythonName(strip_addresses(match["name"]), file, int(match["line"]))


def function_id(*parts: str) -> str:
    """Return the 16 hex digits that name a function on every rank."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()
