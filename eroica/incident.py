"""What lies where in an incident folder; the only code that knows file names.

``.eroica/incidents/<id>/``: ``incident.json`` (the bytes ``--json`` prints), ``evidence.json``
(the JobEvidence it came from), ``patterns.parquet``, ``diagnosis.json``, ``patches.json`` and
``patches/*.diff``, ``decisions.jsonl``, ``report.html``, ``report.md``. Any stage can be run
again on the folder, on another machine.
"""

import json
import logging
import os
import re
import secrets
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from eroica.errors import EroicaError, InputError
from eroica.files import append_line, read_plain
from eroica.records import Decision, Diagnosis, Incident, JobEvidence, Patch

T = TypeVar("T")
PRIVATE = 0o600
"""Evidence holds command lines, paths and log lines of a job: for its owner only."""
_LARGEST = 4 << 30
_PATCH_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ENCODER = msgspec.json.Encoder(order="deterministic")
logger = logging.getLogger(__name__)


def encode(record: object) -> bytes:
    """Return a record as indented JSON with ``schema`` first, ending in a newline."""
    plain = msgspec.to_builtins(record)
    if isinstance(plain, dict) and "schema" in plain:
        plain = {"schema": plain["schema"], **plain}
    return _utf8(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False)) + b"\n"


def compact(record: object) -> bytes:
    """A record as JSON on one line, keys in order."""
    try:
        return _ENCODER.encode(record)
    except UnicodeEncodeError:  # a path that is no UTF-8; msgspec takes no lone surrogates
        plain = msgspec.to_builtins(record, order="deterministic")
        return _utf8(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))


def _utf8(text: str) -> bytes:
    """Encode JSON text. A byte of a path that is no UTF-8 stays readable: as the text \\udcff."""
    return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()


def now() -> str:
    """The time as incidents carry it: ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")


def new_id(slug: str, when: float | None = None) -> str:
    """Return an id of time and slug, e.g. ``20261129-031205-barrier``."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(when))
    clean = re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-")[:40]
    return f"{stamp}-{clean or 'incident'}"


def write_atomic(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file so that readers see all of it or nothing; OSError goes to the caller.

    Without ``mode`` a file keeps the one it has. A new one is for its owner only inside an
    incident folder, elsewhere as the umask says. A link of the user's is written through.
    """
    is_private = _is_in_incident(path)
    target = path if is_private else path.resolve()
    if mode is None:
        with suppress(FileNotFoundError):
            mode = target.stat().st_mode & 0o7777
    if mode is None and is_private:
        mode = PRIVATE
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}")
    created = 0o666 if mode is None else PRIVATE
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, created)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        if mode is not None:
            scratch.chmod(mode)
        scratch.replace(target)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _is_in_incident(path: Path) -> bool:
    parents = path.absolute().parents
    return any(is_incident(parent) for parent in parents[:3]) or any(
        parent.parent == store().absolute() for parent in parents[:3]
    )


def store() -> Path:
    """The folder of incidents: ``$EROICA_HOME/incidents``, else ``./.eroica/incidents``."""
    return Path(os.environ.get("EROICA_HOME") or ".eroica") / "incidents"


class IncidentFolder:
    """One incident on disk."""

    def __init__(self, path: Path) -> None:
        # "." and ".." have no name, and the name is the id.
        self.path = path.resolve() if path.name in ("", "..") else path

    @property
    def id(self) -> str:
        return self.path.name

    # files other tools put there or read from there
    @property
    def patterns_path(self) -> Path:
        return self.path / "patterns.parquet"

    @property
    def shown_path(self) -> Path:
        """The few functions of a large pattern table that a report draws."""
        return self.path / "evidence" / "shown.parquet"

    @property
    def report_html_path(self) -> Path:
        return self.path / "report.html"

    @property
    def report_markdown_path(self) -> Path:
        return self.path / "report.md"

    @property
    def transcript_path(self) -> Path:
        """Exact prompts and answers of model calls, one JSON object a line (0600)."""
        return self.path / "model.jsonl"

    def patch_path(self, patch_id: str) -> Path:
        """Where a patch's diff lies; InputError for an id that could name another folder."""
        if not _PATCH_ID.fullmatch(patch_id):
            raise InputError(
                f"{self.path / 'patches.json'} cannot be used",
                f"{patch_id!r} is no patch id: letters, digits, - and _",
                next_step="eroica fix makes the patches anew; move the file away",
            )
        return self.path / "patches" / f"{patch_id}.diff"

    # records
    def write_incident(self, incident: Incident) -> None:
        self._write("incident.json", encode(incident))

    def read_incident(self) -> Incident:
        return self._read("incident.json", Incident)

    def incident_bytes(self) -> bytes:
        return self._bytes("incident.json")

    def write_evidence(self, evidence: JobEvidence) -> None:
        self._write("evidence.json", compact(evidence))

    def read_evidence(self) -> JobEvidence | None:
        if not (self.path / "evidence.json").exists():
            return None
        return self._read("evidence.json", JobEvidence)

    def write_hardware(self, text: str, *, rank: int | None) -> None:
        """Keep the counters of a rank, or of the host, as eroica/read/hardware.py reads them."""
        name = "host" if rank is None else f"rank-{rank:05d}"
        folder = self.path / "evidence" / name
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "hardware.jsonl", _utf8(text), PRIVATE)

    def write_diagnoses(self, diagnoses: list[Diagnosis]) -> None:
        self._write("diagnosis.json", encode(diagnoses))

    def read_diagnoses(self) -> list[Diagnosis]:
        if not (self.path / "diagnosis.json").exists():
            return []
        return self._read("diagnosis.json", list[Diagnosis])

    def write_patches(self, patches: list[Patch]) -> None:
        """Replace patches.json and write a diff for each."""
        paths = [self.patch_path(patch.id) for patch in patches]
        self._write("patches.json", encode(patches))
        for path, patch in zip(paths, patches, strict=True):
            write_atomic(path, _utf8(patch.diff), PRIVATE)

    def read_patches(self) -> list[Patch]:
        if not (self.path / "patches.json").exists():
            return []
        patches = self._read("patches.json", list[Patch])
        for patch in patches:
            self.patch_path(patch.id)
        return [_as_its_source(patch) for patch in patches]

    def free_patch_id(self, letter: str) -> str:
        """An id that no patch here has, e.g. ``P3``: applied ones are found by their id."""
        taken = {patch.id for patch in self.read_patches()}
        number = len(taken) + 1
        while f"{letter}{number}" in taken:
            number += 1
        return f"{letter}{number}"

    def append_decision(self, decision: Decision) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / "decisions.jsonl"
        try:
            append_line(path, compact(decision))
        except OSError as error:
            raise EroicaError(
                f"the decision cannot be written to {path}",
                str(error),
                next_step="free some space, or move the file away",
            ) from error

    def read_decisions(self) -> list[Decision]:
        """The journal; a line that was cut off (full disk, power) is skipped and logged."""
        path = self.path / "decisions.jsonl"
        if not path.exists():
            return []
        found = []
        for number, line in enumerate(self._bytes(path.name).splitlines(), start=1):
            try:
                found += [msgspec.json.decode(line, type=Decision)] if line.strip() else []
            except msgspec.DecodeError as error:
                logger.warning("%s: line %d is skipped: %s", path, number, error)
        return found

    def _write(self, name: str, data: bytes) -> None:
        write_atomic(self.path / name, data, PRIVATE)

    def _read(self, name: str, kind: type[T]) -> T:
        data = self._bytes(name)
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(
                f"{self.path / name} cannot be read",
                str(error),
                next_step="eroica list shows the others",
            ) from error

    def _bytes(self, name: str) -> bytes:
        """A file's content. Of another's folder it may be a pipe, which would be waited for."""
        path = self.path / name
        try:
            return read_plain(path, _LARGEST)
        except FileNotFoundError:
            raise InputError(
                f"{self.path} is not an incident", f"it has no {name}", "eroica list"
            ) from None
        except OSError as error:
            raise InputError(
                f"{path} cannot be read",
                str(error),
                next_step="check its permissions; eroica list shows the others",
            ) from error


def _as_its_source(patch: Patch) -> Patch:
    """Only a fixer's patch can be safe, whatever the file of an incident from elsewhere says."""
    if patch.label == "safe" and not patch.source.startswith("fixer "):
        return msgspec.structs.replace(patch, label="review")
    return patch


def create(slug: str, root: Path | None = None) -> IncidentFolder:
    """Make a new, empty incident folder; two in the same second get different names."""
    base = root or store()
    name = new_id(slug)
    for number in range(1, 1000):
        path = base / (name if number == 1 else f"{name}-{number}")
        try:
            base.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        except FileExistsError:
            if not base.is_dir():
                raise InputError(
                    f"{base} is not a folder",
                    found="a file of that name is in the way",
                    next_step="set EROICA_HOME to a folder that can be written",
                ) from None
            continue
        except OSError as error:
            raise InputError(
                f"cannot make the incident folder {path}",
                str(error),
                "set EROICA_HOME to a folder that can be written",
            ) from error
        return IncidentFolder(path)
    raise InputError(
        f"cannot find a free name below {base}",
        found="999 incidents of this name were made in one second",
        next_step="try again",
    )


def is_incident(path: Path) -> bool:
    try:
        return (path / "incident.json").is_file()
    except OSError:  # e.g. a name that is too long: what was typed is no path
        return False


def find(reference: str | None, root: Path | None = None) -> IncidentFolder:
    """Return the incident named by id, unique part of an id or path; None: the newest."""
    if reference and is_incident(Path(reference)):
        return IncidentFolder(Path(reference))
    known = list_folders(root)
    if not known:
        raise InputError(
            "no incident found",
            f"looked in {root or store()}",
            "eroica diagnose PATH, or eroica demo",
        )
    if reference is None:
        return known[-1]
    matches = [folder for folder in known if folder.id == reference] or [
        folder for folder in known if reference in folder.id
    ]
    if len(matches) != 1:
        names = ", ".join(folder.id for folder in (matches or known)[-5:])
        what = "is no incident" if not matches else "fits more than one incident"
        raise InputError(f"{reference!r} {what}", f"there are: {names}", "eroica list")
    return matches[0]


def list_folders(root: Path | None = None) -> list[IncidentFolder]:
    """All incidents, oldest first: ids begin with the time; within a second, as written."""
    base = root or store()
    if not base.is_dir():
        return []
    found = [path for path in base.iterdir() if is_incident(path)]
    found.sort(key=lambda path: (path.name[:15], _written_ns(path), path.name))
    return [IncidentFolder(path) for path in found]


def _written_ns(path: Path) -> int:
    with suppress(OSError):
        return (path / "incident.json").stat().st_mtime_ns
    return 0
