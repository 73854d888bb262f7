"""Trains for 400 steps and writes the times of the last 300 in ms."""

import json
import os
import sys
import time
from pathlib import Path

from model import steps

times = []
start = last = time.perf_counter()
for _ in steps(None, int(sys.argv[2])):
    now = time.perf_counter()
    times.append((now - last) * 1e3)
    last = now
    if len(times) == 400:
        break
if os.environ["RANK"] == "0":
    Path(sys.argv[1]).write_text(json.dumps(times[100:]))
