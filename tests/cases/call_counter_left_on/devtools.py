"""Small helpers for developers."""
import collections
import os
import sys

CALLS = collections.Counter()


def _count(frame, event, arg):
    if event == "call":
        code = frame.f_code
        CALLS[f"{os.path.basename(code.co_filename)}:{code.co_name}"] += 1


def setup(count_calls=os.environ.get("COUNT_CALLS", "1") == "1"):
    if count_calls:
        sys.setprofile(_count)
