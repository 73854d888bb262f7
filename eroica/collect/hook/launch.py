"""Starts the host's agent from the first rank that imports eroica; under `eroica run` there is one.

Only where eroica itself is importable in the job's Python. The agent is its grandchild, in a
session of its own, with no tie to the job's terminal or pipes.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys


def start_agent(folder: str) -> bool:
    """Start the agent unless another rank of this host has; False where it was not started."""
    if os.environ.get("EROICA_AGENT") == "0" or importlib.util.find_spec("eroica.watch") is None:
        return False
    handle = os.open(os.path.join(folder, "start.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.read(handle, 1):
            return False
        os.write(handle, b"1")
        _start(folder)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def _start(folder: str) -> None:
    # The marks of a rank must not be inherited: the agent is none, and must not be watched.
    drop = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "EROICA_RUN")
    environment = {name: value for name, value in os.environ.items() if name not in drop}
    environment["EROICA"] = "0"
    # Started through a process that ends at once: the job never has a child it did not start.
    code = (
        "import subprocess, sys;"
        "subprocess.Popen([sys.executable, '-m', 'eroica.watch.agent', sys.argv[1]],"
        " stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,"
        " start_new_session=True)"
    )
    subprocess.run(
        [sys.executable, "-c", code, folder],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=20,
        check=False,
    )
