"""A model's answer: what is read from it, where it is put, and what is refused."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.fix.answer import Refusal, from_answer
from eroica.fix.matcher import NoMatch, apply_edits, find_block, nearest
from eroica.fix.patches import Edit, Line, marked, parse_answer
from eroica.records import Cause, Incident, Job, Patch, Place

TRAIN = """\
import torch.distributed as dist


def save(model, path):
    model.dump(path)
    dist.barrier()


def train(model, rank):
    for step in range(100):
        model.step()
        if rank == 0 and step % 10 == 0:
            save(model, "x")
"""


def incident(file="train.py"):
    cause = Cause(
        id="C1",
        category="rank_conditional_collective",
        ranks=(0,),
        functions=(Place(name="save", file=file, line=6),),
        share=None,
        confidence=0.9,
        summary="",
        action="patch",
    )
    job = Job(world_size=2, ranks=(0, 1))
    return Incident(
        id="i", symptom="stuck", onset=None, job=job, causes=(cause,), findings=(), warnings=()
    )


@pytest.fixture
def root(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def block(search, replace, path="train.py"):
    return f"{path}\n<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


CURE = block("    model.dump(path)\n    dist.barrier()", "    model.dump(path)")


def reasons(answer, root):
    result = from_answer(answer, incident(), root)
    assert isinstance(result, Refusal), result
    return " | ".join(result.reasons)


def after(answer, root):
    result = from_answer(answer, incident(), root)
    assert isinstance(result, Patch), result
    return result.edits[0].after


# --- forms that are read ---------------------------------------------------------------------


def test_a_search_replace_block_takes_a_one_sided_barrier_away(root):
    patch = from_answer(CURE, incident(), root, source="model x")
    assert isinstance(patch, Patch)
    assert patch.label == "review"
    assert patch.source == "model x"
    assert all(gate.passed for gate in patch.gates)
    assert "-    dist.barrier()\n" in patch.diff
    assert "barrier" not in patch.edits[0].after


def test_a_fenced_block_with_prose_around_it_is_read(root):
    text = f"Here is the fix:\n\n### `train.py`\n```python\n{CURE.split(chr(10), 1)[1]}```\nDone."
    assert "barrier" not in after(text, root)


def test_a_unified_diff_with_wrong_numbers_is_read(root):
    text = """```diff
--- a/train.py
+++ b/train.py
@@ -99,7 +42,1 @@ def save
 def save(model, path):
     model.dump(path)
-    dist.barrier()
```"""
    assert "barrier" not in after(text, root)


def test_a_whole_function_is_read(root):
    text = "train.py\n```python\ndef save(model, path):\n    model.dump(path)\n```"
    assert after(text, root) == TRAIN.replace("    dist.barrier()\n", "")


def test_a_hunk_with_a_wrong_outer_context_line_still_finds_its_place(root):
    text = """--- a/train.py
+++ b/train.py
@@ ... @@
 def store(model, path):
     model.dump(path)
-    dist.barrier()
"""
    assert "barrier" not in after(text, root)


def test_kept_lines_come_from_the_file_and_not_from_the_model(root):
    (root / "train.py").write_text(TRAIN.replace("model.dump(path)", "model.dump( path )  # keep"))
    text = block(
        "    model.dump( path )   # keep\n    dist.barrier()", "    model.dump( path )   # keep"
    )
    assert "    model.dump( path )  # keep\n" in after(text, root)


def test_a_block_written_without_its_indentation_is_moved_to_the_files(root):
    text = block("model.dump(path)\ndist.barrier()", "model.dump(path)\nmodel.check()")
    assert "    model.dump(path)\n    model.check()\n" in after(text, root)


def test_crlf_in_the_file_stays_and_crlf_in_the_answer_does_not_matter(root):
    (root / "train.py").write_bytes(TRAIN.replace("\n", "\r\n").encode())
    text = after(CURE.replace("\n", "\r\n"), root)
    assert text == TRAIN.replace("    dist.barrier()\n", "").replace("\n", "\r\n")


def test_a_file_with_tabs_gets_tabs(root):
    tabs = TRAIN.replace("    ", "\t")
    (root / "train.py").write_text(tabs)
    text = block(
        "    model.dump(path)\n    dist.barrier()",
        "    model.dump(path)\n    for n in range(2):\n        model.check(n)",
    )
    assert "\tmodel.dump(path)\n\tfor n in range(2):\n\t\tmodel.check(n)\n" in after(text, root)


def test_a_file_without_a_newline_at_its_end_keeps_it_so(root):
    (root / "train.py").write_text(TRAIN.rstrip("\n"))
    patch = from_answer(CURE, incident(), root)
    assert isinstance(patch, Patch)
    assert not patch.edits[0].after.endswith("\n")


# --- hostile and broken answers ---------------------------------------------------------------


def test_two_different_patches_for_one_place_are_refused(root):
    other = block("    model.dump(path)\n    dist.barrier()", "    return model.dump(path)")
    assert "two different patches" in reasons(CURE + "\nor\n" + other, root)


def test_two_patches_of_two_places_hold_together(root):
    text = CURE + block("        model.step()", "        model.step()  # one")
    assert "# one" in after(text, root)
    assert "barrier" not in after(text, root)


def test_one_bad_block_spoils_the_whole_answer(root):
    assert "not in the file" in reasons(CURE + block("nowhere()", "x = 1"), root)


def test_a_file_outside_the_evidence_is_refused(root):
    (root / "other.py").write_text("dist.barrier()\n")
    assert "not among the files" in reasons(block("dist.barrier()", "", "other.py"), root)


@pytest.mark.parametrize("path", ["../train.py", "a/../../train.py", "./../train.py"])
def test_a_path_that_leaves_the_project_is_refused(root, path):
    assert "leaves the project" in reasons(CURE.replace("train.py", path, 1), root)


@pytest.mark.parametrize("path", ["/etc/train.py", "C:\\\\train.py"])
def test_an_absolute_path_is_refused(root, path):
    assert "absolute" in reasons(CURE.replace("train.py", path, 1), root)


def test_a_link_is_refused(root, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "real.py"
    outside.write_text(TRAIN)
    (root / "train.py").unlink()
    (root / "train.py").symlink_to(outside)
    result = from_answer(CURE, incident(), root, allowed=["train.py"])
    assert isinstance(result, Refusal)
    assert "through a link" in result.reasons[0]
    assert outside.read_text() == TRAIN


@pytest.mark.parametrize("char", ["\u202e", "\u2066", "\u200b", "\ufeff", "\x08"])
def test_invisible_and_bidirectional_characters_are_refused(root, char):
    text = block("    dist.barrier()", f"    model.check()  # {char}x")
    assert "hides text" in reasons(text, root)


def test_a_patch_already_applied_is_named_so(root):
    (root / "train.py").write_text(TRAIN.replace("    dist.barrier()\n", "    model.check()\n"))
    text = block(
        "    model.dump(path)\n    dist.barrier()", "    model.dump(path)\n    model.check()"
    )
    assert "already in the file" in reasons(text, root)


def test_an_ambiguous_block_is_refused_with_the_places(root):
    (root / "train.py").write_text(TRAIN + "\n\ndef more(model, path):\n    dist.barrier()\n")
    assert "more than one place: lines 6, 17" in reasons(
        block("    dist.barrier()", "    pass"), root
    )


def test_a_syntax_error_is_refused_and_shown_as_display_only(root):
    result = from_answer(block("    dist.barrier()", "    if model:"), incident(), root)
    assert isinstance(result, Refusal)
    assert "does not compile" in result.reasons[0]
    assert result.patch is not None
    assert result.patch.label == "display-only"


def test_a_name_that_nothing_binds_is_refused(root):
    assert "undefined checkpointer" in reasons(
        block("    dist.barrier()", "    checkpointer.wait()"), root
    )


def test_lines_that_are_not_there_are_refused_with_the_nearest(root):
    result = from_answer(
        block("    model.dump(file)\n    dist.barriers()", "    pass"), incident(), root
    )
    assert isinstance(result, Refusal)
    assert any(line == "6:     dist.barrier()" for line in result.nearest)


@pytest.mark.parametrize(
    ("search", "replace"),
    [
        ("        model.step()", "        if rank == 0:\n            dist.barrier()"),
        (
            "        model.step()",
            "        if model.loss().isnan().any():\n            continue\n        "
            "dist.all_reduce(model.x)",
        ),
        (
            "        model.step()",
            "        try:\n            model.step()\n        except ValueError:\n            "
            "dist.barrier()",
        ),
    ],
    ids=["rank", "data", "error"],
)
def test_a_collective_that_only_some_ranks_reach_is_refused(root, search, replace):
    assert "would depend on" in reasons(block(search, replace), root)


def test_a_call_that_leads_to_a_collective_counts_as_one(root):
    text = block("        model.step()", '        if rank == 1:\n            save(model, "y")')
    assert "save() would depend on the rank" in reasons(text, root)


def test_tests_pipelines_and_secrets_are_refused(root):
    (root / "test_train.py").write_text(TRAIN)
    result = from_answer(
        CURE.replace("train.py", "test_train.py", 1), incident(), root, allowed=["test_train.py"]
    )
    assert isinstance(result, Refusal)
    assert "is a test" in result.reasons[0]


def test_a_huge_patch_is_refused(root):
    text = block("    dist.barrier()", "\n".join(f"    model.x{i} = {i}" for i in range(300)))
    assert "300 changed lines" in reasons(text, root)


def test_a_cut_answer_is_refused(root):
    assert "has no end" in reasons(CURE[:60], root)
    assert "has no end" in reasons("train.py\n```python\ndef save(", root)


@pytest.mark.parametrize("text", ["", "I cannot help with that.", "{}", "```json\n{}\n```"])
def test_an_answer_without_a_patch_is_said_to_have_none(root, text):
    assert "holds no patch" in reasons(text, root)


def test_an_empty_search_is_refused(root):
    assert "does not say which lines" in reasons(block("", "x = 1"), root)


# --- the matcher ------------------------------------------------------------------------------


def test_marks_of_a_block_are_context_minus_and_plus():
    assert marked(["a", "b"], ["a", "c"]) == [Line(" ", "a"), Line("-", "b"), Line("+", "c")]


def test_a_loose_match_keeps_a_changed_indentation():
    """Moving a line under a with must not lose its indentation, with tabs in the context."""
    text = "def f():\n    a()\n    b()\n    c()\n"
    lines = (
        Line(" ", "\ta()"),
        Line("-", "\tb()"),
        Line("+", "\twith lock:"),
        Line("+", "\t\tb()"),
    )
    edit = Edit("x.py", "block", (*lines, Line(" ", "\tc()")))
    got = apply_edits(text, [edit])
    assert got == "def f():\n    a()\n    with lock:\n    \tb()\n    c()\n"
    compile(got, "x.py", "exec")


@given(st.lists(st.text("ab \t", max_size=4), min_size=1, max_size=8), st.data())
@settings(max_examples=60, deadline=None)
def test_a_diff_of_two_texts_makes_the_second_of_the_first(lines, data):
    """Whatever is replaced, everything outside the block is byte for byte as before."""
    numbered = [f"{number}{line}" for number, line in enumerate(lines)]
    at = data.draw(st.integers(0, len(numbered) - 1))
    edit = Edit("x", "block", (Line("-", numbered[at]), Line("+", "new")))
    got = apply_edits("\n".join(numbered), [edit])
    assert got.split("\n") == [*numbered[:at], "new", *numbered[at + 1 :]]


@given(st.text(max_size=300))
@settings(max_examples=80, deadline=None)
def test_no_answer_raises_anything_but_value_error(text):
    with contextlib.suppress(ValueError):
        parse_answer(text)


def test_find_block_returns_every_place():
    assert find_block(["a", "b", "a"], ["a"], str) == [0, 2]
    assert find_block(["a"], [""], str) == []


def test_nothing_is_nearest_in_an_unlike_file():
    assert nearest(["x = 1"], ["completely", "different", "lines"]) == []


def test_rival_functions_of_one_name_are_refused():
    edit = Edit("x.py", "function", text="def f():\n    return 2\n")
    with pytest.raises(NoMatch, match="2 definitions of f"):
        apply_edits("def f(): pass\ndef f(): pass\n", [edit])
