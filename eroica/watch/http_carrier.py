"""Carries statuses, orders and reports between hosts by HTTP: stdlib, bounded, signed.

The agent of rank 0's host serves two paths on the address the job meets at; the others ask. An
answer to a status is held back until there are new orders, so that nobody polls in vain.
"""

import contextlib
import fcntl
import http.client
import logging
import os
import secrets
import socket
import struct
import threading
import time
from http import HTTPStatus

import msgspec

from eroica.watch.exchange import Exchange
from eroica.watch.membership import Membership
from eroica.watch.plain_server import PlainHandler, PlainServer
from eroica.watch.wire import (
    MAX_REPORT_BYTES,
    MAX_STATUS_BYTES,
    Orders,
    Status,
    digest,
    is_signed,
    sign,
)

logger = logging.getLogger(__name__)

_NUM_PORTS = 4
_FIRST_PORT, _PORT_RANGE = 20_000, 10_000
_MAX_CONNECTIONS = 4096
_SIOCGIFADDR = 0x8915
_PREFIX = "/eroica/1/"


def ports_of(key: str) -> list[int]:
    """Ports the job's agents try in turn: EROICA_PORT, else some that the job's key names."""
    given = os.environ.get("EROICA_PORT", "")
    if given.isdigit() and 0 < int(given) < 65_536:
        return [int(given)]
    first = int(key[:8], 16) % _PORT_RANGE
    return [_FIRST_PORT + (first + number) % _PORT_RANGE for number in range(_NUM_PORTS)]


# --- the host of rank 0


class _Handler(PlainHandler):
    server: "_Server"

    def do_POST(self) -> None:
        try:
            body = self._body()
            if body is not None:
                self._serve(body)
        except (OSError, TimeoutError) as error:
            logger.debug("a host's request broke off: %s", error)

    def _body(self) -> bytes | None:
        """Read the body of a request that is signed; what is not is refused unread."""
        limit = MAX_REPORT_BYTES if self.path.startswith(_PREFIX + "report") else MAX_STATUS_BYTES
        text = self.headers.get("Content-Length", "")
        nonce, _, proof = self.headers.get("Authorization", "").partition(":")
        claimed = self.headers.get("X-Digest", "")
        if not text.isdigit() or int(text) > limit:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return None
        if not nonce or not is_signed(self.server.key, proof, self.path, nonce, text, claimed):
            self._refuse(HTTPStatus.FORBIDDEN)
            return None
        body = self.rfile.read(int(text))
        if digest(body) != claimed:
            self._refuse(HTTPStatus.BAD_REQUEST)
            return None
        self.nonce = nonce
        return body

    def _refuse(self, status: HTTPStatus, text: str = "") -> None:
        self.close_connection = True
        self._send(status, text.encode(), "")

    def _serve(self, body: bytes) -> None:
        exchange, parts = self.server.exchange, self.path.removeprefix(_PREFIX).split("/")
        if parts[0] == "status" and len(parts) == 2 and parts[1].isdigit():
            try:
                status = msgspec.json.decode(body, type=Status)
            except msgspec.DecodeError as error:
                return self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            exchange.take_status(status)
            orders = exchange.wait_orders(status.first_rank, int(parts[1]), exchange.orders.hold_s)
            return self._send(HTTPStatus.OK, msgspec.json.encode(orders), self.nonce)
        if parts[0] == "report" and len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
            problem = exchange.take_report(int(parts[1]), int(parts[2]), body)
            if problem is None:
                return self._send(HTTPStatus.OK, b"", self.nonce)
            return self._refuse(HTTPStatus.CONFLICT, problem)
        return self._refuse(HTTPStatus.NOT_FOUND)

    def _send(self, status: HTTPStatus, body: bytes, nonce: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if nonce:
            self.send_header("X-Proof", sign(self.server.key, "answer", nonce, digest(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(PlainServer):
    key: bytes
    exchange: Exchange


class HttpServer:
    """Serves an exchange; ``problem`` says why where that cannot be."""

    def __init__(self, membership: Membership, key: bytes, exchange: Exchange) -> None:
        self.membership, self.key, self.exchange = membership, key, exchange
        self.problem: str | None = None
        self.address: tuple[str, int] | None = None
        self._server: _Server | None = None
        self._is_closed = False
        # A name may take the resolver seconds: the loop does not wait for it.
        self._thread = threading.Thread(target=self._run, name="eroica-hosts", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            server = self._bind()
        except OSError as error:
            self.problem = f"cannot listen for the job's other hosts: {error}"
            logger.warning("%s", self.problem)
            return
        self._server, self.address = server, server.server_address[:2]  # type: ignore[assignment]
        logger.info("the job's other hosts are heard at %s", self.address)
        with server:
            if not self._is_closed:
                server.serve_forever(poll_interval=0.5)

    def _bind(self) -> _Server:
        problem: OSError | None = None
        for family, host in own_addresses(self.membership):
            for port in ports_of(self.membership.key):
                try:
                    server = _Server(
                        (host, port), _Handler, family=family, max_connections=_MAX_CONNECTIONS
                    )
                except OSError as error:
                    problem = error
                    continue
                server.key, server.exchange = self.key, self.exchange
                return server
        raise problem or OSError(f"{self.membership.address} is no address of this host")

    def close(self) -> None:
        self._is_closed = True
        self.exchange.close()
        if self._server is not None:
            self._server.shutdown()
        self._thread.join(3)


def own_addresses(membership: Membership) -> list[tuple[int, str]]:
    """Addresses of this host to listen on, best first: the job's, never all of them.

    A name that means loopback here (as in Debian's /etc/hosts) means something else elsewhere.
    """
    name = membership.address
    found: list[tuple[int, str]] = []
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
            is_loopback = str(address[0]).startswith(("127.", "::1"))
            is_meant = name == "localhost" or name == address[0]
            if not is_loopback or is_meant:
                found.append((int(family), str(address[0])))
    found += [(int(socket.AF_INET), one) for one in map(_address_of, membership.interfaces) if one]
    if not found and (way_out := _way_out()):
        found.append((int(socket.AF_INET), way_out))
    return list(dict.fromkeys(found))


def _way_out() -> str | None:
    """The address this host is seen by; nothing is sent, the kernel is asked for its route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return None


def _address_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, packed)[20:24])
        except OSError:
            return None


# --- the other hosts


class HttpLink:
    """One host's line to the host of rank 0; it is tried again for as long as the job lives."""

    def __init__(self, membership: Membership, key: bytes, status: Status) -> None:
        self.address, self.key = membership.address, key
        self.orders: Orders | None = None
        self.heard_at: float | None = None
        self._ports = ports_of(membership.key)
        self._status = status
        self._news = threading.Event()
        self._is_closed = False
        for target, name in ((self._listen, "listen"), (self._speak, "speak")):
            threading.Thread(target=target, name=f"eroica-{name}", daemon=True).start()

    def tell(self, status: Status) -> None:
        """Have a changed status sent, at once and beside the loop."""
        self._status = status
        self._news.set()

    def send_report(self, incident: int, first_rank: int, data: bytes) -> None:
        """Send a report; OSError where it does not get through."""
        self._ask(f"report/{incident}/{first_rank}", data, 30.0)

    def _listen(self) -> None:
        pause_s = 0.25
        while not self._is_closed:
            after, hold = (self.orders.sequence, self.orders.hold_s) if self.orders else (0, 0.0)
            try:
                self._exchange(after, hold + 5.0)
                pause_s = 0.25
            except (OSError, msgspec.DecodeError) as error:
                logger.debug("the host of rank 0: %s", error)
                self._ports = [*self._ports[1:], self._ports[0]]
                time.sleep(pause_s)
                pause_s = min(2.0, 1.5 * pause_s)

    def _speak(self) -> None:
        while not self._is_closed:
            self._news.wait(60.0)
            if self._is_closed or not self._news.is_set() or self.orders is None:
                self._news.clear()  # the listener brings it with the first words
                continue
            self._news.clear()
            try:
                self._exchange(0, 3.0)
            except (OSError, msgspec.DecodeError) as error:
                logger.debug("telling the host of rank 0: %s", error)

    def _exchange(self, after: int, limit_s: float) -> None:
        body = msgspec.json.encode(self._status)
        answer = self._ask(f"status/{after}", body, limit_s)
        orders = msgspec.json.decode(answer, type=Orders)
        self.heard_at = time.monotonic()
        if self.orders is None or orders.sequence >= self.orders.sequence:
            self.orders = orders

    def _ask(self, path: str, body: bytes, limit_s: float) -> bytes:
        """POST; the answer counts only with the proof that it is from who knows the key."""
        nonce = secrets.token_hex(16)
        claimed = digest(body)
        proof = sign(self.key, _PREFIX + path, nonce, len(body), claimed)
        headers = {"Authorization": f"{nonce}:{proof}", "X-Digest": claimed}
        connection = http.client.HTTPConnection(self.address, self._ports[0], timeout=limit_s)
        try:
            connection.request("POST", _PREFIX + path, body, headers)
            response = connection.getresponse()
            answer = response.read(MAX_STATUS_BYTES)
            proof = response.headers.get("X-Proof", "")
        except http.client.HTTPException as error:
            raise OSError(f"whoever answers at this port speaks no HTTP: {error!r}") from error
        finally:
            connection.close()
        if response.status != HTTPStatus.OK:
            raise OSError(f"{response.status} {response.reason}: {answer[:200].decode('latin-1')}")
        if not is_signed(self.key, proof, "answer", nonce, digest(answer)):
            raise OSError("whoever answers at this port does not know the job's key")
        return answer

    def close(self) -> None:
        self._is_closed = True
        self._news.set()
