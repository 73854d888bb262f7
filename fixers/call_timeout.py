"""IO002 Give a blocking call a time-out.

## What it does
Adds `timeout=` to calls that take one and wait without end by default: HTTP requests, `urlopen`,
child processes, queue and future results, thread joins.

## Why it hurts
One answer that never comes stops the rank, and the job with it, without a message.

## When it is wrong
The call may rightly take longer than the limit: raise it.
"""

import re

import libcst as cst

from eroica.fix.context import Context, Example, FixerResult
from eroica.fix.edits import Edits
from eroica.fix.tree import Source, argument, code, find

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
)
KEEPS = (
    Example(
        category="blocked_io",
        before="""\
import requests

def fetch(url):
    return requests.get(url, timeout=5).content  # <-- here
""",
    ),
)
_FULL = re.compile(
    r"requests\.(get|post|put|head|delete|request)|httpx\.\w+|urllib\.request\.urlopen"
    r"|subprocess\.(run|call|check_call|check_output)|socket\.create_connection|concurrent\.futures\.wait"
    r"|http\.client\.HTTPS?Connection|ftplib\.FTP|smtplib\.SMTP|redis\.Redis|psycopg2\.connect"
)
_METHODS = frozenset({"communicate", "result"})


def fix(context: Context) -> FixerResult | None:
    """Add the argument; None where no such call lacks one."""
    for source, call in context.every(cst.Call, 0.6):
        if not _waits(source, call) or argument(call, "timeout") is not None:
            continue
        edits = Edits(source)
        edits.set_argument(call, "timeout", str(TIMEOUT_S))
        return context.result(
            edits,
            why=f"{source.path}:{source.line(call)} `{code(call.func)}` waits without end.",
            behaviour=f"After {TIMEOUT_S} s the call raises, and the rank fails with a message.",
            score=0.6 * context.closeness(source, call),
        )
    return None


def _waits(source: Source, call: cst.Call) -> bool:
    if _FULL.fullmatch(source.full_name(call.func)):
        return True
    return (
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in _METHODS
        and not call.args
        and "subprocess" in source.text + "futures"
        and any(True for _ in find(call.func, cst.Name))
    )
