"""Rehearsal: the job's command before and after a patch, in scratch copies, with a watchdog.

Nothing of the user's tree is touched. Experiment trackers are set offline. Every process of a
run, ranks that torchrun leaves behind included, carries a token in its environment and is ended
by it.
"""

import logging
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from eroica.errors import EroicaError, InputError
from eroica.fix.apply import apply
from eroica.fix.endings import noted_in, was_aborted_at_its_end
from eroica.fix.scratch import copy_tree, notes_on, stamps
from eroica.fix.watchdog import Run, Watcher, run_bounded
from eroica.records import Patch, Rehearsal

log = logging.getLogger(__name__)
OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "NEPTUNE_MODE": "offline",
    "COMET_OFFLINE_DIRECTORY": "comet_offline",
    "CLEARML_OFFLINE_MODE": "1",
    "MLFLOW_TRACKING_URI": "file:./mlruns",
    "AIM_TRACKING_DISABLED": "1",
    "HF_HUB_OFFLINE": "1",
}
MIN_GAIN = 0.05  # step time within 5 % is noise on a shared machine
MIN_GAIN_WHOLE_RUN = 0.25  # start-up is most of a short run, and varies more
LOSS_RELATIVE, LOSS_ABSOLUTE = 0.1, 0.01  # a final loss further off than this is named

Detector = Callable[[Sequence[str], Path, dict[str, str], Watcher], str | None]
"""Command, folder, environment, watcher -> what it still says of the cause; empty: nothing."""


def rehearse(
    patch: Patch | Sequence[Patch],
    command: str | Sequence[str],
    root: str | Path,
    *,
    symptom: str = "stuck",
    limit_s: float = 120.0,
    environment: dict[str, str] | None = None,
    detector: Detector | None = None,
    watcher: Watcher | None = None,
) -> Rehearsal:
    """Run a command with and without a patch and say what the patch changes.

    The patched run goes first, for at most ``limit_s``; the other is given twice its time (at
    least 15 s). ``detector`` runs the patched command once more under eroica's own eyes and
    returns what it still says of the cause. ``watcher`` is told how far it is, and may call it
    off (EroicaError).
    """
    watcher = watcher or Watcher()
    base = Path(root)
    patches = [patch] if isinstance(patch, Patch) else list(patch)
    given, words = split_command(command)
    given = {**OFFLINE, **(environment or {}), **given}
    with tempfile.TemporaryDirectory(prefix="eroica-rehearsal-") as scratch:
        after_root, before_root = (
            Path(scratch) / "after" / base.name,
            Path(scratch) / "before" / base.name,
        )
        copied = copy_tree(base, after_root)
        copy_tree(base, before_root)
        shared = stamps(copied.linked)
        apply(patches, after_root)
        after = _run(words, after_root, limit_s, given, watcher, "with the patch")
        limit = min(limit_s, max(15.0, 2.0 * after.seconds)) if after.is_done else limit_s / 2
        before = _run(words, before_root, limit, given, watcher, "without it")
        seen = None
        if detector is not None and after.is_done:
            watcher.tell("with the patch, under the detector")
            seen = detector(words, after_root, given, watcher)
            if watcher.called_off.is_set():
                raise EroicaError(
                    "the rehearsal was called off",
                    "the detector was still looking",
                    "eroica review goes on",
                )
    notes = [*warnings_for(words, base), *notes_on(copied, shared)]
    return judge(words, before, after, symptom, limit, seen, notes)


def _run(
    words: Sequence[str],
    folder: Path,
    limit_s: float,
    given: dict[str, str],
    watcher: Watcher,
    which: str,
) -> Run:
    """One of the two runs; EroicaError once it is called off."""
    watcher.tell(which)
    told = Watcher(lambda line: watcher.tell(f"{which}, {line}"), watcher.called_off)
    notes = folder.parent / "endings"
    run = run_bounded(words, folder, limit_s, {**given, **noted_in(notes, given)}, told)
    if watcher.called_off.is_set():
        raise EroicaError(
            "the rehearsal was called off", "both scratch copies are gone", "eroica review goes on"
        )
    texts = [line for _, line in run.lines]
    run.was_aborted_at_its_end = was_aborted_at_its_end(notes, run.status, texts)
    return run


def split_command(command: str | Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment and the words of ``A=1 torchrun train.py``; InputError if empty."""
    words = shlex.split(command) if isinstance(command, str) else list(command)
    given: dict[str, str] = {}
    while words and re.match(r"^[A-Za-z_]\w*=", words[0]):
        key, _, given[key] = words.pop(0).partition("=")
    if not words:
        raise InputError(
            "no command to rehearse",
            "expected one that runs the job",
            '--verify "torchrun ... train.py"',
        )
    return given, tuple(words)


def warnings_for(command: Sequence[str], root: Path) -> list[str]:
    """Name what a scratch copy cannot keep apart: absolute paths in the command or the script."""
    notes = [
        f"{word} is an absolute path: both runs share it"
        for word in command[1:]
        if word.startswith("/")
    ]
    for word in command:
        script = root / word
        if word.endswith(".py") and script.is_file():
            text = script.read_text(errors="replace")
            paths = sorted(set(re.findall(r"""["'](/[\w./-]{3,})["']""", text)))[:3]
            notes += [f"{word} names {path}: both runs share it" for path in paths]
    return notes


def judge(
    command: Sequence[str],
    before: Run,
    after: Run,
    symptom: str,
    before_limit: float,
    seen: str | None = None,
    notes: Sequence[str] = (),
) -> Rehearsal:
    """Turn two runs into a verdict and one sentence."""
    old, new = before.step_ms(), after.step_ms()
    verdict, text = _verdict(before, after, old, new, symptom, before_limit)
    loss = loss_change(before, after)
    text = " ".join(part for part in (text, loss, *_seen(seen)) if part)
    return Rehearsal(
        command=tuple(command),
        verdict=verdict,  # type: ignore[arg-type]
        summary=text,
        seconds_before=round(before.seconds, 2),
        seconds_after=round(after.seconds, 2),
        step_ms_before=median(old) if old else None,
        step_ms_after=median(new) if new else None,
        details={
            "exit_before": before.status,
            "exit_after": after.status,
            "limit_before_s": before_limit,
            "progress_before": len(before.progress),
            "progress_after": len(after.progress),
            "spread_ms_before": spread(old),
            "spread_ms_after": spread(new),
            "loss_before": before.last_loss,
            "loss_after": after.last_loss,
            "detector": seen,
            "left_behind": after.left_behind,
            "tail_after": "" if after.is_done else after.tail(),
            "warnings": [
                *notes,
                *_aborted(before, "without the patch"),
                *_aborted(after, "with it"),
            ],
        },
    )


def _aborted(run: Run, which: str) -> list[str]:
    if not run.was_aborted_at_its_end:
        return []
    return [
        f"{which}, the interpreter was aborted when all ranks had ended their work (exit status "
        f"{run.status}): it counts as finished; dist.destroy_process_group() at the end avoids it"
    ]


def _verdict(
    before: Run, after: Run, old: list[float], new: list[float], symptom: str, before_limit: float
) -> tuple[str, str]:
    if after.status is None:
        if before.is_done:
            return (
                "worse",
                f"Patched, it is stuck after {after.seconds:.0f} s; before, it finished.",
            )
        further = len(after.progress) > len(before.progress)
        what = "further than before, but not to its end" if further else "no further than before"
        return "no change", f"Patched, it gets {what} within {after.seconds:.0f} s."
    if not after.is_done:
        verdict = "worse" if before.is_done else "failed"
        return verdict, f"Patched, it fails with exit code {after.status}: {after.tail(1)}"
    if before.status is None and (symptom != "slow" or not (old and new)):
        return "cured", (
            f"Patched, it finishes in {after.seconds:.1f} s; before, it was not done after "
            f"{before.seconds:.0f} s."
        )
    if before.status is not None and not before.is_done:
        return "cured", f"Patched, it finishes; before, it failed with exit code {before.status}."
    if symptom == "stuck" and before.is_done:
        return "no change", "It finishes with and without the patch: the hang did not show."
    gain = MIN_GAIN if old and new else MIN_GAIN_WHOLE_RUN
    what = "Step time" if old and new else "The whole run"
    if not (old and new):
        old, new = [before.seconds * 1e3], [after.seconds * 1e3]
    a, b = median(old), median(new)
    text = f"{what} {a:.3g} ms -> {b:.3g} ms ({_range(old)} -> {_range(new)})."
    if b < a * (1 - gain):
        return "improved", text
    return ("worse", text) if b > a * (1 + gain) else ("no change", text)


def _seen(seen: str | None) -> list[str]:
    if seen is None:
        return []
    return [f"The same detector still says {seen}." if seen else "The same detector is now silent."]


def spread(values: list[float]) -> list[float]:
    """Return the quartiles of step times, in ms."""
    ordered = sorted(values)
    if not ordered:
        return []
    return [round(ordered[int(q * (len(ordered) - 1))], 3) for q in (0.25, 0.5, 0.75)]


def _range(values: list[float]) -> str:
    quartiles = spread(values)
    return f"{quartiles[0]:.3g}..{quartiles[2]:.3g}"


def loss_change(before: Run, after: Run) -> str:
    """Say where a printed loss differs between the runs, compared line by line of progress."""
    common = sorted(before.losses.keys() & after.losses.keys())
    if common:
        old, new = before.losses[common[-1]], after.losses[common[-1]]
        where = f"at {common[-1]}"
    elif before.last_loss is not None and after.last_loss is not None:
        old, new, where = before.last_loss, after.last_loss, "at the end"
    else:
        return ""
    if abs(new - old) <= LOSS_ABSOLUTE + LOSS_RELATIVE * abs(old):
        return f"The loss {where} is alike ({old:g}, {new:g})."
    return f"The loss {where} differs: {old:g} before, {new:g} after."
