"""How long the review takes to answer a key, on a review of many hunks.

    python benchmarks/review.py [--hunks 200] [--presses 60]

Presses each key through Textual's pilot, which waits until the screen is drawn, and prints the
median and the largest processor time a key (the pilot itself sleeps 50 ms a key, and other work
on the machine shall not count). The aim: under 50 ms.
"""

import argparse
import asyncio
import statistics
import time

from eroica.fix.diff import file_edit, unified
from eroica.records import Cause, Incident, Job, Patch, Place
from eroica.review.app import ReviewApp
from eroica.review.session import Session

KEYS = ("j", "k", "y", "u", "n", "u", "o", "o", "right_square_bracket", "v", "f", "p")


def review(num_hunks: int) -> Session:
    """One safe patch of as many hunks, 20 lines apart, in one Python file."""
    lines = [f"value_{n} = compute({n}, 'text')  # line {n}\n" for n in range(20 * num_hunks)]
    new = [
        line.replace("compute", "compute_fast") if n % 20 == 10 else line
        for n, line in enumerate(lines)
    ]
    edit = file_edit("train.py", "".join(lines), "".join(new))
    cause = Cause(
        id="C1",
        category="python_overhead",
        ranks="all",
        functions=(Place(name="step", file="train.py", line=1),),
        share=0.2,
        confidence=0.9,
        summary="",
        action="patch",
    )
    patch = Patch(
        id="P1",
        cause="C1",
        source="fixer X",
        label="review",
        title="faster",
        edits=(edit,),
        diff=unified([edit]),
    )
    incident = Incident(
        id="benchmark",
        symptom="slow",
        onset=None,
        job=Job(world_size=8, ranks=tuple(range(8))),
        causes=(cause,),
        findings=(),
        warnings=(),
    )
    return Session.of(incident, [patch])


async def measure(num_hunks: int, presses: int) -> dict[str, list[float]]:
    app = ReviewApp(review(num_hunks))
    taken: dict[str, list[float]] = {}
    async with app.run_test(size=(160, 50)) as pilot:
        await pilot.pause()
        for number in range(presses):
            key = KEYS[number % len(KEYS)]
            start = time.process_time()
            await pilot.press(key)
            taken.setdefault(key, []).append((time.process_time() - start) * 1e3)
    return taken


async def empty(presses: int) -> float:
    """What the pilot itself takes for a key that does nothing, in ms of processor time."""
    app = ReviewApp(review(1))
    times = []
    async with app.run_test(size=(160, 50)) as pilot:
        for _ in range(presses):
            start = time.process_time()
            await pilot.press("f12")
            times.append((time.process_time() - start) * 1e3)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hunks", type=int, default=200)
    parser.add_argument("--presses", type=int, default=60)
    given = parser.parse_args()
    start = time.perf_counter()
    session = review(given.hunks)
    print(f"{len(session.items)} hunks, made in {(time.perf_counter() - start) * 1e3:.0f} ms")
    print(f"a key that does nothing {asyncio.run(empty(10)):6.1f} ms (the pilot's own part)")
    taken = asyncio.run(measure(given.hunks, given.presses))
    for key, times in taken.items():
        print(f"{key:<22}median {statistics.median(times):6.1f} ms   max {max(times):6.1f} ms")
    every = [one for times in taken.values() for one in times]
    print(f"{'all':<22}median {statistics.median(every):6.1f} ms   max {max(every):6.1f} ms")


if __name__ == "__main__":
    main()
