"""Paths a user names -> what each file is (find_inputs), joined by rank (load_evidence).

Nothing large is read here: a trace stays a path until it is summarized. What stands in notes
beside the evidence (a fault injection log, a README, a case file) is no evidence and never used.
"""

import os
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from eroica.errors import InputError
from eroica.incident import is_incident
from eroica.read import names
from eroica.read.choose import (
    Found,
    choose_nsys,
    choose_timelines,
    choose_traces,
    distinct,
    files_of,
    of_kind,
)
from eroica.read.evidence import load_evidence
from eroica.read.identify import Kind, identify
from eroica.read.inputs import FileInput, Inputs, TraceInput
from eroica.records import Warning

__all__ = ["FileInput", "Inputs", "TraceInput", "find_inputs", "load_evidence"]

MAX_FILES = 200_000
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})
_NOT_READ: tuple[Kind, ...] = ("other", "defect", "timeline_meta")
_ONE_A_RANK: tuple[Kind, ...] = ("trace", "flight", "stacks")
"""Kinds of which a job has one a rank: two folders that both have them are two jobs."""


def find_inputs(paths: Sequence[str | Path]) -> Inputs:
    """Identify every file at and below ``paths``; nothing large is read.

    A file that is not evidence becomes a warning. InputError for a path that does not exist and
    where several jobs lie below one folder.
    """
    warnings: list[Warning] = []
    incidents: list[Path] = []
    found: list[Found] = []
    tops = [Path(path) for path in paths]
    for path in _walk(tops, incidents, warnings):
        what = identify(path)
        if what.kind == "log" and _leads_out(path, tops):
            found.append(Found("other", path, None, _LEADS_OUT))
        else:
            found.append(Found(what.kind, path, what.rank, what.why))
    _refuse_several_jobs(found)
    _warn_of_the_rest(found, warnings)
    traces = choose_traces(of_kind(found, "trace"), warnings)
    flights = distinct(of_kind(found, "flight"), "Flight Recorder dump", warnings)
    return Inputs(
        traces=traces,
        flights=flights,
        stacks=files_of(found, "stacks"),
        logs=files_of(found, "log"),
        nsys=choose_nsys(of_kind(found, "nsys"), warnings),
        timelines=choose_timelines(found, warnings),
        hardware=files_of(found, "hardware"),
        patterns=tuple(one.path for one in of_kind(found, "patterns")),
        incidents=tuple(incidents),
        pids=files_of(found, "pid"),
        tasks=files_of(found, "tasks"),
        evidence=tuple(one.path for one in of_kind(found, "evidence")),
        unknown=tuple(one.path for one in found if one.kind in _NOT_READ),
        warnings=tuple(warnings),
    )


# --- the walk ---------------------------------------------------------------------------------


def _walk(paths: list[Path], incidents: list[Path], warnings: list[Warning]) -> Iterable[Path]:
    """Every file once, in natural order; incident folders are set aside whole."""
    seen: set[tuple[int, int]] = set()
    for top in paths:
        try:
            is_folder = top.is_dir()
            top.stat()
        except OSError as error:
            raise InputError(
                f"{top} cannot be read",
                error.strerror or str(error),
                "eroica list shows the incidents; eroica diagnose FOLDER takes traces and dumps",
            ) from error
        if top.name == "incident.json" and is_incident(top.parent):
            incidents.append(top.parent)
            continue
        for path in _below(top, incidents, warnings) if is_folder else [top]:
            key = _identity(path, warnings)
            if key is not None and key not in seen:
                seen.add(key)
                if len(seen) > MAX_FILES:
                    raise InputError(
                        f"{top} holds more than {MAX_FILES} files",
                        "expected one job's traces, dumps, stacks and logs",
                        "name the folder with them",
                    )
                yield path


def _below(top: Path, incidents: list[Path], warnings: list[Warning]) -> Iterable[Path]:
    def note(error: OSError) -> None:
        warnings.append(Warning(file=str(error.filename), what=error.strerror or str(error)))

    for folder, folders, files in os.walk(top, onerror=note):
        here = Path(folder)
        if is_incident(here):
            incidents.append(here)
            folders.clear()
            continue
        folders[:] = sorted(
            (f for f in folders if f not in _SKIPPED_FOLDERS and not f.startswith(".")),
            key=lambda name: names.natural_key(Path(name)),
        )
        paths = (here / name for name in files if not name.startswith("."))
        yield from sorted(paths, key=names.natural_key)


def _identity(path: Path, warnings: list[Warning]) -> tuple[int, int] | None:
    """Device and inode: the same file named twice, or through links, is one.

    None for a dangling link and for what is no file: opening a pipe would wait for a writer.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        warnings.append(
            Warning(file=str(path), what="is a pipe, socket or device; it is not opened")
        )
        return None
    return status.st_dev, status.st_ino


_LEADS_OUT = "text behind a link that leads out of the folder; name the file itself to have it read"


def _leads_out(path: Path, tops: list[Path]) -> bool:
    """Whether a link leads to what was not named.

    Any text counts as a log, and a log's end goes into prompts and bundles: whoever made the
    folder must not choose a file of the reader's for it.
    """
    if not path.is_symlink():
        return False
    real = os.path.realpath(path)
    return not any(Path(real).is_relative_to(os.path.realpath(top)) for top in tops)


# --- several jobs, strangers ------------------------------------------------------------------


def _refuse_several_jobs(found: list[Found]) -> None:
    """Mixing one job's dumps with another's stacks would be worse than no answer."""
    for kind in _ONE_A_RANK:
        owners: dict[int, dict[Path, None]] = defaultdict(dict)
        folders: dict[Path, None] = {}
        for one in of_kind(found, kind):
            if one.rank is not None:
                folder = _job_folder(one.path)
                owners[one.rank][folder] = folders[folder] = None
        shared = {one for some in owners.values() if len(some) > 1 for one in some}
        clashing = [folder for folder in folders if folder in shared]
        if clashing:
            shown = ", ".join(str(folder) for folder in clashing[:4])
            more = f" and {len(clashing) - 4} more" if len(clashing) > 4 else ""
            raise InputError(
                f"{len(clashing)} folders hold the same ranks, so they are different jobs",
                f"found {shown}{more}",
                f"eroica diagnose {clashing[0]}",
            )


def _job_folder(path: Path) -> Path:
    """The folder above rank and host folders."""
    folder = path.parent
    while names.is_rank_folder(folder.name) and folder != folder.parent:
        folder = folder.parent
    return folder


def _warn_of_the_rest(found: list[Found], warnings: list[Warning]) -> None:
    """A damaged file gets its own warning; strangers are counted in one."""
    warnings.extend(
        Warning(file=str(one.path), what=one.why) for one in found if one.kind == "defect"
    )
    if not of_kind(found, "timeline"):
        warnings.extend(
            Warning(file=str(one.path), what="describes a timeline that is not among the files")
            for one in of_kind(found, "timeline_meta")
        )
    others = [one for one in found if one.kind == "other"]
    if len(others) == 1:
        warnings.append(Warning(file=str(others[0].path), what=f"is not read: {others[0].why}"))
    elif others:
        reasons = Counter(one.why for one in others)
        text = "; ".join(f"{count} {why}" for why, count in reasons.most_common(6))
        warnings.append(Warning(file=None, what=f"{len(others)} files are not read: {text}"))
