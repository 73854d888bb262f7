"""Asks the hook of a rank through its socket; every answer has a time limit."""

import http.client
import json
import socket
import time
from pathlib import Path
from typing import Any

_MOST_BYTES = 1 << 24


class _UnixHttp(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, limit_s: float) -> None:
        super().__init__("localhost", timeout=limit_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class NoAnswer(Exception):
    """The rank could not or would not answer; ``str()`` is a reason for people."""


class Silent(NoAnswer):
    """It took the question and said nothing: its interpreter lock is held, or it is stopped."""


def ask(folder: str | Path, rank: int, do: str, *, limit_s: float = 2.0, **arguments: Any) -> Any:  # noqa: ANN401
    """Return the hook's answer; raises NoAnswer.

    A rank whose interpreter lock is held, or which is stopped, accepts but does not answer. The
    limit is for the whole answer, however slowly it trickles.
    """
    until = time.monotonic() + limit_s
    path = str(Path(folder) / f"rank-{rank:05d}.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(limit_s)
        try:
            connection.connect(path)
            connection.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
            line = _line(connection, until)
        except TimeoutError:
            raise Silent(f"rank {rank} did not answer within {limit_s:g} s") from None
        except OSError as error:
            raise NoAnswer(f"rank {rank} cannot be asked: {error}") from None
    if not line:
        raise NoAnswer(f"rank {rank} closed the line")
    try:
        answer = whole_text(json.loads(line))
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or not (answer.get("ok") is True or "error" in answer):
        raise NoAnswer(f"rank {rank} gave an answer that is none")
    if answer.get("ok") is not True:
        raise NoAnswer(f"rank {rank}: {answer['error']}")
    return answer.get("value")


def whole_text(value: Any) -> Any:  # noqa: ANN401
    """Return JSON's value with text that can be written again.

    Names of files and arguments that are no UTF-8 come as lone surrogates, which nothing encodes.
    """
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-8", "replace"))
    return value


def _line(connection: socket.socket, until: float) -> bytes:
    """Read up to the end of a line; TimeoutError when the time is over."""
    pieces: list[bytes] = []
    size = 0
    while size < _MOST_BYTES:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        piece = connection.recv(1 << 16)
        pieces.append(piece)
        size += len(piece)
        if not piece or piece.endswith(b"\n"):
            break
    return b"".join(pieces)


def ask_torch(folder: str | Path, rank: int, handler: str, *, limit_s: float = 3.0) -> bytes:
    """Return what torch's own worker server answers; raises NoAnswer.

    It answers in C++: also of a rank whose interpreter lock is held for ever, but not of one that
    is stopped. Handlers: ``fr_trace_json``, ``dump_traceback`` (waits 2 s for the lock), ``ping``.
    """
    connection = _UnixHttp(str(Path(folder) / f"rank-{rank:05d}.torch"), limit_s)
    try:
        connection.request("POST", f"/handler/{handler}", headers={"Connection": "close"})
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES)
    except TimeoutError:
        raise Silent(f"torch's server in rank {rank} said nothing for {limit_s:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"torch's server in rank {rank} cannot be asked: {error}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise NoAnswer(f"torch's server in rank {rank} knows no {handler}: {answer.status}")
    return body
