"""An object file of one kernel -> a function that can be called.

llvmlite's linker puts the code in memory; numba is not needed. An object file is preceded by one
line: the name of its entry and the kinds of what it returns.
"""

import ctypes
import functools
import struct
from dataclasses import dataclass
from typing import Any

import llvmlite
import llvmlite.binding as llvm

_RETURN, _EXCEPTION, _WORDS = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, _RETURN, _EXCEPTION, _WORDS, _WORDS)
"""numba's calling convention: places for result and exception, then the arguments. Such a call
releases the GIL."""


@dataclass(frozen=True)
class MachineCode:
    """Loaded code and what its result looks like: ``i`` and ``f`` a value, ``(`` for a tuple."""

    entry: Any
    results: str

    def run(self, words: list[int]) -> Any:  # noqa: ANN401 - what the kernel returns
        """Call it with flattened arguments; the words then hold the results."""
        kinds = self.results.removeprefix("(")
        held = (ctypes.c_int64 * max(len(words), len(kinds), 1))(*words)
        nothing = (ctypes.c_void_p * 2)()
        status = self.entry(ctypes.addressof(nothing), ctypes.addressof(nothing) + 8, held, held)
        if status != 0:  # kernels raise nothing: they are compiled without what could
            raise SystemError(f"compiled code ended with status {status}")
        values = [
            word if kind == "i" else struct.unpack("d", struct.pack("q", word))[0]
            for kind, word in zip(kinds, held, strict=False)
        ]
        return tuple(values) if self.results.startswith("(") else (values[0] if values else None)


@functools.cache
def compiler_and_processor() -> str:
    """Return what machine code depends on besides the source."""
    return f"{llvmlite.__version__} {llvm.get_process_triple()} {_processor()}"


@functools.cache
def target_machine() -> Any:  # noqa: ANN401 - llvmlite has no types
    """Return LLVM's description of this machine, for making and for linking code."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    name, features = _processor()
    # As numba has it: just-in-time code on x86 needs static relocation.
    reloc = "static" if target.name.startswith("x86") else "default"
    return target.create_target_machine(
        cpu=name, features=features, opt=3, reloc=reloc, codemodel="jitdefault", jit=True
    )


def load(data: bytes) -> MachineCode:
    """Link the object file and return its entry."""
    head, _, code = data.partition(b"\n")
    entry, results = head.decode().split(" ")
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return MachineCode(_ENTRY(engine.get_function_address(entry)), results)


@functools.cache
def _engine() -> Any:  # noqa: ANN401 - llvmlite has no types
    """Return what owns the code; it lives as long as the process."""
    machine = target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


@functools.cache
def _processor() -> tuple[str, str]:
    try:
        features = llvm.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM knows no list for this processor: the name has to do
        features = ""
    return llvm.get_host_cpu_name(), features
