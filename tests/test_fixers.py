"""Every fixer against its own examples, and the registry."""

import importlib
import re
from types import SimpleNamespace

import pytest

from eroica.errors import EroicaError
from eroica.fix.diff import file_edit
from eroica.fix.examples import FILE, MARK, outcome, source_of
from eroica.fix.gates import check
from eroica.fix.registry import find_fixer, load_fixers, register, title
from eroica.records import CATEGORIES, FAMILY

FIXERS = load_fixers()
FIXES = [
    pytest.param(fixer, example, id=f"{code}-{n}")
    for code, fixer in FIXERS.items()
    for n, example in enumerate(fixer.FIXES)
]
KEEPS = [
    pytest.param(fixer, example, id=f"{code}-{n}")
    for code, fixer in FIXERS.items()
    for n, example in enumerate(fixer.KEEPS)
]
OUTSIDE = set(CATEGORIES["environment"])


@pytest.mark.parametrize(("fixer", "example"), FIXES)
def test_an_example_becomes_exactly_its_after(fixer, example):
    assert outcome(fixer, example) == example.after


@pytest.mark.parametrize(("fixer", "example"), FIXES)
def test_an_examples_patch_passes_every_gate(fixer, example):
    before, _ = source_of(example)
    gates = check([file_edit(FILE, before, example.after)])
    assert [gate for gate in gates if not gate.passed] == []


@pytest.mark.parametrize(("fixer", "example"), FIXES)
def test_a_second_run_changes_nothing(fixer, example):
    assert outcome(fixer, example, text=example.after) is None


@pytest.mark.parametrize(("fixer", "example"), KEEPS)
def test_a_source_to_keep_is_left_alone(fixer, example):
    assert outcome(fixer, example) is None


@pytest.mark.parametrize("fixer", FIXERS.values(), ids=list(FIXERS))
def test_a_fixer_documents_itself(fixer):
    text = (fixer.__doc__ or "").strip()
    assert text.startswith(f"{fixer.CODE} ")
    assert re.fullmatch(r"[A-Z][A-Z0-9]{1,2}\d{3}", fixer.CODE)
    headings = re.findall(r"^## (.+)$", text, re.M)
    assert headings == ["What it does", "Why it hurts", "When it is wrong"]
    assert fixer.FIXES
    assert fixer.KEEPS
    assert fixer.LABEL in ("safe", "review")
    assert fixer.ANSWERS <= FAMILY.keys() - OUTSIDE
    assert all(MARK in e.before for e in (*fixer.FIXES, *fixer.KEEPS))


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
    ]
    registry = importlib.import_module("eroica.fix.registry")
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    registry.load_fixers.cache_clear()
    try:
        assert set(registry.load_fixers()) == {*FIXERS, "ZZZ001"}
        assert "bad cannot be loaded: no such module" in caplog.text
    finally:
        registry.load_fixers.cache_clear()
