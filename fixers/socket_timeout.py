"""IO001 Give a socket a time-out, and ask again after it.

## What it does
Sets a time-out on a socket kept in an object. Where a method sends a request and reads the
answer, repeats it on a new connection, a few times, before it fails.

## Why it hurts
A read without a time-out waits for ever for a peer that has stopped sending, and all ranks wait
with it.

## When it is wrong
The request must not be sent twice.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.facts import definitions
from eroica.fix.tree import (
    Function,
    Source,
    Statement,
    code,
    dotted,
    find,
    is_docstring,
    names,
    pairs,
)

CODE = "IO001"
ANSWERS = frozenset({"blocked_io", "polling_wait"})
LABEL = "review"
TIMEOUT_S = 10.0
ATTEMPTS = 5
FIXES = (
    Example(
        category="blocked_io",
        before="""\
import socket

class Reader:
    def __init__(self, addr):
        self.addr = addr
        self.sock = socket.create_connection(addr)

    def get(self, request):
        self.sock.sendall(request)
        return self.sock.recv(100)  # <-- here
""",
        after="""\
import socket

class Reader:
    def __init__(self, addr):
        self.addr = addr
        self.sock = socket.create_connection(addr)
        self.sock.settimeout(10.0)

    def get(self, request):
        for _ in range(5):
            try:
                self.sock.sendall(request)
                return self.sock.recv(100)
            except OSError as error:
                failure = error
                self.sock.close()
                self.sock = socket.create_connection(self.addr)
                self.sock.settimeout(10.0)
        raise TimeoutError("no answer after 5 attempts") from failure
""",
    ),
    Example(
        category="blocked_io",
        before="""\
import socket

def read(addr):
    sock = socket.socket()
    sock.connect(addr)
    return sock.recv(100)  # <-- here
""",
        after="""\
import socket

def read(addr):
    sock = socket.socket()
    sock.settimeout(10.0)
    sock.connect(addr)
    return sock.recv(100)
""",
    ),
)
KEEPS = (
    Example(
        category="blocked_io",
        before="""\
import multiprocessing as mp

class Feed:
    def __init__(self, work):
        self.ours, theirs = mp.Pipe()
        mp.Process(target=work, args=(theirs,)).start()

    def next(self):
        return self.ours.recv()  # <-- here
""",
    ),
    Example(
        category="blocked_io",
        before="""\
import socket

def read(addr):
    sock = socket.socket()
    sock.settimeout(3)
    sock.connect(addr)
    return sock.recv(100)  # <-- here
""",
    ),
)
_READS = re.compile(r"recv|recv_into|recvfrom|makefile|connect|sendall")


def fix(context: Context) -> FixerResult | None:
    """Set the time-out, and retry where it can be; None where no socket is read."""
    for source in context.files:
        for name in _sockets(source):
            if f"{name}.settimeout" in source.text:
                continue
            made = [
                (v, n) for t, v, n in source.assignments() if t == name and isinstance(v, cst.Call)
            ]
            if len(made) != 1:
                continue
            value, node = made[0]
            if not _is_socket(context, source, value):
                continue
            statement = source.statement_of(node)
            if statement is None:
                continue
            edits = Edits(source)
            edits.after(statement, f"{name}.settimeout({TIMEOUT_S})")
            retried = _retry(edits, source, name, value, node)
            return context.result(
                edits,
                why=f"{source.path}:{source.line(statement)} makes a socket that waits without end "
                "for a silent peer.",
                behaviour=f"A read fails after {TIMEOUT_S:.0f} s of silence"
                + (
                    f"; the request is repeated on a new connection, {ATTEMPTS} times."
                    if retried
                    else " with TimeoutError."
                ),
                score=0.9 * max(context.closeness(source, statement), 0.8 if retried else 0.4),
            )
    return None


def _is_socket(context: Context, source: Source, made: cst.Call) -> bool:
    """Made by the socket module, or by a function of the project that makes one.

    Pipes, and the sockets of other libraries, are read like one but take no ``settimeout``.
    """
    name = source.full_name(made.func)
    if re.fullmatch(r"socket\.\w+|.*\.(?:accept|wrap_socket)", name):
        return True
    return any(
        other.calls(function.body, r"socket\.\w+")
        for other, function in definitions(source, made, context.files)
    )


def _sockets(source: Source) -> list[str]:
    """Names that are read like a socket."""
    found = []
    for call in find(source.module, cst.Call):
        if isinstance(call.func, cst.Attribute) and _READS.fullmatch(call.func.attr.value):
            name = dotted(call.func.value)
            if name and name not in found and name not in source.imports:
                found.append(name)
    return found


def _retry(edits: Edits, source: Source, name: str, value: cst.Call, node: cst.CSTNode) -> bool:
    """Wrap the request method in attempts that connect again."""
    init = source.function_of(node)
    if not name.startswith("self.") or init is None:
        return False
    connect = _again(source, init, value)
    method = _request_method(source, name)
    if connect is None or method is None:
        return False
    body = list(method.body.body)
    start = 1 if is_docstring(body[0]) else 0
    block = edits.statements(
        f"""\
for _ in range({ATTEMPTS}):
    try:
        __BODY__
    except OSError as error:
        failure = error
        {name}.close()
        {name} = {connect}
        {name}.settimeout({TIMEOUT_S})
raise TimeoutError("no answer after {ATTEMPTS} attempts") from failure
""",
        BODY=body[start:],
    )
    new = method.body.with_changes(body=[*body[:start], *block])
    edits.replace(method.body, new)
    edits.also_at_top(value)
    return True


def _again(source: Source, init: Function, value: cst.Call) -> str | None:
    """The constructor's call in terms of what the object keeps."""
    kept: dict[str, str] = {}
    for assign in find(init.body, cst.Assign):
        for target in assign.targets:
            for left, right in pairs(target.target, assign.value):
                if isinstance(right, cst.Name) and dotted(left).startswith("self."):
                    kept[right.value] = dotted(left)
    params = {p.name.value for p in init.params.params} - {"self"}
    used = {n for arg in value.args for n in names(arg.value)} & params
    if used - kept.keys():
        return None
    text = code(value)
    for name in used:
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w=])", kept[name], text)
    return text


def _request_method(source: Source, name: str) -> Function | None:
    """The method that sends on the socket and ends in a return of the answer."""
    for call in find(source.module, cst.Call):
        if dotted(call.func) in (f"{name}.sendall", f"{name}.send"):
            method = source.function_of(call)
            if method is None or source.loops(call):
                continue
            last: Statement | None = method.body.body[-1]  # type: ignore[assignment]
            if isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Return):
                return method
    return None
