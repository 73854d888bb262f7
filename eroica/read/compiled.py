"""Decorators for functions that are compiled to machine code, kept on disk between commands.

numba compiles a kernel when it is first called with arguments of new types: seconds, once. What
comes out is kept as an object file that later processes load with llvmlite alone, in
milliseconds; importing numba and waking its type system would take 0.4 s of every command.

A kernel takes whole numbers, floats, arrays and tuples of these, and returns a number, a tuple of
numbers or nothing. It is compiled without numba's memory runtime: no array is counted
in and out of a function then (two atomic operations each, half the time of the scanner), nor can
one be made inside, so callers bring the arrays to write into. It runs without the GIL.

What is kept is named by a hash of all that goes into it: the bytecode of the kernel and of every
kernel it calls, their constants, the types, the processor, the compiler. So a change anywhere
gives another file, and processes with different sources never meet in one.
"""

import functools
import hashlib
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from eroica.read import kernel_files
from eroica.read.machine_code import MachineCode, compiler_and_processor, load

Function = TypeVar("Function", bound=Callable[..., Any])

_FORMAT = 1
_lock = threading.RLock()


def compiled(function: Function) -> Function:
    """Compile ``function`` on its first call; later load it from disk."""
    return cast(Function, Kernel(function, {}))


def inlined(function: Function) -> Function:
    """Likewise, copied into its caller: saves passing arrays, seven words each, on the stack."""
    return cast(Function, Kernel(function, {"inline": "always"}))


class Kernel:
    """A function that runs as machine code, one piece for each combination of argument types."""

    def __init__(self, function: Callable[..., Any], options: dict[str, str]) -> None:
        self.function = function
        self.options = options
        self._code: dict[str, MachineCode] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: object) -> Any:  # noqa: ANN401 - what the kernel returns
        words: list[int] = []
        kinds: list[str] = []
        copies: list[tuple[NDArray[Any], NDArray[Any]]] = []
        for argument in arguments:
            flatten(argument, words, kinds, copies)
        key = " ".join(kinds)
        code = self._code.get(key) or self._prepare(key, arguments)
        result = code.run(words)
        for original, copy in copies:
            if original.flags.writeable:
                original[...] = copy
        return result

    def _prepare(self, key: str, arguments: tuple[object, ...]) -> MachineCode:
        with _lock:
            if key not in self._code:
                name = f"{self.function.__module__}.{self.function.__name__}-{self._hash(key)}"
                data = kernel_files.read(name)
                if data is None:
                    from eroica.read.compiling import compile_kernel

                    data = compile_kernel(self, arguments, name)
                    kernel_files.write(name, data)
                self._code[key] = load(data)
            return self._code[key]

    def _hash(self, key: str) -> str:
        parts = [_FORMAT, key, compiler_and_processor(), np.__version__, sys.version_info[:2]]
        for kernel in dict.fromkeys(self.reached()):
            parts += [kernel.options, *_ingredients(kernel.function)]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]

    def reached(self) -> Iterator["Kernel"]:
        """Yield this kernel and all it calls, directly or not; some more than once."""
        yield self
        for name in self.function.__code__.co_names:
            value = self.function.__globals__.get(name)
            if isinstance(value, Kernel) and value is not self:
                yield from value.reached()


def _ingredients(function: Callable[..., Any]) -> list[object]:
    """Return all of a function that decides what it compiles to."""
    code = function.__code__
    found: list[object] = [code.co_code, code.co_consts, code.co_names, code.co_varnames]
    found.append(sorted(map(str, function.__annotations__.items())))
    for name in code.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, np.ndarray):
            found.append((name, value.dtype.str, value.shape, value.tobytes()))
        elif isinstance(value, type) and issubclass(value, tuple):
            found.append((name, getattr(value, "_fields", ())))
        elif not isinstance(value, Kernel | ModuleType | type) and not callable(value):
            found.append((name, value))
    return found


def flatten(
    value: object,
    words: list[int],
    kinds: list[str],
    copies: list[tuple[NDArray[Any], NDArray[Any]]],
) -> None:
    """Append an argument as 64-bit words and the names of its types.

    An array with gaps goes in as a copy without; both are appended to ``copies``.
    """
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            copies.append((value, np.ascontiguousarray(value)))
            value = copies[-1][1]
        kinds.append(f"{value.dtype.str}:{value.ndim}")
        words.append(value.ctypes.data)
        words.extend(value.shape)
    elif isinstance(value, tuple):
        kinds.append(f"{type(value).__name__}{len(value)}")
        for item in value:
            flatten(item, words, kinds, copies)
    elif isinstance(value, float | np.floating):
        kinds.append("float")
        words.append(struct.unpack("q", struct.pack("d", value))[0])
    elif isinstance(value, int | np.integer | np.bool_):
        kinds.append("int")
        words.append(int(value))
    else:
        raise TypeError(f"a kernel takes numbers, arrays and tuples of them, not {type(value)}")
