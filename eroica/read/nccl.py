"""Collectives by the names of their kernels, where a trace tells nothing better."""

import re

from eroica.read.collective_notes import normalize_op

_KERNEL = re.compile(
    r"(?:void )?(?:nccl|rccl)(?:Sym|Symk)?(?:Dev)?Kernel\w*?_(\w+?)(?:_|\(|$)|oneccl_(\w+)"
)
_OWN_KERNELS = re.compile(r"cross_device_reduce|(?:multimem|one_shot|two_shot)_all_reduce")
_NAMELESS = {"generic": "unknown"}  # RCCL's one kernel for all


def op_of_kernel(name: str) -> str:
    """``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`` is ``all_reduce``; empty for others.

    Covers ``ncclKernel_`` (to NCCL 2.18), ``ncclDevKernel_`` (2.19 on), the symmetric ones (2.27
    on), oneCCL, torch's own and RCCL's Generic kernel, which does not tell its operation:
    ``unknown``.
    """
    if found := _KERNEL.match(name):
        op = normalize_op(found[1] or found[2] or "")
        return _NAMELESS.get(op, op)
    return "all_reduce" if _OWN_KERNELS.search(name) else ""
