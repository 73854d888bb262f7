"""The review session: decisions, conflicts, undo, and the text that results."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_review import BEFORE, changed, patch, session

from eroica import incident as incidents
from eroica.review.hunks import combine, hunks_of, shown_lines, split
from eroica.review.prompt import review_by_prompt
from eroica.review.session import ConflictError


def test_far_changes_are_two_hunks_and_near_ones_a_hunk_that_splits():
    assert len(hunks_of("P1", "a.py", BEFORE, changed(2, 25))) == 2
    (hunk,) = hunks_of("P1", "a.py", BEFORE, changed(10, 13))
    assert [len(part.changes) for part in split(hunk)] == [1, 1]


def test_accepting_one_of_two_hunks_writes_only_that_one():
    review = session(patch("P1", changed(2, 25)))
    review.accept(review.items[1])
    (result,) = review.result()
    assert result.edits[0].after == changed(25)


def test_hunks_of_two_patches_on_one_file_combine():
    review = session(patch("P1", changed(2)), patch("P2", changed(25), cause="C2"))
    for item in review.items:
        review.accept(item)
    (result,) = review.result()
    assert result.edits[0].after == changed(2, 25)


def test_overlapping_hunks_of_two_patches_are_refused():
    other = BEFORE.replace("line 2\n", "other 2\n")
    review = session(patch("P1", changed(2)), patch("P2", other))
    review.accept(review.items[0])
    with pytest.raises(ConflictError, match="P1"):
        review.accept(review.items[1])


def test_display_only_patches_cannot_be_accepted():
    review = session(patch("P1", changed(2), label="display-only"))
    with pytest.raises(ConflictError):
        review.accept(review.items[0])
    assert review.accept_labels(("safe", "review")) == 0


def test_accept_safe_leaves_review_patches_open():
    review = session(patch("P1", changed(2), label="safe"), patch("P2", changed(25)))
    assert review.accept_safe() == 1
    assert [item.state for item in review.items] == ["accepted", "open"]


def test_accept_labels_takes_one_patch_a_cause():
    first, second = patch("P1", changed(2)), patch("P2", changed(25))
    review = session(first, second, patch("P3", changed(15), cause="C2"))
    review.accept_labels(("safe", "review"))
    assert [item.state for item in review.items] == ["accepted", "open", "accepted"]


def test_undo_goes_back_one_decision_at_a_time():
    review = session(patch("P1", changed(2, 25)))
    review.accept(review.items[0])
    review.reject(review.items[1])
    assert review.undo() == "reject P1"
    assert [item.state for item in review.items] == ["accepted", "open"]
    review.undo()
    assert review.undo() is None
    assert review.counts() == {"open": 2, "accepted": 0, "rejected": 0}


def test_an_edited_hunk_is_what_gets_written():
    review = session(patch("P1", changed(10)))
    edited = review.edit(review.items[0], ["mine\n"])
    review.accept(edited)
    assert "mine\n" in review.result()[0].edits[0].after


def test_a_comment_rejects_and_is_kept_for_the_next_proposal():
    review = session(patch("P1", changed(10)))
    review.comment(review.items[0], "use a lock")
    assert review.comments == {"P1": ["use a lock"]}
    assert review.items[0].state == "rejected"


def test_write_applies_and_keeps_a_journal(tmp_path):
    folder = incidents.create("x", tmp_path)
    review = session(patch("P1", changed(2, 25)))
    review.accept(review.items[0])
    review.reject(review.items[1])
    seen = []

    def apply(patches, root, folder):
        seen.extend(patches)
        return patches

    assert review.write(tmp_path, folder, apply) == 1
    assert seen[0].edits[0].after == changed(2)
    assert [d.action for d in folder.read_decisions()] == ["accept", "reject"]


def test_shown_lines_number_the_new_side_after_an_insertion():
    after = BEFORE.replace("line 3\n", "line 3\nnew\n")
    (hunk,) = hunks_of("P1", "a.py", BEFORE, after)
    marks = [(line.mark, line.number) for line in shown_lines(hunk, BEFORE, context=1)]
    assert marks == [(" ", 3), ("+", 4), (" ", 4)]


@given(st.lists(st.sampled_from("abcde\n"), max_size=40), st.lists(st.sampled_from("abx\n")))
def test_all_hunks_accepted_give_the_text_after(before, after):
    old, new = "".join(before), "".join(after)
    changes = [change for hunk in hunks_of("P", "f", old, new) for change in hunk.changes]
    assert combine(old, changes) == new


def test_the_prompt_walks_hunks_and_says_whether_to_write():
    review = session(patch("P1", changed(2, 25)))
    answers, shown = iter(["?", "y", "n", "w"]), []
    assert review_by_prompt(review, ask=lambda _: next(answers), show=shown.append)
    assert [item.state for item in review.items] == ["accepted", "rejected"]
    assert any("line 2" in text for text in shown)


def test_the_end_of_input_leaves_the_prompt_without_writing():
    def ask(_):
        raise EOFError

    review = session(patch("P1", changed(2)))
    assert not review_by_prompt(review, ask=ask, show=lambda _: None)


def test_w_with_nothing_accepted_does_not_write():
    review = session(patch("P1", changed(2)))
    assert not review_by_prompt(review, ask=lambda _: "w", show=lambda _: None)
