"""DDP006 Do not send the module's buffers in each forward.

## What it does
Adds `broadcast_buffers=False` to the DistributedDataParallel constructor.

## Why it hurts
By default DDP sends all registered buffers from rank 0 before each forward. A memory bank or a
table among them costs more than the gradients.

## When it is wrong
The buffers differ between ranks and rank 0's are the right ones, as with batch norm without
synchronization, whose statistics then are each rank's own.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import wrapping_calls
from eroica.fix.tree import argument, find

CODE = "DDP006"
ANSWERS = frozenset({"redundant_gradient_sync"})
LABEL = "review"
FIXES = (
    Example(
        category="redundant_gradient_sync",
        before="""\
from torch.nn.parallel import DistributedDataParallel as DDP

class Bank:
    def __init__(self, keys):
        self.register_buffer("queue", keys)

model = DDP(Bank(keys))  # <-- here
""",
        after="""\
from torch.nn.parallel import DistributedDataParallel as DDP

class Bank:
    def __init__(self, keys):
        self.register_buffer("queue", keys)

model = DDP(Bank(keys), broadcast_buffers=False)
""",
    ),
)
KEEPS = (
    Example(
        category="redundant_gradient_sync",
        before="""\
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(net)  # <-- here
""",
    ),
    Example(
        category="redundant_gradient_sync",
        before="""\
from torch.nn.parallel import DistributedDataParallel as DDP

class Bank:
    def __init__(self, keys):
        self.register_buffer("queue", keys)

model = DDP(Bank(keys), broadcast_buffers=True)  # <-- here
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Set the flag; None where the project registers no buffer or the flag was set on purpose."""
    if not any(_registers(call) for s in context.files for call in find(s.module, cst.Call)):
        return None
    for source in context.files:
        for call in wrapping_calls(source):
            if argument(call, "broadcast_buffers") is not None:
                continue
            edits = Edits(source)
            edits.set_argument(call, "broadcast_buffers", "False")
            return context.result(
                edits,
                why=f"{source.path}:{source.line(call)} lets DDP send all buffers of the module "
                "from rank 0 before each forward.",
                behaviour="Each rank keeps its own buffers; where they should be alike, the "
                "program has to keep them so.",
                score=0.75 if context.is_near(source, call) else 0.4,
            )
    return None


def _registers(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "register_buffer"
