"""What lies where in an incident folder; the only code that knows file names.

``.eroica/incidents/<id>/``: ``incident.json`` (the bytes ``--json`` prints), ``evidence.json``
(the JobEvidence it came from), ``patterns.parquet``, ``evidence/rank-00003/``,
``diagnosis.json``, ``patches.json`` and ``patches/*.diff``, ``decisions.jsonl``, ``report.html``,
``report.md``. Any stage can be run again on the folder, on another machine.
"""

import json
import os
import re
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from eroica.errors import InputError
from eroica.records import Decision, Diagnosis, Incident, JobEvidence, Patch

T = TypeVar("T")
_ENCODER = msgspec.json.Encoder(order="deterministic")


def encode(record: object) -> bytes:
    """Return a record as indented JSON with ``schema`` first, ending in a newline."""
    plain = msgspec.to_builtins(record)
    if isinstance(plain, dict) and "schema" in plain:
        plain = {"schema": plain["schema"], **plain}
    text = json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def now() -> str:
    """The time as incidents carry it: ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")


def new_id(slug: str, when: float | None = None) -> str:
    """Return an id of time and slug, e.g. ``20261129-031205-barrier``."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(when))
    clean = re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-")[:40]
    return f"{stamp}-{clean or 'incident'}"


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file so that readers see all of it or nothing; OSError goes to the caller."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def store() -> Path:
    """The folder of incidents: ``$EROICA_HOME/incidents``, else ``./.eroica/incidents``."""
    return Path(os.environ.get("EROICA_HOME") or ".eroica") / "incidents"


class IncidentFolder:
    """One incident on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> str:
        return self.path.name

    # files other tools put there or read from there
    @property
    def patterns_path(self) -> Path:
        return self.path / "patterns.parquet"

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

    def rank_path(self, rank: int) -> Path:
        return self.path / "evidence" / f"rank-{rank:05d}"

    def patch_path(self, patch_id: str) -> Path:
        return self.path / "patches" / f"{patch_id}.diff"

    # records
    def write_incident(self, incident: Incident) -> None:
        write_atomic(self.path / "incident.json", encode(incident))

    def read_incident(self) -> Incident:
        return self._read("incident.json", Incident)

    def incident_bytes(self) -> bytes:
        return (self.path / "incident.json").read_bytes()

    def write_evidence(self, evidence: JobEvidence) -> None:
        write_atomic(self.path / "evidence.json", _ENCODER.encode(evidence))

    def read_evidence(self) -> JobEvidence | None:
        if not (self.path / "evidence.json").exists():
            return None
        return self._read("evidence.json", JobEvidence)

    def write_diagnoses(self, diagnoses: list[Diagnosis]) -> None:
        write_atomic(self.path / "diagnosis.json", encode(diagnoses))

    def read_diagnoses(self) -> list[Diagnosis]:
        if not (self.path / "diagnosis.json").exists():
            return []
        return self._read("diagnosis.json", list[Diagnosis])

    def write_patches(self, patches: list[Patch]) -> None:
        write_atomic(self.path / "patches.json", encode(patches))
        for patch in patches:
            write_atomic(self.patch_path(patch.id), patch.diff.encode())

    def read_patches(self) -> list[Patch]:
        if not (self.path / "patches.json").exists():
            return []
        return self._read("patches.json", list[Patch])

    def append_decision(self, decision: Decision) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "decisions.jsonl").open("ab") as stream:
            stream.write(_ENCODER.encode(decision) + b"\n")

    def read_decisions(self) -> list[Decision]:
        path = self.path / "decisions.jsonl"
        if not path.exists():
            return []
        lines = [line for line in path.read_bytes().splitlines() if line.strip()]
        return [msgspec.json.decode(line, type=Decision) for line in lines]

    def _read(self, name: str, kind: type[T]) -> T:
        path = self.path / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            raise InputError(
                f"{self.path} is not an incident", f"it has no {name}", "eroica list"
            ) from None
        except msgspec.DecodeError as error:
            raise InputError(f"{path} cannot be read", str(error)) from error


def create(slug: str, root: Path | None = None) -> IncidentFolder:
    """Make a new, empty incident folder; two in the same second get different names."""
    base = root or store()
    name = new_id(slug)
    for number in range(1, 1000):
        path = base / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(
                f"cannot make the incident folder {path}",
                str(error),
                "set EROICA_HOME to a folder that can be written",
            ) from error
        return IncidentFolder(path)
    raise InputError(f"cannot find a free name below {base}")


def is_incident(path: Path) -> bool:
    return (path / "incident.json").is_file()


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
    """All incidents, oldest first (ids begin with the time)."""
    base = root or store()
    if not base.is_dir():
        return []
    return [IncidentFolder(path) for path in sorted(base.iterdir()) if is_incident(path)]
