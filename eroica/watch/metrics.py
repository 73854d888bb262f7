"""What the agent knows of a job, for Prometheus: text exposition format 0.0.4 on a port.

Loopback unless an address is given; read only. The loop notes its numbers, a scrape only prints.
"""

import logging
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from eroica.errors import InputError
from eroica.records import Incident
from eroica.watch.plain_server import PlainHandler, PlainServer

logger = logging.getLogger(__name__)

STATES = ("starting", "training", "slow", "stuck", "failed", "ended")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MAX_CONNECTIONS = 16


@dataclass
class Metrics:
    """Numbers of one watch; written by its loop and read by scrapes."""

    state: str = "starting"
    step_s: float | None = None
    """Mean of the last steps."""
    best_step_s: float | None = None
    num_steps: int = 0
    ranks_alive: int = 0
    world_size: int = 0
    restarts: int = 0
    missing_hosts: tuple[str, ...] = ()
    incidents: dict[str, int] = field(default_factory=dict)
    """Symptom to how often it was told."""
    last: Incident | None = None
    last_at: float = 0.0
    """Unix time."""

    def note_incident(self, incident: Incident) -> None:
        self.incidents[incident.symptom] = self.incidents.get(incident.symptom, 0) + 1
        self.last, self.last_at = incident, time.time()

    def render(self) -> str:
        """Return the exposition; families without a value are left out."""
        states = {state: float(state == self.state) for state in STATES}
        told = dict(self.incidents)  # the loop may add to them meanwhile
        lines = [
            *_family("eroica_state", "gauge", "1 for the state the job is in.", "state", states),
            *_value("eroica_step_seconds", "Mean time of the last steps.", self.step_s),
            *_value("eroica_best_step_seconds", "Best recent mean step.", self.best_step_s),
            *_value("eroica_steps_total", "Steps seen.", self.num_steps, "counter"),
            *_value("eroica_ranks_alive", "Living ranks on this host.", self.ranks_alive),
            *_value("eroica_world_size", "Ranks of the job.", self.world_size),
            *_value("eroica_restarts_total", "Restarts of ranks.", self.restarts, "counter"),
            *_value("eroica_hosts_missing", "Hosts that fell silent.", len(self.missing_hosts)),
            *_family(
                "eroica_host_missing",
                "gauge",
                "1 for each host that fell silent.",
                "host",
                dict.fromkeys(self.missing_hosts, 1.0),
            ),
            *_family("eroica_incidents_total", "counter", "Incidents told.", "symptom", told),
        ]
        if self.last is not None:
            labels = {
                "id": self.last.id,
                "symptom": self.last.symptom,
                "category": self.last.causes[0].category if self.last.causes else "",
            }
            lines += _head("eroica_last_incident_info", "gauge", "The last incident.")
            lines.append(f"eroica_last_incident_info{_labels(labels)} 1")
            name = "eroica_last_incident_timestamp_seconds"
            lines += _value(name, "Unix time of the last incident.", self.last_at)
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]


def _value(name: str, help_text: str, value: float | None, kind: str = "gauge") -> list[str]:
    return [] if value is None else [*_head(name, kind, help_text), f"{name} {value!r}"]


def _family(
    name: str, kind: str, help_text: str, label: str, values: Mapping[str, float]
) -> Iterable[str]:
    if not values:
        return []
    rows = [f"{name}{_labels({label: key})} {value!r}" for key, value in values.items()]
    return [*_head(name, kind, help_text), *rows]


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _Handler(PlainHandler):
    server: "_Server"

    def do_GET(self) -> None:
        is_known = self.path.split("?")[0] == "/metrics"
        text = self.server.metrics.render() if is_known else "metrics are at /metrics\n"
        body = text.encode()
        self.send_response(HTTPStatus.OK if is_known else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(PlainServer):
    metrics: Metrics


class MetricsServer:
    """Serves metrics until closed. Raises InputError where the port cannot be had."""

    def __init__(self, metrics: Metrics, where: str) -> None:
        host, port = parse_address(where)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._server = _Server(
                (host, port), _Handler, family=family, max_connections=_MAX_CONNECTIONS
            )
        except OSError as error:
            raise InputError(
                f"--metrics-port {where} cannot be used", str(error), "name another port"
            ) from error
        self._server.metrics = metrics
        self.address: tuple[str, int] = self._server.server_address[:2]  # type: ignore[assignment]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.5,), name="eroica-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2)


def parse_address(where: str) -> tuple[str, int]:
    """Return host and port of ``PORT`` (loopback) or ``HOST:PORT``; InputError for other text."""
    host, _, port = where.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise InputError(
            f"--metrics-port {where!r} is no port",
            "expected PORT or HOST:PORT",
            "eroica run --metrics-port 9464 -- CMD",
        )
    return host.strip("[]") or "127.0.0.1", int(port)
