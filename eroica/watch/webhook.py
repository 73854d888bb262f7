"""Tells a web address of an incident: its summary as JSON, without source, paths or secrets.

The flag that names the address is the consent. Sending is beside the watch, with bounded tries;
the address itself may be a secret (chats put a key into it) and is never logged.
"""

import http.client
import json
import logging
import queue
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from eroica.errors import InputError
from eroica.explain.privacy import redact, redact_all
from eroica.records import Cause, Incident

logger = logging.getLogger(__name__)

_TRIES = 3
_PAUSES_S = (1.0, 4.0)
_LIMIT_S = 5.0
_MAX_CAUSES, _MAX_WARNINGS = 5, 10
_PATH = re.compile(
    r"(?<![\w:/.])(?:(?:~|\.{1,2})?/(?:[\w.@+\[\]-]+/)*([\w.@+\[\]-]+)"  # from a root, or
    r"|(?:[\w.@+\[\]-]+/)+([\w@+-]+\.\w{1,5}\b))"  # down to a file: no "3 GB/s"
)


def check_url(url: str) -> str:
    """Return the URL; InputError where it is none that can be posted to."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            "--webhook is no web address",
            "expected http://... or https://...",
            "eroica run --webhook https://HOST/PATH -- CMD",
        )
    return url


def summary(incident: Incident) -> dict[str, Any]:
    """Return what is sent. ``text`` is one line for chats; paths shrink to their last part."""
    job = incident.job
    found = {
        "schema": 1,
        "text": f"{incident.symptom.upper()} {incident.headline} (eroica {incident.id})",
        "id": incident.id,
        "symptom": incident.symptom,
        "onset": incident.onset,
        "created": incident.created,
        "headline": incident.headline,
        "job": {
            "world_size": job.world_size,
            "num_ranks": len(job.ranks),
            "missing_ranks": list(job.missing_ranks[:64]),
            "hosts": sorted(job.hosts)[:64],
            "backend": job.backend,
            "step_ms": {"before": job.step_ms.before, "now": job.step_ms.now},
        },
        "causes": [_cause(cause) for cause in incident.causes[:_MAX_CAUSES]],
        "warnings": [warning.what for warning in incident.warnings[:_MAX_WARNINGS]],
    }
    cleaned: dict[str, Any] = redact_all(found, _without_paths)
    return cleaned


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "category": cause.category,
        "ranks": cause.ranks if cause.ranks == "all" else list(cause.ranks),
        "hosts": list(cause.hosts),
        "functions": [place.name for place in cause.functions],
        "share": cause.share,
        "confidence": cause.confidence,
        "summary": cause.summary,
        "action": cause.action,
        "advice": cause.advice,
    }


def _without_paths(text: str) -> str:
    return _PATH.sub(lambda found: found[1] or found[2], redact(text))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer that sends us elsewhere is a failure: nobody consented to that address."""

    def redirect_request(self, *args: object, **options: object) -> None:
        return None


def post(
    url: str, body: bytes, *, sleep: Callable[[float], object] = time.sleep, tries: int = _TRIES
) -> str | None:
    """POST JSON; return None, or why it did not arrive. Tried again where that may help."""
    opener = urllib.request.build_opener(_NoRedirect)
    problem = "not tried"
    for number in range(tries):
        if number:
            sleep(_PAUSES_S[min(number, len(_PAUSES_S)) - 1])
        headers = {"Content-Type": "application/json", "User-Agent": "eroica"}
        request = urllib.request.Request(url, body, headers, method="POST")
        try:
            with opener.open(request, timeout=_LIMIT_S):
                return None
        except urllib.error.HTTPError as error:
            error.close()
            problem = f"it answered {error.code}"
            if error.code < 500 and error.code not in (408, 429):
                return problem
        except (OSError, ValueError) as error:  # URLError is an OSError
            problem = type(error).__name__ + f": {getattr(error, 'reason', error)}"
        except http.client.HTTPException as error:  # what it says may hold the address
            problem = type(error).__name__
    return f"{problem}, {tries} times"


class Webhook:
    """Sends incidents one after another from a thread of its own."""

    def __init__(self, url: str, note: Callable[[str], None]) -> None:
        self._url, self._note = check_url(url), note
        self._waiting: queue.Queue[Incident | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="eroica-webhook", daemon=True)
        self._thread.start()

    def send(self, incident: Incident) -> None:
        self._waiting.put(incident)

    def _run(self) -> None:
        while (incident := self._waiting.get()) is not None:
            problem = self._tell(incident)
            if problem is not None:
                host = urllib.parse.urlsplit(self._url).hostname
                self._note(f"--webhook: {incident.id} did not reach {host}: {problem}")

    def _tell(self, incident: Incident) -> str | None:
        """Send one; why it did not arrive. A fault must not end the telling of those to come."""
        try:
            body = json.dumps(summary(incident)).encode()
        except Exception as error:
            logger.exception("telling %s", incident.id)
            return repr(error)
        try:
            return post(self._url, body)
        except Exception as error:  # its text may hold the address
            return type(error).__name__

    def close(self) -> None:
        """Wait for what is still to be sent, at most as long as its tries may take."""
        self._waiting.put(None)
        self._thread.join(_TRIES * _LIMIT_S + sum(_PAUSES_S))
