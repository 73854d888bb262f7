"""What the hook's wrappers write: order, owners, the ring's end, and what goes wrong in a step."""

import itertools
import threading
import types
from pathlib import Path

import pytest

from eroica.collect.hook import layout, loops
from eroica.collect.hook.ring import Ring
from eroica.collect.rings import RingReader


class Hooks:
    """torch's global optimizer hooks, as far as they matter."""

    def __init__(self, ring):
        self.before, self.after = [], []
        module = types.SimpleNamespace(
            register_optimizer_step_pre_hook=self.before.append,
            register_optimizer_step_post_hook=self.after.append,
        )
        loops._watch_optimizers(ring, module)

    def step(self, optimizer, work=lambda: None):
        self.before[0](optimizer, (), {})
        work()
        self.after[0](optimizer, (), {})


class Base:
    def __init__(self, items=(1, 2)):
        self._dataset = items
        self._items = iter(items)

    def __next__(self):
        return next(self._items)


@pytest.fixture
def ring(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    made = Ring.create(str(tmp_path))
    yield made
    made.words.release()


def events(ring):
    reader = RingReader(Path(ring.path))
    found = reader.read_new()
    reader.close()
    return found


def letters(ring):
    return "".join(layout.LETTERS[event.kind] for event in events(ring))


def watched_class(ring, **methods):
    made = type("Iterator", (Base,), methods)
    loops._wrap_next(ring, loops.Owners(), made)
    return made


def test_begin_and_end_of_a_step_stand_in_order_with_their_owner(ring):
    hooks, first, second = Hooks(ring), object(), object()
    hooks.step(first)
    hooks.step(second)
    found = events(ring)
    assert [(layout.LETTERS[e.kind], e.owner) for e in found] == [
        ("s", 0),
        ("S", 0),
        ("s", 1),
        ("S", 1),
    ]
    assert [e.time_ns for e in found] == sorted(e.time_ns for e in found)
    assert ring.words[layout.W_NUM_OPTIMIZER] == 2


def test_a_step_within_a_step_stands_inside_it(ring):
    hooks, outer, inner = Hooks(ring), object(), object()
    hooks.step(outer, lambda: hooks.step(inner))
    assert [(layout.LETTERS[e.kind], e.owner) for e in events(ring)] == [
        ("s", 0),
        ("s", 1),
        ("S", 1),
        ("S", 0),
    ]


def test_a_step_that_raised_does_not_end_the_next_one(ring):
    hooks, optimizer = Hooks(ring), object()
    hooks.before[0](optimizer, (), {})  # and its step raises: no end is told
    hooks.step(optimizer)
    assert letters(ring) == "ssS"


def test_the_ends_of_two_threads_keep_their_owners(ring):
    hooks, here, there = Hooks(ring), object(), object()

    def elsewhere():
        thread = threading.Thread(target=hooks.before[0], args=(there, (), {}))
        thread.start()
        thread.join()

    hooks.step(here, elsewhere)
    hooks.after[0](there, (), {})
    ends = [e.owner for e in events(ring) if e.kind == layout.STEP_OUT]
    assert ends == [0, 1]


@pytest.mark.parametrize("shift", [0, 1], ids=["even", "odd"])
def test_the_ring_turns_over_without_a_torn_event(ring, shift):
    hooks, optimizer = Hooks(ring), object()
    for _ in range(shift):
        ring.record(layout.MARK)
    for _ in range(layout.CAPACITY):
        hooks.step(optimizer)
    found = events(ring)
    assert len(found) >= layout.CAPACITY - 64
    kinds = [event.kind for event in found]
    assert set(kinds[::2]) | set(kinds[1::2]) == {layout.STEP_IN, layout.STEP_OUT}
    assert all(one != other for one, other in itertools.pairwise(kinds))
    times = [event.time_ns for event in found]
    assert times == sorted(times)


def test_a_loader_is_one_owner_over_its_epochs(ring):
    made, items = watched_class(ring, __next__=lambda self: next(self._items)), (1, 2)
    for _ in range(2):
        iterator = made(items)
        assert next(iterator) == 1
    assert letters(ring) == "nNnN" and {event.owner for event in events(ring)} == {0}


def test_a_loader_that_ends_or_fails_is_recorded_and_passes_its_error_on(ring):
    made = watched_class(ring, __next__=lambda self: next(self._items))
    with pytest.raises(StopIteration):
        next(made(()))
    assert letters(ring) == "nN"


def test_a_subclass_that_calls_its_parent_counts_once_whichever_was_wrapped_first(ring):
    owners = loops.Owners()
    parent = type("Parent", (Base,), {"__next__": lambda self: next(self._items)})
    child = type("Child", (parent,), {"__next__": lambda self: parent.__next__(self)})
    loops._wrap_next(ring, owners, parent)
    loops._wrap_next(ring, owners, child)
    assert next(child((5,))) == 5 and letters(ring) == "nN"
    assert next(parent((6,))) == 6 and letters(ring) == "nNnN"


def test_an_iterator_without_room_for_a_mark_is_recorded_as_well(ring):
    class Slim:
        __slots__ = ("left",)

        def __init__(self):
            self.left = [1]

        def __next__(self):
            return self.left.pop()

    loops._wrap_next(ring, loops.Owners(), Slim)
    assert next(Slim()) == 1 and letters(ring) == "nN"


def test_the_border_of_a_window_is_noticed_at_its_count(ring):
    hooks, seen = Hooks(ring), []
    ring.on_border = lambda word, count: seen.append((word, count))
    ring.words[layout.W_BORDER_OPTIMIZER] = 2
    for _ in range(3):
        hooks.step(seen)
    assert seen == [(layout.W_BORDER_OPTIMIZER, 2)]
