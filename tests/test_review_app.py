"""The review app under Textual's pilot: every key, sizes, empty and large reviews."""

import random
import threading
import time

import msgspec
import pytest
from make_review import BEFORE, changed, patch, session

from eroica.records import Claim, Diagnosis, Finding, Function, Rehearsal
from eroica.review.app import ReviewApp
from eroica.review.diff_view import DiffView
from eroica.review.diff_view import rows_of as rows_a_line


def text_of(app: ReviewApp, where: str) -> str:
    pane = app.query_one(where)
    return pane.plain if isinstance(pane, DiffView) else str(pane.content)


def rows_of(app: ReviewApp, where: str = "#diff") -> list[str]:
    """What the screen shows of a pane, row by row."""
    region = app.query_one(where).content_region
    strips = app.screen._compositor.render_strips()[region.y : region.bottom]
    return [strip.crop(region.x, region.right).text.rstrip() for strip in strips]


def colors_of(app: ReviewApp, where: str = "#diff") -> set[str]:
    region = app.query_one(where).content_region
    strips = app.screen._compositor.render_strips()[region.y : region.bottom]
    styles = [one.style for strip in strips for one in strip.crop(region.x, region.right)]
    return {style.bgcolor.triplet.hex for style in styles if style and style.bgcolor}


def app_of(*patches, **options) -> ReviewApp:
    return ReviewApp(session(*patches), **options)


async def test_y_accepts_and_moves_to_the_next_open_hunk():
    app = app_of(patch("P1", changed(2, 25)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("y")
        assert [item.state for item in app.session.items] == ["accepted", "open"]
        assert app.index == 1
        assert "1 accepted" in text_of(app, "#status")


async def test_n_rejects_and_u_takes_it_back():
    app = app_of(patch("P1", changed(2, 25)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("n")
        assert app.session.items[0].state == "rejected"
        await pilot.press("u")
        assert app.session.items[0].state == "open"


async def test_a_accepts_only_safe_patches():
    app = app_of(patch("P1", changed(2), label="safe"), patch("P2", changed(25)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("a")
        assert [item.state for item in app.session.items] == ["accepted", "open"]


async def test_d_rejects_the_rest_of_the_file():
    app = app_of(patch("P1", changed(2, 25)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("d")
        assert app.session.counts()["rejected"] == 2


async def test_s_splits_a_hunk():
    app = app_of(patch("P1", changed(10, 13)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("s")
        assert len(app.session.items) == 2


async def test_j_k_and_arrows_move_between_hunks():
    app = app_of(patch("P1", changed(2, 15, 28)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("j", "down")
        assert app.index == 2
        await pilot.press("k", "up", "up")
        assert app.index == 0


async def test_brackets_move_between_causes():
    app = app_of(patch("P1", changed(2)), patch("P2", changed(25), cause="C2"))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("right_square_bracket")
        assert app.cause is not None and app.cause.id == "C2"
        await pilot.press("left_square_bracket")
        assert app.cause.id == "C1"


async def test_a_key_typed_into_a_comment_decides_nothing():
    asked = []

    def regenerate(patch_, text):
        asked.append((patch_.id, text))
        return [patch("P9", changed(20))]

    app = app_of(patch("P1", changed(2, 25)), regenerate=regenerate)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("c", *"yw", "escape")
        assert app.session.counts() == {"open": 2, "accepted": 0, "rejected": 0}
        await pilot.press("c", *"yes", "enter")
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert asked == [("P1", "yes")]
        assert [item.hunk.patch for item in app.session.items] == ["P1", "P1", "P9"]


async def test_slash_searches_the_proposals():
    app = app_of(patch("P1", changed(2, 25)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("slash", *"changed", "space", *"25", "enter")
        assert app.index == 1


async def test_e_replaces_the_hunk_by_what_the_editor_leaves(monkeypatch, tmp_path):
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nsed -i "s/changed/edited/" "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    app = app_of(patch("P1", changed(10)))
    monkeypatch.setattr(ReviewApp, "suspend", lambda self: __import__("contextlib").nullcontext())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("e", "y")
        (result,) = app.session.result()
        assert "edited 10\n" in result.edits[0].after


async def test_r_rehearses_and_shows_the_verdict():
    def rehearse(_, tell):
        tell("with the patch, step 3")
        return Rehearsal(command=("x",), verdict="cured", summary="finished, 80 steps")

    app = app_of(patch("P1", changed(2)), rehearse=rehearse)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "finished, 80 steps" in text_of(app, "#about-text")


async def test_w_writes_what_is_accepted_and_ends():
    written = []
    app = app_of(patch("P1", changed(2, 25)), write=lambda s: written.append(s.result()) or 1)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("w")
        assert not written and "nothing is accepted" in text_of(app, "#status")
        await pilot.press("y", "w")
    assert app.return_value == "written" and len(written) == 1


async def test_q_never_writes_and_asks_when_something_is_accepted():
    written = []
    app = app_of(patch("P1", changed(2)), write=lambda s: written.append(1) or 1)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("y", "q")
        assert "q again" in text_of(app, "#status")
        await pilot.press("q")
    assert app.return_value == "left" and not written


async def test_a_failed_write_keeps_the_review_open():
    def write(_):
        raise OSError("disk full")

    app = app_of(patch("P1", changed(2)), write=write)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("y", "w")
        assert "disk full" in text_of(app, "#status")


async def test_help_opens_and_any_key_closes_it():
    app = app_of(patch("P1", changed(2)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("question_mark")
        assert len(app.screen_stack) == 2
        await pilot.press("y")
        assert len(app.screen_stack) == 1
        assert app.session.items[0].state == "open"


@pytest.mark.parametrize("key", ["v", "o", "p", "tab"])
async def test_looking_keys_decide_nothing(key):
    app = app_of(patch("P1", changed(2)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(key)
        assert app.session.counts()["open"] == 1


async def test_whole_file_shows_lines_far_from_the_hunk():
    app = app_of(patch("P1", changed(2)))
    async with app.run_test(size=(120, 40)) as pilot:
        assert "line 29" not in text_of(app, "#diff")
        await pilot.press("o")
        assert "line 29" in text_of(app, "#diff")


async def test_hidden_characters_are_shown_escaped():
    after = BEFORE.replace("line 2\n", "if ok:\u202e\u200b # fine\tdone\n")
    app = app_of(patch("P1", after))
    async with app.run_test(size=(120, 40)):
        shown = text_of(app, "#diff")
        assert "\\u202e\\u200b" in shown and "→" in shown


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (220, 60)])
async def test_it_fits_small_and_wide_terminals(size):
    app = app_of(patch("P1", changed(2)))
    async with app.run_test(size=size) as pilot:
        assert app.query_one("#diff").region.width >= 60
        await pilot.resize_terminal(80, 24)
        await pilot.press("v")
        assert app.query_one("#evidence").region.width > 60
        assert app.query_one("#diff").region.width == 0


async def test_no_proposal_at_all_is_shown_calmly():
    app = app_of()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("y", "n", "a", "d", "s", "e", "c", "r", "u", "j", "w")
        assert "no cause was found" in text_of(app, "#causes")


async def test_two_hundred_hunks_are_walked():
    long = "".join(f"line {n}\n" for n in range(4000))
    after = "".join(f"changed {n}\n" if n % 20 == 0 else f"line {n}\n" for n in range(4000))
    one = patch("P1", after)
    edit = msgspec.structs.replace(one.edits[0], before=long)
    app = app_of(msgspec.structs.replace(one, edits=(edit,)))
    async with app.run_test(size=(120, 40)) as pilot:
        assert len(app.session.items) == 200
        await pilot.press(*["y"] * 20)
        assert app.session.counts()["accepted"] == 20


async def test_a_takes_one_of_two_safe_alternatives():
    app = app_of(patch("P1", changed(2), label="safe"), patch("P2", changed(25), label="safe"))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("a")
        assert [item.state for item in app.session.items] == ["accepted", "open"]


async def test_rehearsals_and_new_proposals_are_kept_when_the_review_is_left():
    saved = []
    app = app_of(
        patch("P1", changed(2)),
        rehearse=lambda _, tell: Rehearsal(command=("x",), verdict="cured", summary="done"),
        regenerate=lambda _, text: [patch("M1", changed(20))],
        save=lambda s: saved.append([(one.id, bool(one.rehearsal)) for one in s.patches]),
    )
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.press("c", *"no", "enter")
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.press("q")
    assert saved == [[("P1", True)], [("P1", True), ("M1", False)]]


async def test_p_says_what_the_prompts_cost():
    app = app_of(patch("P1", changed(2)), prompt_cost=lambda: "openai:m: 1.2k in / 80 out")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("p")
        assert "1.2k in / 80 out" in text_of(app, "#status")


async def test_an_edit_that_does_not_compile_is_told_and_not_taken(monkeypatch, tmp_path):
    from eroica.fix.diff import file_edit

    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nprintf "print(((\\n" > "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    monkeypatch.setattr(ReviewApp, "suspend", lambda self: __import__("contextlib").nullcontext())
    edit = file_edit("a.py", "print(1)\n", "print(2)\n")
    app = app_of(msgspec.structs.replace(patch("P1", ""), edits=(edit,)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("e")
        assert "does not compile" in text_of(app, "#status")
        await pilot.press("y")
        assert app.session.result()[0].edits[0].after == "print(2)\n"


def measured(number, rank, beta):
    function = Function(id="f", kind="python", name="load_batch")
    return Finding(
        id=f"F{number}", kind="pattern", rank=rank, beta=beta, function=function, text=f"is {beta}"
    )


def with_findings(*findings, citations=("F3",)):
    """A review whose only cause has these findings, and an explanation that cites some."""
    review = session(patch("P1", changed(2)))
    cause = msgspec.structs.replace(
        review.incident.causes[0], findings=tuple(one.id for one in findings)
    )
    review.incident = msgspec.structs.replace(
        review.incident, causes=(cause,), findings=tuple(findings)
    )
    claim = Claim(text="rank 2 loads longest", citations=citations)
    diagnosis = Diagnosis(cause="C1", verdict="supported", summary="s", claims=(claim,))
    return ReviewApp(review, diagnoses=[diagnosis])


async def test_the_evidence_shows_a_heatmap_of_ranks_and_functions():
    app = with_findings(measured(1, 0, 0.02), measured(2, 1, 0.5), measured(3, 2, 1.0))
    async with app.run_test(size=(120, 40)):
        lines = text_of(app, "#evidence-text").splitlines()
        assert "0 1 2" in lines[1]
        assert lines[2] == "load_batch     ░ ▒ █ 1.00"


async def test_one_rank_alone_gets_no_heatmap():
    app = with_findings(measured(1, 0, 0.02))
    async with app.run_test(size=(120, 40)):
        assert "heat" not in text_of(app, "#evidence-text")
        assert "beta by function" not in text_of(app, "#evidence-text")


async def test_f_goes_to_the_finding_that_the_explanation_cites():
    findings = [measured(n, n, 0.1) for n in range(1, 41)]
    app = with_findings(*findings, citations=("F40", "a.py:3"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f")
        await pilot.pause()
        pane = app.query_one("#evidence")
        assert pane.region.width > 60, "a narrow screen turns to the evidence"
        assert "F40 (1 of 2): rank 2 loads longest" in text_of(app, "#status")
        assert pane.scroll_offset.y > 20
        content = app.query_one("#evidence-text").content
        assert any(span.style == "reverse" for span in content.spans)
        await pilot.press("f")
        assert "a.py:3 (2 of 2)" in text_of(app, "#status")


async def test_f_without_citations_says_so():
    app = app_of(patch("P1", changed(2)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("f")
        assert "cites nothing" in text_of(app, "#status")


@pytest.mark.parametrize("is_dark", [True, False])
async def test_light_and_dark_differ_in_background_and_diff(is_dark, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    app = app_of(patch("P1", changed(2)), is_dark=is_dark)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert (app.screen.styles.background.brightness < 0.5) is is_dark
        added = "#12361f" if is_dark else "#ccf2d5"
        assert added in colors_of(app)
        await pilot.press("t")
        assert (app.screen.styles.background.brightness < 0.5) is not is_dark


async def test_no_color_leaves_no_color_and_marks_say_what_colors_said(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = app_of(patch("P1", changed(2)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("y")
        await pilot.pause()
        strips = app.screen._compositor.render_strips()
        segments = [one for strip in strips for one in strip]
        colors = [one.style.color for one in segments if one.style and one.style.color]
        triplets = [color.triplet for color in colors if color.triplet]
        assert triplets
        assert all(t.red == t.green == t.blue for t in triplets)
        assert "+    2  changed 2" in text_of(app, "#diff")
        assert "✓" in str(app.query_one("#diff").border_title)


def long_patch(num_lines=4000, every=20):
    """One patch of many hunks in a long file."""
    long = "".join(f"line {n}\n" for n in range(num_lines))
    after = "".join(
        f"changed {n}\n" if n % every == 10 else f"line {n}\n" for n in range(num_lines)
    )
    one = patch("P1", after)
    edit = msgspec.structs.replace(one.edits[0], before=long)
    return msgspec.structs.replace(one, edits=(edit,))


async def test_o_shows_the_whole_of_a_long_file_and_stays_at_the_hunk():
    app = app_of(long_patch())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(*["j"] * 100, "o")
        pane = app.query_one(DiffView)
        assert pane.virtual_size.height == 4001, "4000 lines, one of them twice"
        assert any(row.startswith("+ 2011  changed 2010") for row in rows_of(app))
        await pilot.press("home")
        await pilot.pause()
        assert rows_of(app)[0] == "     1  line 0"
        pane.scroll_end(animate=False)
        await pilot.pause()
        assert rows_of(app)[-1] == "  4000  line 3999"
        await pilot.press("o")
        assert pane.virtual_size.height == 8


async def test_a_long_diff_is_scrolled_by_its_own_keys(monkeypatch):
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    app = app_of(long_patch())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("o", "home")
        await pilot.press("pagedown", "space", "shift+down")
        await pilot.pause(0.3)
        assert app.query_one(DiffView).scroll_offset.y > 40
        assert app.index == 0
        await pilot.press("end")
        await pilot.pause(0.3)
        assert rows_of(app)[-1] == "  4000  line 3999"


async def test_only_the_rows_on_the_screen_are_colored():
    app = app_of(long_patch())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("o")
        await pilot.pause()
        assert 1 <= len(app.query_one(DiffView)._bodies) <= 2


async def test_long_lines_wrap_at_the_pane_and_lose_nothing():
    text = "x = '" + "".join(chr(ord("a") + n % 26) for n in range(400)) + "'"
    app = app_of(patch("P1", BEFORE.replace("line 2\n", text + "\n")))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        rows = rows_of(app)
        first = next(n for n, row in enumerate(rows) if row.startswith("+"))
        taken = rows_a_line(text, app.query_one(DiffView)._width)
        assert taken > 5
        await pilot.resize_terminal(200, 60)
        await pilot.pause()
        rows = rows_of(app)
        first = next(n for n, row in enumerate(rows) if row.startswith("+"))
        taken = rows_a_line(text, app.query_one(DiffView)._width)
        assert "".join(row[8:] for row in rows[first : first + taken]) == text


def test_wide_characters_take_two_cells():
    assert rows_a_line("漢" * 10, 10) == 2
    assert rows_a_line("a" * 10, 10) == 1
    assert rows_a_line("\u202e" * 2, 10) == 2, "escaped it is 12 characters"
    assert rows_a_line("", 10) == 1


async def test_letters_that_show_as_nothing_are_escaped():
    after = BEFORE.replace("line 2\n", "if ok:\u3164 = 1 \U000e0101\n")
    app = app_of(patch("P1", after))
    async with app.run_test(size=(120, 40)):
        assert "\\u3164" in text_of(app, "#diff") and "\\U000e0101" in text_of(app, "#diff")


async def test_no_key_decides_on_a_hunk_that_is_not_seen():
    app = app_of(patch("P1", changed(2)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("v", "y")
        assert app.session.counts()["open"] == 1
        assert app.query_one("#diff").region.width > 60, "it is shown now"
        await pilot.press("y")
        assert app.session.counts()["accepted"] == 1


async def test_tab_and_the_mouse_do_not_lead_out_of_a_comment():
    app = app_of(patch("P1", changed(2, 25)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("c", "tab", "y")
        await pilot.click(offset=(60, 5))
        await pilot.press("n", "w", "q")
        assert app.session.counts()["open"] == 2
        assert app.screen.query_one("#entry").value == "ynwq"


async def test_a_comment_is_about_the_hunk_it_was_begun_on():
    app = app_of(patch("P1", changed(2)), patch("P2", changed(25)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("c", *"why")
        app.index = 1
        await pilot.press("enter")
        await pilot.pause()
        assert app.session.comments == {"P1": ["why"]}


async def test_a_new_proposal_does_not_push_away_the_hunk_that_is_read():
    gate = threading.Event()

    def regenerate(_, text):
        gate.wait(10)
        return [patch("M1", changed(20))]

    app = app_of(patch("P1", changed(2, 15, 28)), regenerate=regenerate)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("c", *"no", "enter")
        await pilot.pause()
        assert app.index == 1 and "asking for another patch" in text_of(app, "#status")
        await pilot.press("j", "k")
        assert "asking for another patch" in text_of(app, "#status"), "moving does not hide it"
        gate.set()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.index == 1
        assert "1 new at the end" in text_of(app, "#status")


async def test_one_rehearsal_at_a_time_and_leaving_does_not_wait_for_it():
    gate, begun = threading.Event(), []

    def rehearse(one, tell):
        begun.append(one.id)
        tell("with the patch, step 7")
        gate.wait(30)
        return Rehearsal(command=("x",), verdict="cured", summary="done")

    app = app_of(patch("P1", changed(2)), rehearse=rehearse)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("r", "r")
        assert "one at a time" in text_of(app, "#status")
        app._tick()
        assert "rehearsing P1: with the patch, step 7" in text_of(app, "#status")
        await pilot.press("question_mark")  # a message while the help is open breaks nothing
        app._tick()
        await pilot.press("q")
        await pilot.press("q")
        assert "under way" in text_of(app, "#status")
        start = time.monotonic()
        await pilot.press("q")
    assert app.return_value == "left" and time.monotonic() - start < 5
    assert begun == ["P1"]
    gate.set()


async def test_q_asks_again_when_something_was_done_in_between():
    app = app_of(patch("P1", changed(2, 25)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("y", "q", "n", "q")
        assert app.return_value is None
        assert "q again" in text_of(app, "#status")
        await pilot.press("q")
    assert app.return_value == "left"


async def test_undo_goes_back_to_the_hunk_it_is_about():
    app = app_of(patch("P1", changed(2, 15, 28)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("y", "y", "u")
        assert app.index == 1
        await pilot.press("u")
        assert app.index == 0


async def test_a_cause_without_a_proposal_can_be_looked_at_and_not_decided_on():
    app = with_findings(measured(1, 0, 0.02), measured(2, 1, 0.5))
    cause = app.session.incident.causes[0]
    other = msgspec.structs.replace(cause, id="C9", category="slow_nic", findings=("F2",))
    app.session.incident = msgspec.structs.replace(app.session.incident, causes=(cause, other))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("right_square_bracket")
        assert app.cause is other and "no proposal" in str(app.query_one("#diff").border_title)
        assert "F1" not in text_of(app, "#evidence-text")
        await pilot.press("y", "n", "d", "s", "e", "c", "r")
        assert app.session.counts()["open"] == 1
        await pilot.press("j")
        assert app.cause is cause and "changed 2" in text_of(app, "#diff")


async def test_the_mouse_chooses_a_cause_and_presses_keys():
    app = app_of(patch("P1", changed(2)), patch("P2", changed(25), cause="C2"))
    async with app.run_test(size=(160, 40)) as pilot:
        await pilot.click("#causes", offset=(6, 3))
        assert app.cause is not None and app.cause.id == "C2"
        await pilot.click("#status", offset=(1, 0))
        assert app.session.counts()["accepted"] == 1


async def test_a_resize_while_the_help_is_open_reaches_the_panes():
    app = app_of(patch("P1", changed(2)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("question_mark")
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        await pilot.press("x")
        await pilot.pause()
        assert app.query_one("#diff").region.width == 80


async def test_a_long_message_is_shown_whole():
    def write(_):
        raise OSError("no space left on the device " * 8 + "END")

    app = app_of(patch("P1", changed(2)), write=write)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("y", "w")
        await pilot.pause()
        assert "END" in " ".join(rows_of(app, "#status"))
        assert "1 accepted" in " ".join(rows_of(app, "#status"))


async def test_e_without_a_terminal_to_lend_says_so():
    app = app_of(patch("P1", changed(2)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("e")
        assert "cannot be lent" in text_of(app, "#status")


@pytest.mark.parametrize("key", ["q", "ctrl+q", "ctrl+c"])
async def test_every_way_out_asks_when_something_is_accepted(key):
    app = app_of(patch("P1", changed(2)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("y", key)
        assert app.return_value is None and "q again" in text_of(app, "#status")
        await pilot.press(key)
    assert app.return_value == "left"


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_is_pressed_in_whatever_order_nothing_breaks(seed, monkeypatch):
    """Every key of the table, the comment box, sizes and answers that come at any moment."""
    chance = random.Random(seed)
    keys = [
        *"ynadsecrujkvfotpw/?q[]hxYN0 ",
        *("tab", "enter", "escape", "up", "down", "left", "home", "end", "pagedown", "f5"),
    ]
    names = {"[": "left_square_bracket", "]": "right_square_bracket", " ": "space"}
    names |= {"/": "slash", "?": "question_mark"}
    written, counter = [], iter(range(100))

    def write(review):
        written.append(review.counts()["accepted"])
        raise OSError("disk full")

    app = app_of(
        patch("P1", changed(2, 12, 25)),
        patch("P2", changed(8), cause="C2", label="safe"),
        patch("P3", changed(28), cause="C2", label="display-only"),
        write=write,
        rehearse=lambda _, tell: Rehearsal(command=("x",), verdict="worse", summary="slower"),
        regenerate=lambda _, text: [patch(f"M{next(counter)}", changed(20))],
        save=lambda _: None,
    )
    async with app.run_test(size=(120, 40)) as pilot:
        for number in range(120):
            if number % 17 == 0:
                await pilot.resize_terminal(
                    chance.choice([20, 80, 99, 200]), chance.choice([6, 40])
                )
            monkeypatch.setattr(app, "exit", lambda *_: None)
            key = chance.choice(keys)
            await pilot.press(names.get(key, key))
            app.session.result()  # what would be written can be made at any moment
        while len(app.screen_stack) > 1:
            await pilot.press("escape")
        monkeypatch.undo()
        app.exit("left")
    assert all(written), "w does nothing where nothing is accepted"
