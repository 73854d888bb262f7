"""Who is told of an incident: the job's other hosts, a command, a web address, the metrics."""

import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from eroica.errors import InputError
from eroica.incident import IncidentFolder
from eroica.records import Incident
from eroica.watch.metrics import Metrics, MetricsServer
from eroica.watch.result import WatchResult
from eroica.watch.webhook import Webhook
from eroica.watch.wire import VerdictPlace

logger = logging.getLogger(__name__)


class Telling:
    """Tells of incidents until closed. Raises InputError for an address that cannot be used."""

    def __init__(
        self,
        *,
        on_incident: Sequence[str] = (),
        webhook: str | None = None,
        metrics_port: str | None = None,
        note: Callable[[str], None] = lambda text: logger.warning("%s", text),
    ) -> None:
        self.note = note
        self.metrics = Metrics()
        self._command = list(on_incident)
        self._started: list[subprocess.Popen[bytes]] = []
        self._webhook = Webhook(webhook, note) if webhook else None
        self._server = MetricsServer(self.metrics, metrics_port) if metrics_port else None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "Telling":
        """Return what the environment asks for: EROICA_ON_INCIDENT, _WEBHOOK, _METRICS_PORT."""
        try:
            return cls(
                on_incident=shlex.split(given.get("EROICA_ON_INCIDENT", "")),
                webhook=given.get("EROICA_WEBHOOK"),
                metrics_port=given.get("EROICA_METRICS_PORT"),
            )
        except (InputError, ValueError) as error:
            logger.warning("incidents go to the incident store only: %s", error)
            return cls()

    @property
    def address(self) -> str | None:
        """Where the metrics are; None where nobody asked for them."""
        if self._server is None:
            return None
        host, port = self._server.address
        return f"http://{host}:{port}/metrics"

    def tell(self, result: WatchResult, folder: IncidentFolder) -> None:
        """Tell of an incident; whoever cannot be reached is noted, nothing more."""
        incident = folder.read_incident()
        if result.team is not None:
            result.team.tell_verdict(_place(folder, incident))
        self.metrics.note_incident(incident)
        if incident.symptom not in ("slow", "stuck", "failed"):
            return
        if self._webhook is not None:
            self._webhook.send(incident)
        if self._command:
            self._start_command(folder)

    def _start_command(self, folder: IncidentFolder) -> None:
        self._started = [one for one in self._started if one.poll() is None]
        try:
            process = subprocess.Popen(
                [*self._command, folder.id],
                env=os.environ | {"EROICA_INCIDENT": str(folder.path.resolve())},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
            )
        except OSError as error:
            self.note(f"--on-incident failed: {error}")
        else:
            self._started.append(process)

    def close(self) -> None:
        """End the server; what is still to be sent is waited for, within its limits."""
        if self._webhook is not None:
            self._webhook.close()
        if self._server is not None:
            self._server.close()


def _place(folder: IncidentFolder, incident: Incident) -> VerdictPlace:
    return VerdictPlace(
        host="",
        id=folder.id,
        path=str(folder.path.resolve()),
        symptom=incident.symptom,
        headline=incident.headline,
    )
