"""Measures the pace of the cases: fills in case.json what says null, or all of it with --again.

    python benchmarks/measure_cases.py                 cases of tests/cases that lack a figure
    python benchmarks/measure_cases.py --only tracker --again

Runs fixed.py, then train.py, each in a copy of the folder, one after the other. healthy_iter_ms
and faulty_iter_ms are median milliseconds of an iteration as the programs print it after their
first report; a stuck program prints none, there they are taken from when its lines came.
seconds_to_symptom is the time to the last line of progress (stuck) or the first slow report. Run it
alone on the machine, and more than once: what differs by more than a tenth is not to be kept.
"""

import argparse
import itertools
import json
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from cases import ROOT, adopt_orphans, copy_of, end_leftovers
from judging import PACE
from today import Job

SILENT_S = 12.0  # the longest pause of a program that is not stuck
STEP = re.compile(r"\b(?:step|iter)\D{0,3}(\d+)")


class Timed(Job):
    """A job whose lines are kept with the second they came at."""

    def __init__(self, case, folder):
        self.start, self.times = time.monotonic(), []
        super().__init__(case, folder, {})

    def take(self, line):
        super().take(line)
        self.times.append((self.last - self.start, line))

    def pace(self):
        """Median milliseconds of an iteration: as printed, else from the steps' own times."""
        printed = [float(t) for _, line in self.times for t in PACE.findall(line)]
        if printed:
            return round(statistics.median(printed[1:] or printed), 1)
        marks = [(at, int(m[1])) for at, line in self.times if (m := STEP.search(line))]
        steps = [
            (b[0] - a[0]) / (b[1] - a[1]) * 1e3 for a, b in itertools.pairwise(marks) if b[1] > a[1]
        ]
        return round(statistics.median(steps[1:] or steps), 1) if steps else None


def measured(case, folder, scratch, limit_s, program):
    told = dict(case, run=case["run"].replace("train.py", program))
    job = Timed(told, copy_of(folder, scratch, with_truth=True))
    job.wait(limit_s, SILENT_S)
    status = job.process.poll()
    end_leftovers(0)
    return job, status


def measure(path, scratch, limit_s):
    """Returns what is to be changed in case.json, and a line for a person."""
    case, folder = json.loads(path.read_text()), path.parent
    program = "train.py" if case["symptom"] == "healthy" else "fixed.py"
    good, status = measured(case, folder, scratch, limit_s, program)
    if status != 0:
        return {}, f"{program} ended with {status}: not measured"
    new = {"healthy_iter_ms": good.pace()}
    if case["symptom"] == "healthy":
        return new, f"{new['healthy_iter_ms']} ms"
    bad, status = measured(case, folder, scratch, limit_s, "train.py")
    if not bad.times:
        return {}, "train.py printed nothing: not measured"
    if case["symptom"] == "slow":
        new["faulty_iter_ms"] = bad.pace()
        first = next((at for at, line in bad.times if PACE.search(line)), bad.times[0][0])
        new["seconds_to_symptom"] = round(first, 1)
        if not new["faulty_iter_ms"] or not new["healthy_iter_ms"]:
            return {}, "no pace was printed: not measured"
        ratio = new["faulty_iter_ms"] / new["healthy_iter_ms"]
        weak = "" if ratio >= 1.6 else "  WEAK: less than 1.6 times"
        return new, f"{new['healthy_iter_ms']} -> {new['faulty_iter_ms']} ms, {ratio:.1f} x{weak}"
    if status is not None:
        return {}, f"train.py ended with {status} and is not stuck: not measured"
    new["seconds_to_symptom"] = round(bad.times[-1][0], 1)
    return new, f"silent after {new['seconds_to_symptom']} s, {new['healthy_iter_ms']} ms before"


def lacks(case):
    wanted = ["healthy_iter_ms"] + (["faulty_iter_ms"] if case["symptom"] == "slow" else [])
    return any(case.get(key) is None for key in wanted)


def main():
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--dir", type=Path, default=ROOT / "tests/cases")
    options.add_argument("--only", default="", help="part of a case's name")
    options.add_argument("--again", action="store_true", help="also those that have their figures")
    options.add_argument("--limit", type=float, default=90, help="seconds for one run")
    options.add_argument("--dry-run", action="store_true", help="print, and change no file")
    asked = options.parse_args()
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="eroica-measure-") as scratch:
        for path in sorted(asked.dir.glob("*/case.json")):
            case = json.loads(path.read_text())
            if asked.only not in path.parent.name or not (asked.again or lacks(case)):
                continue
            try:
                new, said = measure(path, Path(scratch), asked.limit)
            except (OSError, subprocess.SubprocessError) as error:
                new, said = {}, f"not measured: {error}"
            print(f"{path.parent.name:36} {said}", flush=True)
            if new and not asked.dry_run:
                path.write_text(json.dumps(case | new, indent=1) + "\n")


if __name__ == "__main__":
    main()
