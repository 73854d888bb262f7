"""IO002 Give a blocking call a time-out.

## What it does
Adds `timeout=` to calls that take one and wait without end by default: HTTP requests, `urlopen`,
child processes, results of futures, connections to databases.

## Why it hurts
One answer that never comes stops the rank, and the job with it, without a message.

## When it is wrong
The call may rightly take longer than the limit: raise it.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, argument, code, dotted, last_name

CODE = "IO002"
ANSWERS = frozenset({"blocked_io", "polling_wait", "thread_lock_deadlock"})
LABEL = "review"
TIMEOUT_S = 60
FIXES = (
    Example(
        category="blocked_io",
        before="""\
import requests

def fetch(url):
    return requests.get(url).content  # <-- here
""",
        after="""\
import requests

def fetch(url):
    return requests.get(url, timeout=60).content
""",
    ),
    Example(
        category="blocked_io",
        before="""\
from concurrent.futures import ThreadPoolExecutor
from redis import Redis

def lengths(pool: ThreadPoolExecutor, paths):
    futures = [pool.submit(len, path) for path in paths]
    return [future.result() for future in futures]  # <-- here
""",
        after="""\
from concurrent.futures import ThreadPoolExecutor
from redis import Redis

def lengths(pool: ThreadPoolExecutor, paths):
    futures = [pool.submit(len, path) for path in paths]
    return [future.result(timeout=60) for future in futures]
""",
    ),
    Example(
        category="blocked_io",
        before="""\
from redis import Redis

def connect(host):
    return Redis(host, decode_responses=True)  # <-- here
""",
        after="""\
from redis import Redis

def connect(host):
    return Redis(host, decode_responses=True, socket_timeout=60)
""",
    ),
)
KEEPS = (
    Example(
        category="blocked_io",
        before="""\
import socket

def reach(address, options):
    socket.create_connection(address, 5)  # <-- here
    return socket.create_connection(address, **options)
""",
    ),
    Example(
        category="blocked_io",
        before="""\
import requests

def fetch(url):
    return requests.get(url, timeout=5).content  # <-- here
""",
    ),
)
# Calls that wait without end unless told otherwise: what the limit is called, where it may stand.
_WAITING = {
    r"requests\.(?:get|post|put|patch|head|options|delete|request)": ("timeout", None),
    r"urllib\.request\.urlopen": ("timeout", 2),
    r"subprocess\.(?:run|call|check_call|check_output)": ("timeout", None),
    r"socket\.create_connection": ("timeout", 1),
    r"concurrent\.futures\.(?:wait|as_completed)": ("timeout", 1),
    r"http\.client\.HTTPS?Connection": ("timeout", 2),
    r"smtplib\.SMTP(?:_SSL)?|ftplib\.FTP": ("timeout", None),
    r"redis\.(?:Strict)?Redis(?:\.from_url)?": ("socket_timeout", None),
    r"psycopg2?\.connect|pymysql\.connect": ("connect_timeout", None),
}
_REQUESTS = frozenset({"get", "post", "put", "patch", "head", "options", "delete", "request"})
_METHODS = {"communicate": "subprocess", "result": "concurrent.futures"}
"""Methods without arguments, and what a file imports whose objects have them."""


def fix(context: Context) -> FixerResult | None:
    """Add the argument; None where no such call lacks one."""
    for source, call in context.every(cst.Call, 0.6):
        keyword = _limit_of(source, call)
        if not keyword:
            continue
        edits = Edits(source)
        edits.set_argument(call, keyword, str(TIMEOUT_S))
        return context.result(
            edits,
            why=f"{source.path}:{source.line(call)} `{code(call.func)}` waits without end.",
            behaviour=f"After {TIMEOUT_S} s the call raises, and the rank fails with a message.",
            score=0.6 * context.closeness(source, call),
        )
    return None


def _limit_of(source: Source, call: cst.Call) -> str:
    """The argument that bounds a call which has no bound; empty for any other."""
    name = source.full_name(call.func)
    for rule, (keyword, position) in _WAITING.items():
        if re.fullmatch(rule, name):
            return keyword if _is_missing(call, keyword, position) else ""
    last = last_name(call.func)
    if last in _REQUESTS and _is_session(source, call):
        return "timeout" if _is_missing(call, "timeout", None) else ""
    is_method = isinstance(call.func, cst.Attribute) and source.uses(_METHODS.get(last, "-"))
    return "timeout" if is_method and not call.args else ""


def _is_session(source: Source, call: cst.Call) -> bool:
    """``self.session.get(url)`` of a session that the file makes."""
    owner = dotted(call.func).rpartition(".")[0]
    made = [value for target, value, _ in source.assignments() if target == owner]
    return any(
        source.full_name(getattr(value, "func", None)).lower() == "requests.session"
        for value in made
    )


def _is_missing(call: cst.Call, keyword: str, position: int | None) -> bool:
    """Not given, or given as None; what ``**options`` hold nobody knows."""
    given = argument(call, keyword, position)
    if given is not None:
        return given.keyword is not None and code(given.value) == "None"
    return not any(arg.star for arg in call.args)
