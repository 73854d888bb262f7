"""Blocks of an answer at their borders: which file, how much context, which lines are near."""

import pytest

from eroica.fix.matcher import NoMatch, apply_edits, nearest
from eroica.fix.patches import Edit, Line, parse_answer

BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 2\n>>>>>>> REPLACE\n"


@pytest.mark.parametrize(
    "above",
    [
        "job/train.py\n",
        "job/train.py\n```python\n",
        "```python job/train.py\n",
        "```job/train.py\n",
        "It waits for ever in this file:\n\njob/train.py\n",
    ],
)
def test_the_file_of_a_block_is_named_right_above_it_or_in_its_fence(above):
    (edit,) = parse_answer(above + BLOCK)
    assert (edit.path, edit.old, edit.new) == ("job/train.py", ["a = 1"], ["a = 2"])


def test_a_second_block_without_a_name_is_of_the_same_file():
    first, second = parse_answer("a/b.py\n" + BLOCK + "and\n" + BLOCK.replace("1", "3"))
    assert first.path == second.path == "a/b.py"


def test_prose_above_a_block_is_no_name():
    (edit,) = parse_answer("a/b.py is what I looked at.\nNow the change.\n" + BLOCK)
    assert edit.path == ""


def block(*lines):
    marks = tuple(Line(line[0], line[1:]) for line in lines)
    return Edit(path="a.py", kind="block", lines=marks)


TEXT = "one\ntwo\nthree\nfour\nfive\n"


def test_wrong_context_at_either_end_is_dropped_as_long_as_a_line_is_left():
    wanted = "one\ntwo\nTHREE\nfour\nfive\n"
    assert apply_edits(TEXT, [block(" wrong", " two", "-three", "+THREE")]) == wanted
    assert apply_edits(TEXT, [block("-three", "+THREE", " four", " wrong")]) == wanted
    assert apply_edits(TEXT, [block(" x", " y", "-three", "+THREE", " z")]) == wanted


def test_a_block_of_which_nothing_would_be_left_has_no_place():
    with pytest.raises(NoMatch, match="not in the file"):
        apply_edits(TEXT, [block(" wrong", "+new", " wrong too")])


def test_more_than_three_wrong_lines_are_no_match():
    with pytest.raises(NoMatch, match="not in the file"):
        apply_edits(TEXT, [block(" a", " b", " c", " d", "-three", "+THREE")])


def test_the_nearest_lines_come_with_their_numbers_and_neighbors():
    assert nearest(TEXT.splitlines(), ["thre"], around=1) == ["2: two", "3: three", "4: four"]
    assert nearest(["only"], ["onl"]) == ["1: only"]
    assert nearest(TEXT.splitlines(), ["fou", "fiv"], around=0) == ["4: four", "5: five"]
    assert nearest([], ["x"]) == []
