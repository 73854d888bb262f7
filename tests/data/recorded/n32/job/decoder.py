"""Reads record numbers on stdin, writes one line of numbers for each on stdout."""
import math
import sys

for line in sys.stdin:
    seed = int(line)
    values = []
    for i in range(32):
        value = math.sin(seed * 0.37 + i * 0.11) * 3
        if abs(value) > 2.2 and seed >= 4500:
            sys.stderr.write(f"record {seed}: sample {i} = {value:.3f} outside of the calibrated range, clipped\n")
            value = math.copysign(2.2, value)
        values.append(value)
    print(*(f"{v:.5f}" for v in values), flush=True)
