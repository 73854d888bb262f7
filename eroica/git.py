"""Git, called so that nothing a repository holds is run: no hook, filter, pager, signer or fetch.

A repository is foreign text like any other, and its configuration can name programs. What is set
here wins over it. Variables of the caller's shell (``GIT_DIR`` ...) are left out.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.pager=cat",
    "core.attributesFile=/dev/null",
    "commit.gpgSign=false",
    "log.showSignature=false",
    "gc.auto=0",
    "maintenance.auto=false",
)
_SAFE = tuple(word for setting in _SETTINGS for word in ("-c", setting))
_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",  # a partial clone would ask its remote, through a program it names
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}


def call(
    folder: Path,
    *words: str,
    seconds: float,
    text: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[bytes]":
    """Run one git command in a folder; OSError or TimeoutExpired where it cannot be run.

    ``text`` is its standard input, as UTF-8 with bytes that were none kept.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return subprocess.run(
        ("git", "--no-pager", *_SAFE, *words),
        cwd=folder,
        env={**kept, **_ENVIRONMENT, **(environment or {})},
        timeout=seconds,
        input=None if text is None else text.encode("utf-8", "surrogateescape"),
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        check=False,
    )
