"""Asks the hook of a rank through its socket; every answer has a time limit."""

import json
import socket
from pathlib import Path
from typing import Any


class NoAnswer(Exception):
    """The rank could not or would not answer; ``str()`` is a reason for people."""


def ask(folder: str | Path, rank: int, do: str, *, limit_s: float = 2.0, **arguments: Any) -> Any:  # noqa: ANN401
    """Return the hook's answer; raises NoAnswer.

    A rank whose interpreter lock is held, or which is stopped, accepts but does not answer.
    """
    path = str(Path(folder) / f"rank-{rank:05d}.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(limit_s)
        try:
            connection.connect(path)
            connection.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline(1 << 24)
        except TimeoutError:
            raise NoAnswer(f"rank {rank} did not answer within {limit_s:g} s") from None
        except OSError as error:
            raise NoAnswer(f"rank {rank} cannot be asked: {error}") from None
    if not line:
        raise NoAnswer(f"rank {rank} closed the line")
    answer = json.loads(line)
    if not answer["ok"]:
        raise NoAnswer(f"rank {rank}: {answer['error']}")
    return answer["value"]
