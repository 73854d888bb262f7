"""Make docs/pictures: the figures of docs/concepts.md, from simulated jobs by eroica's own rules.

    python docs/pictures.py

victims    traces of 8 ranks, one of which loads slowly; the paths are eroica's critical path
pattern    use of a link during one collective; the stretch is eroica's critical duration
distance   64 ranks, one with a bad link; D and Delta are eroica's
"""

import gzip
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from eroica.config import Parameters
from eroica.localize.distance import blocks_of, count_far, distances
from eroica.report import canvas
from eroica.simulate.cluster import Cluster
from eroica.simulate.faults import Fault
from eroica.simulate.tables import simulate_table
from eroica.simulate.traces import write_traces
from eroica.summarize.critical_duration import critical_duration

PICTURES = Path(__file__).parent / "pictures"
SLOW_RANK, BAD_LINK, NUM_RANKS = 2, 37, 64
COLORS = {"load": "data", "compute": "compute", "exchange": "exposed_communication"}
LABELS = {"load": "loads data", "compute": "computes", "exchange": "all_reduce: waits, then sends"}


def victims() -> str:
    """One step of 8 ranks: who waits in the collective is a victim of who comes last."""
    with tempfile.TemporaryDirectory() as folder:
        write_traces(folder, Cluster(8), [Fault("slow_loader", (SLOW_RANK,), 0.6)], steps=2)
        steps = [spans(Path(folder) / f"rank{rank}.json.gz") for rank in range(8)]

    def paint(figure: canvas.Figure) -> None:
        axes = figure.subplots()
        seen: set[str] = set()
        for rank, found in enumerate(steps):
            for kind, start, length in found:
                label = None if kind in seen else LABELS[kind]
                seen.add(kind)
                axes.barh(
                    rank, length, 0.72, left=start, color=canvas.PARTS[COLORS[kind]], label=label
                )
        axes.invert_yaxis()
        axes.set_yticks(range(8), [f"rank {rank}" for rank in range(8)])
        axes.get_yticklabels()[SLOW_RANK].set_color(canvas.GUILTY)
        axes.set_xlabel("ms of one step")
        axes.margins(x=0.01)
        figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=8.5)

    return canvas.svg("victims", (8.6, 2.9), paint)


def spans(path: Path) -> list[tuple[str, float, float]]:
    """(what, start ms, length ms) of a rank's second step."""
    with gzip.open(path) as stream:
        events = [event for event in json.load(stream)["traceEvents"] if event.get("ph") == "X"]
    (step,) = [one for one in events if one["name"] == "ProfilerStep#1"]
    begin, end = step["ts"], step["ts"] + step["dur"]
    found = []
    for event in events:
        if begin <= event["ts"] < end:
            kind = "load" if "corpus.py" in event["name"] else ""
            if event["cat"] == "kernel":
                kind = "exchange" if event["name"].startswith("nccl") else "compute"
            if kind:
                found.append((kind, (event["ts"] - begin) / 1e3, event["dur"] / 1e3))
    return found


def pattern() -> str:
    """A link's use during one collective: idle until the last peer comes, then busy."""
    random = np.random.default_rng(5)
    use = np.zeros(240)
    use[128:214] = np.clip(random.normal(0.78, 0.08, 86), 0, 1)
    use[176:180] = 0.0
    use[222] = 0.12
    first, last = critical_duration(use, Parameters().critical_share)
    part = use[first:last]
    mu, sigma = float(part.mean()), float(part.std())

    def paint(figure: canvas.Figure) -> None:
        axes = figure.subplots()
        time = np.arange(len(use)) / 20
        axes.fill_between(time, use, step="post", color=canvas.CALM, alpha=0.75, linewidth=0)
        axes.axvspan(first / 20, last / 20, color=canvas.PARTS["idle"], alpha=0.35, linewidth=0)
        axes.hlines(mu, first / 20, last / 20, color=canvas.GUILTY, linewidth=1.4)
        axes.text(
            (last + 2) / 20, mu, f"mu {mu:.2f}\nsigma {sigma:.2f}", va="center", color=canvas.GUILTY
        )
        mean = float(use.mean())
        axes.hlines(mean, 0, len(use) / 20, color=canvas.SOFT, linewidth=0.9, linestyle=":")
        axes.text(0.1, mean + 0.03, f"mean over all of it {mean:.2f}", color=canvas.SOFT)
        axes.text(first / 20, 1.03, "critical duration", fontsize=8.5)
        axes.set_ylim(0, 1.12)
        axes.set_xlim(0, len(use) / 20)
        axes.set_xlabel("ms since this rank entered the collective")
        axes.set_ylabel("use of the link")

    return canvas.svg("pattern", (8.6, 2.4), paint)


def distance() -> str:
    """Patterns of all ranks in one collective, and how many peers each is unlike."""
    parameters = Parameters()
    table, _ = simulate_table(Cluster(NUM_RANKS), [Fault("slow_nic", (BAD_LINK,), 0.3)], seed=3)
    found = [one for one in distances(blocks_of(table)) if one.function.kind == "collective"]
    ring = max(found, key=lambda one: float(one.delta_A.max(initial=0)))
    row = [function.id for function in table.functions].index(ring.function.id)
    columns = (table.beta_FR[row], table.mu_FR[row], table.sigma_FR[row])
    delta_R = count_far(columns, np.stack(columns), parameters.delta) / NUM_RANKS
    ring_R = np.isin(np.arange(NUM_RANKS), ring.positions_A)
    own_R = np.arange(NUM_RANKS) == BAD_LINK
    assert ring_R[BAD_LINK]
    threshold = float(ring.threshold_A[0])
    groups = (
        (~ring_R, canvas.CALM, "other rings"),
        (ring_R & ~own_R, canvas.PARTS["exposed_communication"], "the ring of the bad link"),
        (own_R, canvas.GUILTY, f"the bad link, rank {BAD_LINK}"),
    )

    def paint(figure: canvas.Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
        for chosen_R, color, label in groups:
            left.scatter(columns[1][chosen_R], columns[2][chosen_R], 18, color=color, label=label)
            right.bar(np.flatnonzero(chosen_R), delta_R[chosen_R], 0.9, color=color)
        left.set_xlabel("mu: mean use of the link")
        left.set_ylabel("sigma: its deviation")
        left.set_xlim(0, 1)
        left.set_ylim(bottom=0)
        right.axhline(threshold, color=canvas.SOFT, linewidth=0.9, linestyle="--")
        right.text(0, threshold + 0.02, f"limit {threshold:.2f}", color=canvas.SOFT, fontsize=8)
        right.set_xlabel("rank")
        right.set_ylabel("Delta: share of peers unlike it")
        right.set_ylim(0, 1.05)
        right.margins(x=0.01)
        figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=8.5)

    return canvas.svg("distance", (8.6, 2.9), paint)


MAKERS = {"victims": victims, "pattern": pattern, "distance": distance}


def main() -> int:
    PICTURES.mkdir(exist_ok=True)
    for name, make in MAKERS.items():
        (PICTURES / f"{name}.svg").write_text(make() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
