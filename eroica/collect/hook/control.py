"""One thread that sleeps in ``accept`` until an agent asks; while nobody asks it costs nothing.

A request is one JSON line ``{"do": "flight", "path": ...}``; the answer is one JSON line. The
socket lies in a folder of mode 0700. The thread is started below ``threading``, so that it is
neither listed among the job's threads nor waited for at exit.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import socket
import time
from typing import Any

from . import dumps, facts, guard, sampler
from .layout import W_LOCAL_RANK, W_RANK, W_SIGNAL

_AGAIN_S = 1.0


def start(ring: Any, folder: str, windows: Any, samples: Any) -> None:
    rank = ring.words[W_RANK]
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = os.path.join(folder, f"rank-{rank:05d}.sock")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    server.bind(path)
    os.chmod(path, 0o600)
    server.listen(4)
    os.register_at_fork(after_in_child=server.close)
    stacks = os.path.join(folder, f"rank-{rank:05d}.fault")
    ring.words[W_SIGNAL] = dumps.register_signal(stacks)
    actions = {
        "flight": lambda request: dumps.write_flight(request["path"]),
        "collectives": lambda request: dumps.collective_status(),
        "stacks": lambda request: dumps.write_stacks(request["path"]),
        "threads": lambda request: sampler.threads(),
        "sample": lambda request: samples.start(request["path"], request["hz"], request["seconds"]),
        "sample_stop": lambda request: samples.stop(),
        "facts": lambda request: facts.write(request["path"]),
        "allow_trace": lambda request: dumps.allow_trace(request.get("pid", -1)),
        "window": lambda request: windows.arm(request),
        "window_stop": lambda request: windows.stop_now("asked"),
        "window_export": lambda request: windows.export(),
        "ping": lambda request: {"local_rank": ring.words[W_LOCAL_RANK]},
    }
    _thread.start_new_thread(_serve, (server, actions))


def _serve(server: socket.socket, actions: dict[str, Any]) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError as error:
            if server.fileno() < 0:  # closed: a forked child's
                return
            # The job may be out of descriptors for a while.
            guard.tell("answering the agent (it is tried again)", error)
            time.sleep(_AGAIN_S)
            continue
        with guard.quietly("answering the agent"), connection:
            connection.settimeout(30)
            _answer(connection, actions)


def _answer(connection: socket.socket, actions: dict[str, Any]) -> None:
    with connection.makefile("rb") as stream:
        line = stream.readline(1 << 20)
    if not line:
        return
    request = json.loads(line.decode())
    try:
        answer = {"ok": True, "value": actions[request["do"]](request)}
    except Exception as error:
        # Not only told here: the agent that asked is to know it too.
        answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who asked waits no more
        connection.sendall(json.dumps(answer, default=repr).encode() + b"\n")
