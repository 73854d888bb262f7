"""Where hosts leave files for each other: a folder on a shared file system, or an object store.

URLs (``s3://bucket/prefix``) go through fsspec.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from eroica.errors import InputError, MissingExtra


class Shelf(Protocol):
    """Where files lie that all hosts see."""

    def write(self, name: str, data: bytes) -> None: ...
    def read(self, name: str, limit: int) -> bytes | None: ...
    def names(self) -> list[str]: ...
    def remove(self, name: str) -> None: ...


class FolderShelf:
    """A folder on a shared file system, for its owner only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise OSError(f"{path} is another user's, or no folder")

    def write(self, name: str, data: bytes) -> None:
        scratch = self.path / f".{name}.{secrets.token_hex(4)}"
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            scratch.replace(self.path / name)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise

    def read(self, name: str, limit: int) -> bytes | None:
        try:
            handle = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with os.fdopen(handle, "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
                raise OSError(f"{self.path / name} is another user's, or no file")
            if status.st_size > limit:
                raise OSError(f"{self.path / name} has {status.st_size} bytes")
            return stream.read(limit + 1)

    def names(self) -> list[str]:
        return os.listdir(self.path)  # noqa: PTH208

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


class StoreShelf:
    """A prefix in an object store; an object appears whole or not at all."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise MissingExtra(f"sharing evidence through {url}", "share") from error
        is_local = url.startswith(("file://", "local://"))
        options = {"auto_mkdir": True} if is_local else {}
        try:
            self._files, self._base = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            raise InputError(
                f"a store of the kind {url.partition('://')[0]}:// cannot be opened",
                str(error),
                "install the package it names, or give a folder that all hosts see",
            ) from error

    def write(self, name: str, data: bytes) -> None:
        with _store_errors():
            self._files.pipe_file(f"{self._base}/{name}", data)

    def read(self, name: str, limit: int) -> bytes | None:
        try:
            with _store_errors():
                data: bytes = self._files.cat_file(f"{self._base}/{name}", start=0, end=limit + 1)
        except FileNotFoundError:
            return None
        if len(data) > limit:
            raise OSError(f"{name} has more than {limit} bytes")
        return data

    def names(self) -> list[str]:
        self._files.invalidate_cache()
        try:
            with _store_errors():
                found: list[Any] = self._files.ls(self._base, detail=False)
        except FileNotFoundError:
            return []
        return [str(one).rsplit("/", 1)[-1] for one in found]

    def remove(self, name: str) -> None:
        with _store_errors():
            self._files.rm(f"{self._base}/{name}")


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    """Each store has kinds of errors of its own; whoever asks it again knows one."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def open_shelf(share: str, job_key: str) -> Shelf:
    """Return the job's own place below ``share``. Raises OSError, MissingExtra."""
    name = f"eroica-job-{job_key[:24]}"
    if "://" in share:
        return StoreShelf(f"{share.rstrip('/')}/{name}")
    return FolderShelf(Path(share) / name)
