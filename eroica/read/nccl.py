"""Collectives by the names of their kernels, for traces that carry nothing else."""

import re

_KERNEL = re.compile(r"(?:^|\b|_)(?:nccl|rccl)(?:Dev)?Kernel_?(?:Generic_?)?(?P<op>[A-Za-z]+)?")
_OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
    "alltoall": "all_to_all",
}


def op_of_kernel(name: str) -> str:
    """``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`` is ``all_reduce``; empty for others.

    Covers ``ncclKernel_`` (to NCCL 2.18), ``ncclDevKernel_`` (2.19 on) and RCCL's Generic kernel,
    which does not tell its operation: ``collective``.
    """
    found = _KERNEL.search(name)
    if not found:
        return ""
    return _OPS.get((found["op"] or "").lower(), "collective")
