"""A small HTTP server for the agent: threads that end with it, bounded, and no name look-ups."""

import http.server
import logging
import socketserver
import threading
from typing import Any

logger = logging.getLogger(__name__)


class PlainHandler(http.server.BaseHTTPRequestHandler):
    """Requests time out; nothing is written to stderr and no version is told."""

    timeout = 15.0
    server_version, sys_version = "eroica", ""

    def log_message(self, format: str, *args: object) -> None:
        logger.debug("%s: " + format, self.client_address[0], *args)


class PlainServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """``http.server``'s own asks the resolver for its name, which may take seconds."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[PlainHandler],
        *,
        family: int,
        max_connections: int,
    ) -> None:
        self.address_family = family
        self._room = threading.Semaphore(max_connections)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started: the room is not taken
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        logger.debug("a request failed", exc_info=True)
