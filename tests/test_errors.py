"""Errors read aloud: each raise in the product says what failed, what was found, what to do."""

import ast
from pathlib import Path

import pytest

from eroica.errors import EroicaError, InputError, MissingExtra, ModelError, StaleSource

ROOT = Path(__file__).parents[1]
KINDS = {"EroicaError", "InputError", "StaleSource"}  # a ModelError is a note of one line


def raises():
    for path in sorted((ROOT / "eroica").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            call = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in KINDS:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", call


def test_every_error_has_its_three_parts():
    seen = 0
    for where, call in raises():
        given = {keyword.arg for keyword in call.keywords}
        parts = len(call.args) + len(given & {"what", "found", "next_step"})
        assert parts == 3, f"{where}: {ast.unparse(call)}"
        seen += 1
    assert seen > 100


def test_no_error_only_says_that_there_was_one():
    for where, call in raises():
        first = ast.unparse(call.args[0]).lower()
        assert "an error occurred" not in first, where
        assert "something went wrong" not in first, where


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EroicaError("what", "found", "next"), 3),
        (InputError("what", "found", "next"), 2),
        (ModelError("what", "found", "next"), 3),
        (StaleSource("what", "found", "next"), 3),
    ],
)
def test_a_message_has_a_line_a_part_and_each_kind_its_exit_code(error, code):
    assert str(error) == "what\nfound\nnext"
    assert error.exit_code == code


def test_an_absent_part_leaves_no_empty_line():
    assert str(InputError("what", next_step="next")) == "what\nnext"


def test_a_missing_extra_names_the_command_that_installs_it():
    error = MissingExtra("eroica mcp", "mcp")
    assert error.exit_code == 3
    assert error.next_step == "pip install 'eroica[mcp]'"
