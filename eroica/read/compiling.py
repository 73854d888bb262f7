# ruff: noqa: ANN401 - numba has no types
"""numba's part: a kernel and arguments -> an object file that needs nothing of numba to run.

Around the kernel goes an entry that takes the address of 64-bit words, puts arrays and tuples
together from them, calls the kernel and writes the result back: a plain C signature whatever the
kernel takes. Its machine code, with all kernels it calls, is one object file.
"""

import logging
import re
from types import FunctionType
from typing import Any, get_args, get_origin, get_type_hints

import llvmlite.binding as llvm
import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import np_cfarray

from eroica.read.compiled import Kernel
from eroica.read.machine_code import target_machine

logger = logging.getLogger(__name__)

# _nrt: no memory runtime, see compiled. error_model: a division by zero gives 0, as in C arrays;
# the check would be the only thing in a kernel that can raise.
_OPTIONS = {"nogil": True, "_nrt": False, "error_model": "numpy"}
_HELPER = re.compile(
    r"^declare (?P<head>[^@\n]*@(?:numba|NRT)_\w+\([^)\n]*\))[^\n]*$", re.MULTILINE
)


def compile_kernel(kernel: Kernel, arguments: tuple[object, ...], name: str) -> bytes:
    """Return the object file of a kernel for arguments of these types, its line in front.

    ``name`` tells its entry from those of all others: they are linked into one process.
    """
    logger.info("compiling %s", kernel.function.__qualname__)
    results = _results(kernel)
    signature = types.void(types.CPointer(types.int64), types.CPointer(types.float64))
    entry = numba.cfunc(signature, **_OPTIONS)(_entry(kernel, arguments, results, name))
    module = llvm.parse_assembly(_self_contained(entry.inspect_llvm()))
    symbol = str(entry.native_name).removeprefix("cfunc.")
    return f"{symbol} {results}\n".encode() + bytes(target_machine().emit_object(module))


def _self_contained(assembly: str) -> str:
    """Leave the entry alone visible, and give numba's helpers empty bodies.

    The helpers are for errors in a wrapper that nobody calls.
    """
    assembly = assembly.replace("define linkonce_odr ", "define internal ")
    assembly = assembly.replace(" = common ", " = internal ")
    return _HELPER.sub(r"define internal \g<head> { unreachable }", assembly)


def _results(kernel: Kernel) -> str:
    """Return the kinds of what the kernel says it returns; see ``MachineCode``."""
    told = get_type_hints(kernel.function)["return"]
    if told is type(None):
        return ""
    if get_origin(told) is tuple:
        return "(" + "".join("f" if one is float else "i" for one in get_args(told))
    return "f" if told is float else "i"


def _entry(kernel: Kernel, arguments: tuple[object, ...], results: str, name: str) -> FunctionType:
    """Write the entry's source for these arguments and return it as a function."""
    names: dict[str, Any] = {"array_at": _array_at, "kernel": dispatcher(kernel, {})}
    writer = _Writer(names)
    call = f"kernel({', '.join(writer.expression(one) for one in arguments)})"
    own_name = re.sub(r"\W", "_", name)
    lines = [f"def {own_name}(words, floats):", f"    result = {call}"]
    for k, kind in enumerate(results.removeprefix("(")):
        value = f"result[{k}]" if results.startswith("(") else "result"
        lines.append(f"    {'words' if kind == 'i' else 'floats'}[{k}] = {value}")
    exec("\n".join(lines), names)  # made here, of types alone
    entry: FunctionType = names[own_name]
    return entry


class _Writer:
    """Writes arguments as expressions over the words, in the order of ``flatten``."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._next = 0

    def expression(self, value: object) -> str:
        """Return the source that puts an argument like ``value`` together again."""
        if isinstance(value, np.ndarray):
            address, *shape = (self._word() for _ in range(1 + value.ndim))
            return f"array_at({address}, ({', '.join(shape)},), {self._named(value.dtype.type)})"
        if isinstance(value, tuple):
            items = ", ".join(self.expression(item) for item in value)
            return (
                f"{self._named(type(value))}({items})"
                if hasattr(value, "_fields")
                else f"({items},)"
            )
        if isinstance(value, float | np.floating):
            return self._word().replace("words", "floats")
        return self._word()

    def _word(self) -> str:
        self._next += 1
        return f"words[{self._next - 1}]"

    def _named(self, kind: type) -> str:
        name = f"{kind.__name__}_"
        self._names[name] = kind
        return name


@intrinsic  # type: ignore[untyped-decorator]
def _array_at(typing_context: Any, address: Any, shape: Any, dtype: Any) -> Any:
    """Return the array of this shape that lies at an address."""
    array = types.Array(dtype.dtype, shape.count, "C")

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], context.get_value_type(types.voidptr))
        return np_cfarray(context, builder, array(types.voidptr, shape), (pointer, values[1]))

    return array(address, shape, dtype), build


def dispatcher(kernel: Kernel, known: dict[Kernel, Any]) -> Any:
    """Return numba's form of a kernel, in which the kernels it calls are numba's as well."""
    if kernel not in known:
        function = kernel.function
        names = dict(function.__globals__)
        rebound = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
        rebound.__module__, rebound.__qualname__ = function.__module__, function.__qualname__
        known[kernel] = numba.njit(**_OPTIONS, **kernel.options)(rebound)
        for name in function.__code__.co_names:
            if isinstance(names.get(name), Kernel):
                names[name] = dispatcher(names[name], known)
    return known[kernel]
