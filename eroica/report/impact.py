"""What an incident cost: step time, ranks held, accelerator-hours, money at a given price."""

from eroica import units
from eroica.report.material import Material, iso_ns

_NS_PER_HOUR = 3_600_000_000_000


def lost_share(material: Material) -> float | None:
    """Return the share of the job's time that is lost, 0..1; None where it is not known.

    A stuck or failed job loses all of it. A slow one loses what its step takes over the step
    before the onset, or the share of its first cause, whichever is more: a job that was slow from
    the start has no better time to compare with.
    """
    incident = material.incident
    if incident.symptom in ("stuck", "failed"):
        return 1.0
    if incident.symptom != "slow":
        return None
    before, now = incident.job.step_ms.before, incident.job.step_ms.now
    shares = [one.share for one in incident.causes[:1] if one.share is not None]
    if before and now and now > before:
        shares.append(1 - before / now)
    return max(shares) if shares else None


def since_onset_ns(material: Material) -> int | None:
    """Time from the onset to the diagnosis."""
    start, end = iso_ns(material.incident.onset), iso_ns(material.incident.created)
    return end - start if start is not None and end is not None and end > start else None


def impact_of(
    material: Material, price_per_gpu_hour: float | None = None, currency: str = "USD"
) -> tuple[tuple[str, str], ...]:
    """Return name and value pairs, only those the incident can support."""
    incident = material.incident
    if incident.symptom in ("healthy", "unknown"):
        step = incident.job.step_ms.now
        return (("Step", _ms(step)),) if step else ()
    facts: list[tuple[str, str]] = []
    before, now = incident.job.step_ms.before, incident.job.step_ms.now
    if before and now:
        facts.append(("Step", f"{_ms(now)}, before {_ms(before)} ({now / before:.2f} x)"))
    elif now:
        facts.append(("Step", _ms(now)))
    held = _ranks_held(material)
    if held:
        facts.append(("Ranks held", held))
    share, elapsed = lost_share(material), since_onset_ns(material)
    if share is not None:
        facts.append(("Time lost", f"{units.share(share)} of the job's time"))
    if share is not None and elapsed is not None:
        hours = share * elapsed / _NS_PER_HOUR * incident.job.world_size
        name = "GPU-hours lost" if _has_devices(material) else "Rank-hours lost"
        facts.append((name, f"{hours:,.2f} in {units.duration(elapsed)} since the onset"))
        if price_per_gpu_hour is not None:
            money = hours * price_per_gpu_hour
            facts.append(("Cost", f"{money:,.2f} {currency} at {price_per_gpu_hour:g} an hour"))
    return tuple(facts)


def _ms(step_ms: float) -> str:
    return units.duration(step_ms * units.NS_PER_MS)


def _ranks_held(material: Material) -> str:
    causes = material.incident.causes
    if not causes:
        return ""
    if causes[0].victims:
        return f"{len(causes[0].victims)} of {material.incident.job.world_size}"
    return f"all {material.incident.job.world_size}" if causes[0].ranks == "all" else ""


def _has_devices(material: Material) -> bool:
    if "nccl" in material.incident.job.backend:
        return True
    if material.evidence is None:
        return False
    settings = (s for rank in material.evidence.ranks for s in rank.settings)
    return any(s.key == "device" and s.value == "cuda" for s in settings)
