"""Files of others, read as data: plain ones, inside the folder they belong to, of bounded size.

A source tree or an evidence folder may hold pipes (opening one waits for ever), devices (reading
one never ends) and links that lead elsewhere (to a key, say, that would then stand in a prompt).
"""

import os
import re
import stat
from pathlib import Path, PurePosixPath

MAX_SOURCE_BYTES = 1_000_000
"""A larger source file is generated: nobody reads it, or wants a patch for it."""
_BLOCK = 1 << 16

NOT_OURS = frozenset(
    [
        ".git",
        ".hg",
        ".eroica",
        ".venv",
        "venv",
        "env",
        "node_modules",
        "__pycache__",
        "site-packages",
        "dist-packages",
        ".tox",
        ".mypy_cache",
        ".ruff_cache",
        "build",
        "dist",
    ]
)
"""Folders of a project that hold what others wrote, or what was made from it."""
NOT_FOR_PATCHES = re.compile(
    r"(^|/)(tests?|testing|\.github|\.gitlab|\.circleci|\.ci|\.git|\.ssh|\.aws)(/|$)"
    r"|(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$"
    r"|(^|/)(\.gitlab-ci\.yml|\.travis\.yml|Jenkinsfile|azure-pipelines\.yml|\.pre-commit-config\.yaml)$"
    r"|(^|/)(\.env[^/]*|[^/]*\.(pem|key|p12|pfx)|id_[a-z0-9]+|\.netrc|\.npmrc|\.pypirc|credentials[^/]*"
    r"|secrets?[^/]*)$",
    re.I,
)
"""Tests, pipelines and what may hold secrets: no patch changes them."""


def may_be_patched(path: str) -> bool:
    """Whether a file of a project, by its relative path, is one that a patch may change."""
    parts = PurePosixPath(path).parts
    return not NOT_OURS & set(parts[:-1]) and NOT_FOR_PATCHES.search(path) is None


def is_inside(path: Path, root: Path) -> bool:
    """Whether a file, links followed, lies below a folder and is a plain one."""
    try:
        real = Path(os.path.realpath(path))  # resolve() raises on a loop of links
        return real.is_relative_to(os.path.realpath(root)) and real.is_file()
    except (OSError, ValueError):  # too long a name, a NUL in it
        return False


def read_plain(path: Path, limit: int = MAX_SOURCE_BYTES) -> bytes:
    """Return a file's bytes; OSError where it is no plain file or holds more than ``limit``."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is no plain file")
        data = stream.read(min(limit, max(status.st_size, _BLOCK)) + 1)
    if len(data) > limit:
        raise OSError(f"{path} holds more than {limit} bytes")
    return data


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a plain file that only its owner can read; OSError for a link or a pipe.

    An incident's folder may come from someone else, and a link in it may lead to a file that runs
    what stands in it (a shell's, say). A line that was cut off before is ended first.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags, 0o600)
    with os.fdopen(handle, "r+b") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is no plain file")
        os.fchmod(handle, 0o600)
        size = stream.seek(0, os.SEEK_END)
        is_torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        stream.write((b"\n" if is_torn else b"") + line + b"\n")
