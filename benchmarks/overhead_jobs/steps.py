"""Trains until a file ``over`` lies in the folder; writes (begin, length) of rank 0's steps."""

import json
import os
import sys
import time
from array import array
from pathlib import Path

from model import steps

folder, out, width = sys.argv[1:4]
found = array("q")  # of little weight: what grows is to be the watch's
begin = time.monotonic_ns()
for number, _ in enumerate(steps(folder, int(width))):
    now = time.monotonic_ns()
    found.extend((begin, now - begin))
    begin = now
    if number % 20 == 0 and (Path(folder) / "over").exists():
        break
if os.environ["RANK"] == "0":
    Path(out).write_text(json.dumps(list(zip(found[::2], found[1::2], strict=True))))
os._exit(0)  # its peers may wait for a step that never comes
