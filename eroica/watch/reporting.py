"""The end of an incident over hosts: reports are awaited and joined, or sent and answered."""

import time
from collections.abc import Callable, Sequence

import msgspec

from eroica.records import Warning
from eroica.watch.carriers import Link
from eroica.watch.exchange import Exchange
from eroica.watch.joining import join_reports, make_report
from eroica.watch.membership import Membership
from eroica.watch.result import WatchResult
from eroica.watch.wire import VerdictPlace, encode_report

_REPORT_S = 40.0
_VERDICT_S = 90.0
_TICK_S = 0.05

Wait = Callable[[], None]


def wait_for(is_met: Callable[[], bool], limit_s: float, wait: Wait = lambda: None) -> bool:
    """Wait until it is so, calling ``wait`` meanwhile; False at the limit."""
    until = time.monotonic() + limit_s
    while not is_met():
        if time.monotonic() > until:
            return False
        wait()
        time.sleep(_TICK_S)
    return True


def collect_reports(
    result: WatchResult,
    exchange: Exchange,
    membership: Membership,
    *,
    host: str,
    problems: Sequence[str],
    wait: Wait,
) -> None:
    """Await the reports of the hosts that are heard, and add them to this host's result."""
    number = exchange.orders.incident

    def has_all() -> bool:
        living = {one.first_rank for one in exchange.living(time.monotonic())}
        return all((number, rank) in exchange.reports for rank in living)

    wait_for(has_all, _REPORT_S, wait)
    with exchange.changed:
        found = {key[1]: data for key, data in exchange.reports.items() if key[0] == number}
        for rank in found:  # that it came is asked for until the next incident; it is read here
            exchange.reports[number, rank] = b""
        absent = [one.status for rank, one in exchange.heard.items() if rank not in found]
    living = {one.first_rank for one in exchange.living(time.monotonic())}
    join_reports(
        result,
        [found[rank] for rank in sorted(found)],
        host=host,
        membership=membership,
        lost=[one for one in absent if one.first_rank not in living],
        late=[one for one in absent if one.first_rank in living],
        problems=problems,
    )


def send_report(
    result: WatchResult,
    link: Link,
    membership: Membership,
    *,
    host: str,
    is_alone: Callable[[], bool],
    wait: Wait,
) -> VerdictPlace | None:
    """Report to the host of rank 0 and return where its verdict is.

    None where it has no part: then ``result`` is of this host only, and says so.
    """
    number = max(1, link.orders.incident if link.orders is not None else 1)

    def is_told() -> bool:
        return link.orders is not None and link.orders.verdict_of >= number

    why = "it is not heard"
    if not is_alone():
        report = make_report(result, number, membership.first_rank, host)
        try:
            link.send_report(number, membership.first_rank, encode_report(report))
        except OSError as error:
            why = str(error)
        else:
            wait_for(lambda: is_told() or is_alone(), _VERDICT_S, wait)
            if is_told() and link.orders is not None:
                return link.orders.verdict
            why = "it took the report but named no verdict"
    warn(result, [f"of this host only: rank 0's host, {membership.address}, has no part ({why})"])
    world_size = max(result.evidence.world_size, membership.world_size)
    result.evidence = msgspec.structs.replace(result.evidence, world_size=world_size)
    return None


def warn(result: WatchResult, texts: Sequence[str]) -> None:
    """Add warnings to a result's evidence."""
    more = tuple(Warning(file=None, what=text.replace("\n", "; ")) for text in texts)
    warnings = (*result.evidence.warnings, *more)
    result.evidence = msgspec.structs.replace(result.evidence, warnings=warnings)
