"""Writes the rings of four ranks that step every 20 ms, until its parent ends."""

import os
import sys
import time

from eroica.collect.hook.ring import Ring

rings = [Ring.create(sys.argv[1], rank, 4) for rank in range(4)]
parent = os.getppid()
due = time.monotonic()
while os.getppid() == parent:
    due += 0.02
    for ring in rings:
        for kind in (1, 2, 3, 4):
            ring.record(kind)
    time.sleep(max(0.0, due - time.monotonic()))
