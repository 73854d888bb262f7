"""Every fixer against its own examples, and the registry."""

import importlib
from types import SimpleNamespace

import pytest

from eroica.errors import EroicaError
from eroica.fix.context import Example
from eroica.fix.examples import FILE, HEADINGS, problems
from eroica.fix.registry import find_fixer, load_fixers, register, title
from eroica.records import CATEGORIES, FAMILY

FIXERS = load_fixers()
OUTSIDE = set(CATEGORIES["environment"])


@pytest.mark.parametrize("fixer", FIXERS.values(), ids=list(FIXERS))
def test_a_fixer_does_what_its_documentation_and_examples_say(fixer):
    assert problems(fixer) == []
    assert fixer.ANSWERS <= FAMILY.keys() - OUTSIDE


BEFORE = "def f(xs):\n    return slow(xs)  # <-- here\n"
AFTER = "def f(xs):\n    return quick(xs)\n"


def becomes(text):
    return lambda context: SimpleNamespace(texts={FILE: text})


def a_fixer(**changed):
    kept = "def f(xs):\n    return quick(xs)  # <-- here\n"
    text = "from a import slow, quick\n"
    parts = {
        "CODE": "ZZZ003",
        "ANSWERS": frozenset({"gc_pause"}),
        "LABEL": "safe",
        "FIXES": (Example(before=text + BEFORE, after=text + AFTER),),
        "KEEPS": (Example(before=kept),),
        "fix": lambda context: (
            becomes(text + AFTER)(context) if "slow(" in context.files[0].text else None
        ),
    }
    fixer = SimpleNamespace(**parts | changed)
    heads = "\n".join(f"## {head}\n." for head in HEADINGS)
    fixer.__doc__ = changed.get("doc", f"ZZZ003 Mine.\n\n{heads}\n")
    return fixer


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"CODE": "zzz3"}, "CODE zzz3 is not"),
        ({"doc": "Mine."}, "does not begin with ZZZ003"),
        ({"doc": "ZZZ003 Mine."}, "headings are not"),
        ({"LABEL": "sure"}, "LABEL is 'sure'"),
        ({"ANSWERS": frozenset({"rain"})}, "unknown categories: rain"),
        ({"KEEPS": ()}, "KEEPS has no example"),
        ({"KEEPS": (Example(before=BEFORE),)}, "KEEPS 1 is changed"),
        ({"FIXES": (Example(before=AFTER, after=AFTER),)}, "FIXES 1 marks no line"),
        ({"FIXES": (Example(before=BEFORE, after=BEFORE),)}, "does not become its after"),
        ({"fix": lambda context: None}, "it becomes:\n(unchanged)"),
        ({"fix": becomes("from a import slow, quick\n" + AFTER)}, "changed again by a second"),
        (
            {"FIXES": (Example(before=BEFORE, after="x = (\n"),), "fix": becomes("x = (\n")},
            "fails the gate compiles",
        ),
    ],
)
def test_what_is_wrong_with_a_fixer_is_said(changed, says):
    found = problems(a_fixer(**changed))
    assert any(says in one for one in found) if says else found == []


def test_there_are_at_least_twenty_fixers():
    assert len(FIXERS) >= 20


def test_every_category_with_a_fault_in_code_has_a_fixer():
    answered = set().union(*(fixer.ANSWERS for fixer in FIXERS.values()))
    assert FAMILY.keys() - OUTSIDE - answered == set()


def test_two_fixers_of_one_code_are_refused():
    fixer = next(iter(FIXERS.values()))
    with pytest.raises(EroicaError, match="share the code"):
        register({fixer.CODE: fixer}, fixer, "again")


def test_a_module_that_lacks_a_part_is_refused():
    with pytest.raises(EroicaError, match="it lacks ANSWERS"):
        register({}, SimpleNamespace(CODE="ABC001", LABEL="safe", FIXES=[1], fix=1), "odd")


def test_a_fixer_is_found_in_any_case_and_an_unknown_one_named():
    assert find_fixer("col001") is FIXERS["COL001"]
    assert title(FIXERS["COL001"]) == "Move a collective out of a condition on the rank"
    with pytest.raises(EroicaError, match="there are: "):
        find_fixer("XYZ999")


def without_part(part):
    parts = {"CODE": "ZZZ002", "ANSWERS": {"gc_pause"}, "LABEL": "safe", "FIXES": [1]}
    module = SimpleNamespace(**parts, KEEPS=[], fix=print)
    module.__doc__ = "ZZZ002 Mine."
    delattr(module, part)
    return module


def test_an_entry_point_adds_a_fixer_and_a_broken_one_is_passed_over(monkeypatch, caplog):
    mine = SimpleNamespace(
        CODE="ZZZ001", ANSWERS={"gc_pause"}, LABEL="safe", FIXES=[1], KEEPS=[], fix=print
    )
    mine.__doc__ = "ZZZ001 Mine."

    def broken():
        raise ImportError("no such module")

    entries = [
        SimpleNamespace(value="good", load=lambda: mine),
        SimpleNamespace(value="bad", load=broken),
        SimpleNamespace(value="part", load=lambda: without_part("ANSWERS")),
        SimpleNamespace(value="again", load=lambda: FIXERS["COL001"]),
    ]
    registry = importlib.import_module("eroica.fix.registry")
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    registry.load_fixers.cache_clear()
    try:
        assert set(registry.load_fixers()) == {*FIXERS, "ZZZ001"}
        assert "bad is left out: no such module" in caplog.text
        assert "part is left out: part is not a fixer: it lacks ANSWERS" in caplog.text
        assert "again is left out: two fixers share the code COL001" in caplog.text
    finally:
        registry.load_fixers.cache_clear()
