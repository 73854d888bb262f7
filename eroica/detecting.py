"""Is the cause gone? The patched job is watched as the first one was, and asked for the same."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from eroica.fix.rehearse import Detector
from eroica.fix.watchdog import Watcher, run_bounded
from eroica.incident import IncidentFolder
from eroica.records import FAMILY, Cause, Incident

log = logging.getLogger(__name__)
LIMIT_S = 180.0  # a watched run of a job that ended by itself before


def detector_for(incident: Incident, *, limit_s: float = LIMIT_S) -> Detector | None:
    """Return what looks for the first cause of a slow job again; None where there is none.

    A stuck job needs no second look: it gets through, or it does not.
    """
    if incident.symptom != "slow" or not incident.causes:
        return None
    first = incident.causes[0]

    def look(
        words: Sequence[str], folder: Path, environment: dict[str, str], watcher: Watcher
    ) -> str | None:
        home = folder / ".eroica-rehearsal"
        command = [sys.executable, "-m", "eroica", "run", "--once", "--json", "--", *words]
        given = {**environment, "EROICA_HOME": str(home)}
        run_bounded(command, folder, limit_s, given, watcher)
        seen = newest_incident(home / "incidents")
        if seen is None:
            log.warning("the patched job could not be watched again")
            return None
        return still_said(first, seen)

    return look


def newest_incident(root: Path) -> Incident | None:
    """Return the incident that was written last below a folder."""
    files = sorted(root.glob("*/incident.json"), key=lambda path: path.stat().st_mtime)
    if not files:
        return None
    return IncidentFolder(files[-1].parent).read_incident()


def still_said(first: Cause, seen: Incident) -> str:
    """Return the cause of the same family that the second look names, in words; empty if none."""
    family = FAMILY.get(first.category, first.category)
    for cause in seen.causes:
        if FAMILY.get(cause.category, cause.category) == family:
            share = f", {cause.share:.0%} of the step" if cause.share is not None else ""
            ranks = "all ranks" if cause.ranks == "all" else f"ranks {list(cause.ranks)}"
            return f"{cause.category} ({ranks}{share})"
    return ""
