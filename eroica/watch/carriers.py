"""How hosts reach each other: by HTTP, or through a shared folder where one is given."""

from typing import Protocol

from eroica.watch.exchange import Exchange, hold_s
from eroica.watch.membership import Membership
from eroica.watch.wire import Orders, Status, job_secret


class Link(Protocol):
    """A line to the host of rank 0; ``orders`` and ``heard_at`` (monotonic) are its last word."""

    orders: Orders | None
    heard_at: float | None

    def tell(self, status: Status) -> None: ...
    def send_report(self, incident: int, first_rank: int, data: bytes) -> None: ...
    def close(self) -> None: ...


class Server(Protocol):
    """What hears the other hosts; ``problem`` says why it does not."""

    problem: str | None

    def close(self) -> None: ...


def open_server(found: Membership, share: str | None, host: str) -> tuple[Exchange, Server]:
    """Begin to hear the job's other hosts. Raises InputError, MissingExtra, OSError."""
    from eroica.watch.folder_carrier import FolderServer
    from eroica.watch.http_carrier import HttpServer
    from eroica.watch.shelves import open_shelf

    key = job_secret(found.key)
    exchange = Exchange(Orders(host=host, hold_s=hold_s(found.num_hosts)))
    if share:
        return exchange, FolderServer(open_shelf(share, found.key), key, exchange)
    return exchange, HttpServer(found, key, exchange)


def open_link(found: Membership, share: str | None, status: Status) -> Link:
    """Begin to ask the host of rank 0. Raises InputError, MissingExtra, OSError."""
    from eroica.watch.folder_carrier import FolderLink
    from eroica.watch.http_carrier import HttpLink
    from eroica.watch.shelves import open_shelf

    key = job_secret(found.key)
    if share:
        return FolderLink(open_shelf(share, found.key), key, status)
    return HttpLink(found, key, status)
