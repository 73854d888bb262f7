"""The shape of a training step: which of the user's functions drive it, and what they do besides.

The *spine* is the project functions on the stacks that lead to backward and the optimizer, e.g.
``main > train_step``. Work that leaves the spine before the forward pass is input, work that
leaves it after is bookkeeping; the model, the engine, the optimizer and the loader are the job.
"""

import ast
import re
from dataclasses import dataclass

import numpy as np

from eroica.localize.rules.view import JobView, Row
from eroica.localize.source import FunctionInfo
from eroica.records import Place

Key = tuple[str | None, str]
INPUT_WORDS = (
    *("batch", "data", "load", "read", "sampl", "fetch", "getitem", "__next__", "__iter__"),
    *("token", "decode", "encode", "augment", "preproc", "collate", "shard", "record", "corpus"),
    *("parse", "transform", "prefetch", "feed", "stream"),
)
LOG_WORDS = (
    *("log", "metric", "monitor", "hist", "dump", "debug", "report", "track", "summar", "print"),
    *("write", "record", "stats", "statis", "stat_", "note", "trace", "plot", "tensorboard"),
    *("wandb", "publish", "snapshot_text", "emit", "progress", "audit"),
)
EVAL_WORDS = ("eval", "valid", "test", "infer", "generate", "predict", "score", "export", "sync")
SAVE_WORDS = ("save", "checkpoint", "ckpt", "snapshot", "state_dict", "persist")
_OTHER_WORDS = re.compile(
    r"logits?|log_?(?:softmax|prob|likelihood|sum|det|sigmoid|odds|space|normal)|(?:cata|dia|ana)log"
    r"|(?:sym|geo|para|volu|iso|bio)metric|(?:finger|foot|blue)print"
    r"|latest|fast(?:est)?|great|retrieval|medieval|async|invalid|underscore|conference"
    r"|thread|spread|already|upload|sparse|feed_?(?:forward|back)|transformer|encoder|decoder"
    r"|batch_?norm|(?:up|down)_?sampl\w*|notebook|denote|emitter|subtract|rewrite"
)
"""What holds one of the words above and means something else: ``logits`` are no log."""


@dataclass(frozen=True)
class Spine:
    """Keys are (file, function name) of the project, outermost first."""

    keys: tuple[Key, ...]
    lines: dict[Key, float]
    """Line at which each of them was when backward ran; the forward's where known."""
    forward_lines: dict[Key, float]

    @property
    def innermost(self) -> Key | None:
        return self.keys[-1] if self.keys else None


def key_of(place: Place) -> Key:
    return (place.file, place.name)


def find_spine(view: JobView) -> Spine:
    """Return the functions that lead to backward and the optimizer; empty where none was seen."""
    chains: dict[tuple[Key, ...], float] = {}
    lines: dict[str, dict[Key, list[tuple[float, float]]]] = {"backward": {}, "forward": {}}
    total_F = view.share_FR.mean(axis=1) if view.num_ranks else np.zeros(len(view.rows))
    for position, row in enumerate(view.rows):
        if row.zone not in ("backward", "optimizer", "forward", "ddp") or not row.project:
            continue
        outer = _outside_engine(row)
        weight = float(total_F[position])
        if row.zone in ("backward", "optimizer"):
            keys = tuple(key_of(p) for p in reversed(outer))
            chains[keys] = chains.get(keys, 0.0) + weight
        kind = "forward" if row.zone in ("forward", "ddp") else row.zone
        if kind in lines:
            for place in outer:
                if place.line is not None:
                    lines[kind].setdefault(key_of(place), []).append((place.line, weight))
    if not chains:
        return Spine((), {}, {})
    keys = max(chains, key=lambda c: chains[c])
    return Spine(keys, _weighted(lines["backward"]), _weighted(lines["forward"]))


def _outside_engine(row: Row) -> tuple[Place, ...]:
    """The project's frames outside the outermost module, engine or optimizer call."""
    from eroica.localize.rules.zones import frame_zone

    last = -1
    for position, frame in enumerate(row.frames):
        if frame_zone(frame) in ("backward", "optimizer", "forward", "ddp"):
            last = position
    outer = set(row.frames[last + 1 :])
    return tuple(p for p in row.project if p in outer)


def _weighted(lines: dict[Key, list[tuple[float, float]]]) -> dict[Key, float]:
    return {key: max(pairs, key=lambda p: p[1])[0] for key, pairs in lines.items()}


def training_line(view: JobView, *, is_forward: bool = False) -> tuple[Place, ...]:
    """Return the line of the loop that calls backward (the model); empty where none was seen."""
    spine = find_spine(view)
    lines = spine.forward_lines if is_forward else spine.lines
    if spine.innermost is None or not lines.get(spine.innermost):
        return ()
    file, name = spine.innermost
    return (Place(name=name, file=file, line=int(lines[spine.innermost])),)


def departure(row: Row, spine: Spine) -> tuple[Place | None, Place | None]:
    """Return (entry, caller): the outermost project function off the spine, and where on the
    spine it was called. (None, place) is work in the spine's own body."""
    on_spine = set(spine.keys)
    entry = next((p for p in reversed(row.project) if key_of(p) not in on_spine), None)
    caller = next((p for p in row.project if key_of(p) in on_spine), None)
    return entry, caller


def is_input(view: JobView, row: Row, spine: Spine, *, by_zone: bool = True) -> bool | None:
    """Whether the work makes a step's input (True) or comes after it (False); None: cannot say.

    Without ``by_zone`` only the place of the call on the spine counts: an evaluation loads data
    as well.
    """
    entry, caller = departure(row, spine)
    if by_zone and row.zone in ("loader", "loader_wait", "unpickle"):
        return True
    if caller is not None and caller.line is not None:
        key = key_of(caller)
        forward = spine.forward_lines.get(key, spine.lines.get(key))
        if forward is not None and caller.line != forward:
            feeds = _feeds_training(view, caller)
            if feeds is not None:
                return feeds
            return caller.line < forward
    if entry is not None:
        if says(entry.name, LOG_WORDS + EVAL_WORDS + SAVE_WORDS):
            return False
        if says(entry.name, INPUT_WORDS):
            return True
    return None


def _feeds_training(view: JobView, caller: Place) -> bool | None:
    """Whether the statement at the caller's line iterates or binds names; a bare call does not."""
    info = view.project.enclosing(caller.file, caller.line)
    statement = statement_at(info, caller.line) if info else None
    if isinstance(statement, ast.For):
        return True
    if isinstance(statement, ast.Expr):
        return False
    return None


def statement_at(info: FunctionInfo, line: int | None) -> ast.stmt | None:
    """Return the innermost statement that begins at or spans the line."""
    best: ast.stmt | None = None
    if line is None:
        return None
    for node in info.own_statements:
        end = node.end_lineno or node.lineno
        if isinstance(node, ast.For | ast.While | ast.If | ast.With):
            end = node.body[0].lineno - 1 if node.body[0].lineno > node.lineno else node.lineno
        if node.lineno <= line <= end and (best is None or node.lineno >= best.lineno):
            best = node
    return best


def has_word(view: JobView, row: Row, words: tuple[str, ...]) -> bool:
    """Whether the row's project functions (not the spine's) or their classes carry such a word."""
    return any(says(place.name, words) for place in row.project[:3])


def says(name: str, words: tuple[str, ...]) -> bool:
    """Whether a function's name carries one of the words, as itself or within a longer one."""
    rest = _OTHER_WORDS.sub(" ", name.lower())
    return any(word in rest for word in words)
