"""P2P001 Post sends and receives together.

## What it does
Replaces a blocking `send` followed by a blocking `recv` with the same peer by one
`batch_isend_irecv`, which starts both and then waits.

## Why it hurts
When both sides send first, each waits for the other to receive.

## When it is wrong
The tensor received must be in place before the one sent is computed.
"""

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, argument, called, code, find

CODE = "P2P001"
ANSWERS = frozenset(
    {
        "collective_order_mismatch",
        "collective_count_mismatch",
        "rank_conditional_collective",
        "divergent_control_flow",
    }
)
LABEL = "review"
FIXES = (
    Example(
        category="collective_order_mismatch",
        before="""\
import torch.distributed as dist

def exchange(out, inp, peer):
    dist.send(out, peer)  # <-- here
    dist.recv(inp, peer)
    return inp
""",
        after="""\
import torch.distributed as dist

def exchange(out, inp, peer):
    exchanged = [
        dist.P2POp(dist.isend, out, peer),
        dist.P2POp(dist.irecv, inp, peer),
    ]
    for work in dist.batch_isend_irecv(exchanged):
        work.wait()
    return inp
""",
    ),
    Example(
        category="collective_order_mismatch",
        before="""\
import torch.distributed as dist

def ring(x, buf, rank, world):
    dist.send(x, (rank + 1) % world)  # <-- here
    dist.recv(buf, (rank - 1) % world)
""",
        after="""\
import torch.distributed as dist

def ring(x, buf, rank, world):
    exchanged = [
        dist.P2POp(dist.isend, x, (rank + 1) % world),
        dist.P2POp(dist.irecv, buf, (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(exchanged):
        work.wait()
""",
    ),
)
KEEPS = (
    Example(
        category="collective_order_mismatch",
        before="""\
import torch.distributed as dist

def exchange(rank, out, inp, peer):
    if rank == 0:
        dist.send(out, peer)  # <-- here
        dist.recv(inp, peer)
    else:
        dist.recv(inp, peer)
        dist.send(out, peer)
""",
    ),
)


def fix(context: Context) -> FixerResult | None:
    """Join the pair; None where the ranks already take turns."""
    for source, line in context.every(cst.SimpleStatementLine, 0.5):
        send = called(line)
        if send is None or source.full_name(send.func) != "torch.distributed.send":
            continue
        after = source.following(line)
        receive = called(after[0]) if after else None
        if receive is None or source.full_name(receive.func) != "torch.distributed.recv":
            continue
        if not _is_exchange(send, receive) or _takes_turns(source, line):
            continue
        out, inp = argument(send, "tensor", 0), argument(receive, "tensor", 0)
        if out is None or inp is None or not _peer(receive):
            continue
        to = ", ".join([code(out.value), _peer(send), *_further(send)])
        origin = ", ".join([code(inp.value), _peer(receive), *_further(receive)])
        edits = Edits(source)
        dist = edits.module("torch.distributed", line)
        edits.replace(
            line,
            edits.statements(f"""\
exchanged = [
    {dist}.P2POp({dist}.isend, {to}),
    {dist}.P2POp({dist}.irecv, {origin}),
]
for work in {dist}.batch_isend_irecv(exchanged):
    work.wait()
"""),
        )
        edits.remove(after[0])
        return context.result(
            edits,
            why=f"{source.path}:{source.line(line)} sends before it receives; the peer runs the "
            "same lines, so both wait in send.",
            behaviour="Both transfers are under way at once; the function returns when both are "
            "done.",
            score=0.95 * context.closeness(source, line),
        )
    return None


def _is_exchange(send: cst.Call, receive: cst.Call) -> bool:
    """With one peer, or around a ring: to the next, from the one before."""
    if _peer(send) == _peer(receive):
        return True
    texts = (_peer(send), _peer(receive))
    return all("rank" in text for text in texts) and {"+", "-"} <= set("".join(texts))


def _further(call: cst.Call) -> list[str]:
    """Group and tag, where they are given."""
    given = [(name, argument(call, name, at)) for name, at in (("group", 2), ("tag", 3))]
    return [f"{name}={code(arg.value)}" for name, arg in given if arg is not None]


def _peer(call: cst.Call) -> str:
    arg = argument(call, "dst", 1) or argument(call, "src", 1)
    return code(arg.value) if arg is not None else ""


def _takes_turns(source: Source, line: cst.CSTNode) -> bool:
    """True inside an if on the rank whose other branch receives first."""
    above = source.enclosing(line, cst.If)
    if not isinstance(above, cst.If) or above.orelse is None:
        return False
    other = [
        c
        for c in find(above.orelse, cst.Call)
        if source.full_name(c.func) in ("torch.distributed.send", "torch.distributed.recv")
    ]
    return bool(other) and source.full_name(other[0].func).endswith("recv")
