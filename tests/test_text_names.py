"""Names as the person who wrote the code knows them."""

import pytest

from eroica.text import function_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("load.<locals>.<listcomp>", "load"),
        ("Feed.batch.<locals>.<genexpr>", "Feed.batch"),
        ("main.<locals>.<lambda>.<locals>.<setcomp>", "main"),
        ("decorate.<locals>.wrapper", "decorate.<locals>.wrapper"),
        ("<listcomp>", "<listcomp>"),
        ("<module>", "<module>"),
    ],
)
def test_a_comprehension_goes_by_the_function_it_stands_in(name, expected):
    assert function_name(name) == expected
