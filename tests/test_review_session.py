"""The review session: decisions, conflicts, undo, and the text that results."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_review import BEFORE, changed, patch, session

from eroica import fix
from eroica import incident as incidents
from eroica.fix.diff import file_edit
from eroica.records import Rehearsal
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
    assert {result.edits[0].after for result in review.result()} == {changed(2, 25)}


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


def rehearsed(one, verdict):
    return msgspec.structs.replace(
        one, rehearsal=Rehearsal(command=("x",), verdict=verdict, summary="")
    )


def states(review):
    return {item.hunk.patch: item.state for item in review.items}


@pytest.mark.parametrize("verdict", ["worse", "failed", "no change"])
def test_a_patch_that_a_rehearsal_speaks_against_gives_way_to_the_next(verdict):
    bad = rehearsed(patch("P1", changed(2), label="safe"), verdict)
    review = session(bad, patch("P2", changed(25), label="safe"))
    assert review.accept_safe() == 1
    assert states(review) == {"P1": "open", "P2": "accepted"}


def test_all_safe_takes_one_of_two_alternatives_and_stands_by_what_was_chosen():
    first, second = patch("P1", changed(2), label="safe"), patch("P2", changed(25), label="safe")
    review = session(first, second)
    review.accept_safe()
    assert states(review) == {"P1": "accepted", "P2": "open"}
    review = session(first, second)
    review.accept(review.items[1])
    assert review.accept_safe() == 0


def test_a_patch_that_clashes_gives_way_to_the_next_of_its_cause():
    other = BEFORE.replace("line 2\n", "other 2\n")
    review = session(
        patch("P1", changed(2)),
        patch("P2", other, cause="C2"),
        patch("P3", changed(25), cause="C2"),
    )
    assert review.accept_labels(("safe", "review")) == 2
    assert states(review) == {"P1": "accepted", "P2": "open", "P3": "accepted"}


def test_a_rejected_hunk_keeps_its_patch_from_being_taken():
    review = session(patch("P1", changed(2, 25), label="safe"))
    review.reject(review.items[0])
    assert review.accept_safe() == 0


@pytest.fixture
def on_disk(tmp_path):
    """A project with one file, and an incident folder; returns a function that opens a review."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.txt").write_text(BEFORE)
    folder = incidents.create("x", tmp_path)

    def opened(*patches):
        review = session(*patches)
        folder.write_incident(review.incident)
        folder.write_patches(list(patches))
        return review, root, folder

    return opened


def test_two_patches_in_one_file_are_both_applied_recorded_and_undone(on_disk):
    review, root, folder = on_disk(patch("P1", changed(2)), patch("P2", changed(3), cause="C2"))
    review.accept_labels(("review",))
    assert review.write(root, folder, fix.apply) == 1
    assert (root / "a.txt").read_text() == changed(2, 3)
    assert all(one.applied for one in folder.read_patches())
    assert {d.patch for d in folder.read_decisions() if d.action == "apply"} == {"P1", "P2"}
    fix.undo(folder)
    assert (root / "a.txt").read_text() == BEFORE
    assert not any(one.applied for one in folder.read_patches())


def test_a_patch_accepted_in_part_says_which_hunks_were_applied(on_disk):
    review, root, folder = on_disk(patch("P1", changed(2, 25)), patch("P2", changed(15)))
    review.accept(review.items[1])
    review.accept(review.items[2])
    review.write(root, folder, fix.apply)
    part, whole = folder.read_patches()
    assert (part.applied_hunks, whole.applied_hunks) == ((2,), ())
    assert part.edits[0].after == changed(2, 25), "the proposal itself is kept"
    taken = {d.patch: (d.hunk, d.files) for d in folder.read_decisions() if d.action == "accept"}
    assert taken["P1"][0] == 2
    assert set(taken["P1"][1]) == {"a.txt"}


def test_a_failed_write_leaves_no_journal_and_a_second_writes_it_once(on_disk):
    review, root, folder = on_disk(patch("P1", changed(2)))
    review.accept(review.items[0])
    (root / "a.txt").write_text("something else")
    for _ in range(2):
        with pytest.raises(Exception, match="changed since"):
            review.write(root, folder, fix.apply)
    assert folder.read_decisions() == []
    (root / "a.txt").write_text(BEFORE)
    review.write(root, folder, fix.apply)
    assert sorted(d.action for d in folder.read_decisions()) == ["accept", "apply"]


def test_proposals_that_came_meanwhile_stay(on_disk):
    review, root, folder = on_disk(patch("P1", changed(2)))
    folder.write_patches([*review.patches, patch("A1", changed(9))])
    review.accept(review.items[0])
    review.write(root, folder, fix.apply)
    assert [one.id for one in folder.read_patches()] == ["P1", "A1"]


def test_an_applied_patch_is_not_taken_again():
    done = msgspec.structs.replace(patch("P1", changed(2)), applied="2026-01-01T00:00:00Z")
    review = session(done, patch("P2", changed(25)))
    assert review.accept_labels(("review",)) == 0
    with pytest.raises(ConflictError, match="applied already"):
        review.accept(review.items[0])


def test_undo_of_a_comment_takes_it_out_of_the_journal(tmp_path):
    folder = incidents.create("x", tmp_path)
    review = session(patch("P1", changed(2)))
    review.comment(review.items[0], "use a lock")
    review.undo()
    assert review.comments == {}
    review.write(tmp_path, folder, fix.apply)
    assert folder.read_decisions() == []


def test_undo_goes_back_past_new_proposals_without_losing_them():
    review = session(patch("P1", changed(2)))
    review.reject(review.items[0])
    review.add([patch("P9", changed(20)), patch("P1", changed(2))])
    review.undo()
    assert states(review) == {"P1": "open", "P9": "open"}


PYTHON = "import os\n\nprint(1)\nprint(2)\nprint(3)\nprint(4)\nprint(5)\nprint(6)\nprint(7)\n"


def python_patch(after, **options):
    one = patch("P1", "", **options)
    return msgspec.structs.replace(one, edits=(file_edit("a.py", PYTHON, after),))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("print(0\n", "does not compile"),
        ("print(undefined_name)\n", "undefined"),
        ("print(1)  # \u202e\n", "hides text"),
    ],
)
def test_an_edit_that_fails_a_check_is_refused_and_the_hunk_stays(text, reason):
    review = session(python_patch(PYTHON.replace("print(1)", "print(10)"), label="safe"))
    with pytest.raises(ConflictError, match=reason):
        review.edit(review.items[0], [text])
    assert not review.items[0].is_edited
    assert review.undo() is None


def test_an_edited_hunk_of_a_safe_patch_is_no_longer_safe(on_disk, tmp_path):
    review = session(python_patch(PYTHON.replace("print(1)", "print(10)"), label="safe"))
    edited = review.edit(review.items[0], ["print(11)\n"])
    assert review.label_of(edited) == "review"
    assert review.accept_safe() == 0
    review.accept(edited)
    (result,) = review.result()
    assert (result.label, result.applied_hunks) == ("review", (1,))
    review.undo()
    review.undo()
    assert review.label_of(review.items[0]) == "safe"


def test_hunks_that_need_each_other_are_not_written_apart(tmp_path):
    after = PYTHON.replace("import os\n", "import os\nimport gc\n").replace(
        "print(7)", "gc.collect()"
    )
    review = session(python_patch(after))
    assert len(review.items) == 2
    review.accept(review.items[1])
    with pytest.raises(ConflictError, match="undefined gc"):
        review.write(tmp_path, incidents.create("x", tmp_path), fix.apply)


def test_proposals_for_two_versions_of_a_file_do_not_combine():
    later = file_edit("a.txt", "new first line\n" + BEFORE, "new first line\n" + changed(25))
    second = msgspec.structs.replace(patch("P2", "", cause="C2"), edits=(later,))
    review = session(patch("P1", changed(2)), second)
    assert review.accept_labels(("review",)) == 1
    with pytest.raises(ConflictError, match="P1"):
        review.accept(review.items[1])


def test_lines_are_numbered_as_editors_do_also_behind_a_form_feed():
    before = "a = 1\n\x0c\ndef f():\n    return '\u2028'\n"
    after = before.replace("return", "yield")
    (hunk,) = hunks_of("P1", "a.py", before, after)
    shown = [(line.mark, line.number) for line in shown_lines(hunk, before)]
    assert shown == [(" ", 1), (" ", 2), (" ", 3), ("-", 4), ("+", 4)]
    assert combine(before, list(hunk.changes)) == after
