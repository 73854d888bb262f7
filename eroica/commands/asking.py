"""The glue between an incident and a language model: explanation and patch, each optional."""

from pathlib import Path

from eroica.errors import ModelError
from eroica.incident import IncidentFolder
from eroica.pipeline import Progress
from eroica.records import Incident, Patch


def explain_with_model(
    folder: IncidentFolder, model: str | None, *, progress: Progress, quiet: bool
) -> None:
    """Ask the model to explain; on any failure the rule-written text stays, with one line why."""
    raise ModelError("models are not wired yet")


def patches_from_model(
    folder: IncidentFolder, incident: Incident, root: Path, model: str | None, *, progress: Progress
) -> list[Patch]:
    """Ask the model for a patch where one is configured; otherwise return none."""
    return []
