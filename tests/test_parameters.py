"""Every number that decides stands in one table with its source and its reason, and is used."""

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from eroica.config import Parameters

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import parameters  # noqa: E402

ROWS = parameters.parameters()


def test_the_table_has_every_parameter_with_its_default():
    told = {row.name: float(row.value) for row in ROWS}
    assert told == {f.name: float(f.default) for f in fields(Parameters)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_parameter_says_where_it_is_from_and_is_used(row):
    assert row.source in ("paper", "ours") and row.reason, f"{row.name}: no source beside it"
    files = [p for p in (ROOT / "eroica").rglob("*.py") if p.name != "config.py"]
    assert any(re.search(rf"\b{row.name}\b", p.read_text()) for p in files), "nobody uses it"


def test_a_number_at_the_top_of_a_rule_says_why_it_is_that_large():
    bare = [f"{r.group} {r.name}" for r in parameters.constants() if not r.reason]
    assert not bare, f"no comment beside: {', '.join(bare)}"


def test_the_page_shows_them():
    text = (ROOT / "docs" / "parameters.md").read_text()
    assert "| `mad_factor` | 5.0 | paper | k |" in text
    assert "| rules/straggler.py | `MIN_EXCESS` |" in text
