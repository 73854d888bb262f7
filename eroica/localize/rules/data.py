"""All ranks wait for their data: in the main process, for workers, or for workers to start."""

import numpy as np

from eroica.localize.rules.draft import (
    Draft,
    hottest,
    pattern_finding,
    percent,
    step_text,
    where,
)
from eroica.localize.rules.phase import find_spine, is_input
from eroica.localize.rules.view import Bool, JobView
from eroica.records import Finding, Place, Setting

USER_SHARE = 0.22  # of the step, in the data set's own code on the training thread
WAIT_SHARE = 0.25  # of the step, waiting for loader workers
START_SHARE = 0.15  # of the time, starting workers
CUSTOM_SHARE = 0.3  # of the step, in input code outside a DataLoader: it may be the job's work
IDLE_LOADING = 0.4  # on the CPU, of the time in the data set: below, it waits for storage
RARE_FACTOR = 5  # times the usual load: an epoch's border
RARE_SHARE = 0.2  # of the steps: more often is no border


def dataloader(view: JobView) -> list[Draft]:
    """Return at most one cause: where the time in the loader goes decides which."""
    restart = _restarts(view)
    waits = _waits(view)
    inline = _inline(view)
    custom = _custom(view)
    found = [d for d in (restart, inline, waits, custom) if d is not None]
    return [max(found, key=lambda d: d.weight)] if found else []


def _inline(view: JobView) -> Draft | None:
    """The user's Dataset or collate function runs in the training process."""
    if not view.rows:
        return None
    mask = np.array(
        [r.zone == "loader" and bool(r.project) and _inside_loader(r) for r in view.rows], bool
    )
    share = float(np.median(view.sum_seen(mask)))
    if share < USER_SHARE:
        return None
    places = hottest(view, mask, view.share_FR.mean(axis=1))
    place = where(places[0] if places else None, view)
    text = f"all ranks make their data in the training process, at {place}"
    told_R = view.sum_seen(mask, view.busy_FR) if view.source == "samples" else np.full(1, np.nan)
    known_R = told_R[np.isfinite(told_R)]
    busy = float(np.median(known_R)) if len(known_R) else np.nan
    waits = busy == busy and busy < IDLE_LOADING * share
    kind = "mostly waiting for reads" if waits else "mostly computing"
    return _draft(
        view,
        mask,
        share,
        places,
        f"{text}: {percent(share)} of the step",
        0.9,
        [
            f"{percent(share)} of the step is the user's code inside the loader, {kind}"
            f"{step_text(view, share)}.",
            "The loader has no workers, so nothing overlaps with the computation.",
        ],
        "Give the DataLoader workers (num_workers > 0, persistent_workers=True), or do this "
        "work once beforehand.",
    )


def _inside_loader(row: "object") -> bool:
    """The innermost project frame lies inside the loader, not around it."""
    from eroica.localize.rules.zones import frame_zone

    frames, site = row.frames, row.project[0]  # type: ignore[attr-defined]
    for frame in frames:
        if frame == site:
            return True
        if frame_zone(frame) == "loader":
            return False
    return False


def _waits(view: JobView) -> Draft | None:
    """Workers are slower than training."""
    told = _data_share(view)
    mask = np.array([r.zone in ("loader_wait",) for r in view.rows], dtype=bool)
    seen = float(np.median(view.sum_seen(mask))) if len(view.rows) else 0.0
    workers = [s for s in _loaders(view) if int(s.value.get("num_workers") or 0) > 0]
    share = seen if view.rows else (told or 0.0)
    if share < WAIT_SHARE or (not workers and not mask.any()):
        return None
    busiest = _worker_place(view)
    setup = next((s.places for s in workers if s.places), ())
    around = hottest(view, mask, view.share_FR.mean(axis=1)) if mask.any() else ()
    places = (*(busiest[:1] or around[:1]), *setup[:1]) or around
    place = where(places[0] if places else None, view)
    number = max((int(s.value.get("num_workers") or 0) for s in workers), default=0)
    return _draft(
        view,
        mask,
        share,
        places,
        f"all ranks wait for their {number or ''} loader workers: {percent(share)} of the step",
        0.85,
        [
            f"The training thread waits {percent(share)} of the step for a batch"
            f"{step_text(view, share)}.",
            f"The workers spend most time at {place}."
            if busiest
            else "No stack of a worker was seen.",
        ],
        "Make the workers' code cheaper or start more of them; prefetch further ahead.",
    )


def _worker_place(view: JobView) -> tuple[Place, ...]:
    """The busiest project place of loader workers and other children."""
    totals: dict[tuple[Place, ...], float] = {}
    for position, row in enumerate(view.others):
        if row.process and not row.process.startswith("thread") and row.project:
            chain = row.project[:2]
            totals[chain] = totals.get(chain, 0.0) + float(view.others_share_FR[position].sum())
    return max(totals, key=lambda c: totals[c]) if totals else ()


def _restarts(view: JobView) -> Draft | None:
    """Workers are started anew each epoch."""
    loaders = [
        s
        for s in _loaders(view)
        if int(s.value.get("num_workers") or 0) > 0
        and not s.value.get("persistent_workers")
        and int(s.value.get("iterators_started") or 0) >= 3
    ]
    if not loaders:
        return None
    mask = np.array([r.zone == "loader_start" for r in view.rows], dtype=bool)
    seen = float(np.median(view.sum_seen(mask))) if len(view.rows) else 0.0
    spikes = _spikes(view)
    waits = np.array([r.zone in ("loader_wait", "loader_start") for r in view.rows], dtype=bool)
    waiting = float(np.median(view.sum_seen(waits))) if len(view.rows) else 0.0
    share = max(seen, min(spikes, max(waiting, seen)) if view.rows else spikes)
    if share < START_SHARE:
        return None
    setting = max(loaders, key=lambda s: int(s.value.get("iterators_started") or 0))
    busiest = _worker_place(view)
    started = int(setting.value.get("iterators_started") or 0)
    places = (*setting.places[:1], *(busiest[:1] or setting.places[1:2]))
    at = where(setting.places[0] if setting.places else None, view)
    return _draft(
        view,
        mask | waits,
        share,
        places,
        f"the loader at {at} starts its workers anew every epoch: {percent(share)} of the time",
        0.9,
        [
            f"The loader was started {started} times with persistent_workers=False"
            f"{step_text(view, share)}.",
            f"The first batch after each start holds {percent(share)} of the time.",
        ],
        "Set persistent_workers=True, and keep worker start-up cheap.",
    )


def _spikes(view: JobView) -> float:
    """Share of time in the rare steps whose data wait is far beyond the usual."""
    shares: list[float] = []
    for steps in view.steps.values():
        data = np.asarray(steps.data_ns, dtype=np.float64)
        total = float(sum(steps.duration_ns))
        if len(data) < 5 or total <= 0:
            continue
        usual = float(np.median(data))
        typical = float(np.median(steps.duration_ns))
        rare = data > max(RARE_FACTOR * usual, typical)
        if rare.mean() <= RARE_SHARE:
            shares.append(float((data[rare] - usual).sum()) / total)
    return float(np.median(shares)) if shares else 0.0


def _data_share(view: JobView) -> float | None:
    shares = [sum(s.data_ns) / max(sum(s.duration_ns), 1) for s in view.steps.values() if s.data_ns]
    return float(np.median(shares)) if shares else None


def _custom(view: JobView) -> Draft | None:
    """Input the user makes without a DataLoader: queues of lists, plain Python."""
    if not view.rows:
        return None
    spine = find_spine(view)
    receivers = {
        (r.project[0].file, r.project[0].name)
        for r in view.rows
        if r.zone == "unpickle" and r.project
    }
    queue = np.array(
        [
            bool(r.project)
            and (r.project[0].file, r.project[0].name) in receivers
            and (r.zone == "unpickle" or is_input(view, r, spine) is True)
            for r in view.rows
        ],
        dtype=bool,
    )
    share = float(np.median(view.sum_seen(queue)))
    if share >= WAIT_SHARE:
        places = hottest(view, queue, view.share_FR.mean(axis=1))
        place = where(places[0], view)
        return _draft(
            view,
            queue,
            share,
            places,
            f"all ranks wait at {place} for another process's data: {percent(share)} of the step",
            0.8,
            [
                f"{percent(share)} of the step goes into receiving and unpickling at {place}"
                f"{step_text(view, share)}."
            ],
            "Send tensors through torch.multiprocessing (shared memory) instead of Python objects.",
        )
    mask = np.array(
        [
            r.zone in ("user", "other", "unpickle")
            and bool(r.project)
            and is_input(view, r, spine) is True
            for r in view.rows
        ],
        dtype=bool,
    )
    busy = np.where(np.isnan(view.busy_FR), view.share_FR, view.busy_FR)
    share = float(np.median(view.sum_seen(mask, np.minimum(busy * 1.15, view.share_FR))))
    if share < CUSTOM_SHARE:
        return None
    places = hottest(view, mask, view.share_FR.mean(axis=1))
    place = where(places[0] if places else None, view)
    draft = _draft(
        view,
        mask,
        share,
        places,
        f"all ranks compute their input in the step at {place}: {percent(share)} of it",
        0.6,
        [
            f"{percent(share)} of the step is Python that makes the input at {place}"
            f"{step_text(view, share)}."
        ],
        "Make the input in DataLoader workers, or once beforehand.",
    )
    draft.against.append("The step may be this small: little else is done in it.")
    return draft


def _loaders(view: JobView) -> list[Setting]:
    return [s for s in view.values("dataloader") if isinstance(s.value, dict)]


def _draft(
    view: JobView,
    mask: Bool,
    share: float,
    places: tuple[Place, ...],
    summary: str,
    confidence: float,
    why: list[str],
    advice: str,
) -> Draft:
    setup = next((s.places for s in _loaders(view) if s.places), ())
    if (setup and len(places) < 2) or (setup and places and setup[0] not in places):
        places = (*places[:1], *setup[:1]) if places else setup[:2]
    finding = (
        pattern_finding(view, mask, text=summary)
        if mask.any()
        else Finding(id="", kind="data_wait", text=summary)
    )
    return Draft(
        rule="dataloader",
        category="dataloader_bottleneck",
        ranks="all",
        places=places,
        share=share,
        confidence=confidence,
        summary=summary,
        why=why,
        advice=advice,
        findings=[finding],
        claims=share,
    )
