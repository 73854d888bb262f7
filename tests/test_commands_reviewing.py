"""``eroica review`` around the app: the model asked again, costs, users without a name."""

import json
import os

import msgspec
import pytest
from make_review import changed, patch, session

from eroica import incident as incidents
from eroica.commands import asking, reviewing
from eroica.errors import InputError
from eroica.fix.apply import user_name
from eroica.review.session import Session


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = incidents.create("x")
    review = session(patch("P1", changed(2)), patch("P2", changed(25), cause="C2"))
    made.write_incident(msgspec.structs.replace(review.incident, id=made.id))
    made.write_patches(review.patches)
    return made


def test_without_a_model_a_comment_asks_nobody(folder, tmp_path):
    assert reviewing.asks_again(folder, tmp_path, None) is None


def test_a_comment_and_the_patch_it_is_about_go_to_the_model(folder, tmp_path, monkeypatch):
    asked = {}

    def patches_from_model(folder_, incident, root, model, *, progress, comment=""):
        asked.update(model=model, comment=comment, root=root)
        return [patch("P1", changed(9))]

    monkeypatch.setattr(asking, "patches_from_model", patches_from_model)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    again = reviewing.asks_again(folder, tmp_path, "openai:m")
    (made,) = again(msgspec.structs.replace(patch("P1", changed(2)), diff="-a\n+b\n"), "use a lock")
    assert made.id == "M3", "an id that is taken would replace the other patch"
    assert asked["comment"].startswith("use a lock") and "-a\n+b\n" in asked["comment"]
    assert (asked["model"], asked["root"]) == ("openai:m", tmp_path)


def test_nothing_goes_elsewhere_without_consent_while_the_app_has_the_screen(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(asking, "patches_from_model", lambda *_, **__: pytest.fail("was asked"))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://model.example:9/v1")
    again = reviewing.asks_again(folder, tmp_path, "openai:m")
    with pytest.raises(InputError, match=r"EROICA_SEND_TO=http://model.example:9/v1"):
        again(patch("P1", changed(2)), "no")


def test_a_proposal_for_another_cause_than_the_first_is_not_asked_for(folder, tmp_path):
    again = reviewing.asks_again(folder, tmp_path, "openai:m")
    with pytest.raises(InputError, match="first cause only"):
        again(patch("P2", changed(25), cause="C2"), "no")


def test_the_cost_is_what_all_calls_used_and_else_the_size_of_the_prompt(folder):
    assert reviewing.prompt_cost(folder).startswith("no model was asked; the prompt would be about")
    call = {"model": "openai:m", "input_tokens": 1500, "output_tokens": 80, "seconds": 2.0}
    lines = [json.dumps(call), json.dumps(call), '{"model": "openai:m", "inp']
    folder.transcript_path.write_text("\n".join(lines))
    assert reviewing.prompt_cost(folder) == "openai:m: 3.0k in / 160 out, 2 calls, 4.0 s"


def test_the_app_is_given_all_it_can_use_and_rehearses_for_the_symptom(
    folder, tmp_path, monkeypatch
):
    from eroica import fix
    from eroica.review import app

    given, symptoms = {}, []

    class Shown:
        def __init__(self, session, **options):
            given.update(options)

        def run(self):
            return "left"

    monkeypatch.setattr(app, "ReviewApp", Shown)
    monkeypatch.setattr(fix, "rehearse", lambda *_, symptom, **more: symptoms.append(symptom))
    review = Session.load(folder)
    monkeypatch.setattr(reviewing.output, "is_interactive", lambda: True)
    reviewing.review_on_terminal(folder, tmp_path, verify=["true"], model="openai:m", no_llm=True)
    assert given["regenerate"] is None
    reviewing.review_on_terminal(folder, tmp_path, verify=["true"], model="openai:m")
    given["rehearse"](review.patches[0], print)
    assert symptoms == ["slow"]
    assert given["regenerate"] is not None
    assert "tokens" in given["prompt_cost"]()
    given["save"](review)


@pytest.mark.parametrize(
    ("said", "is_dark"), [("", True), ("15;0", True), ("0;15", False), ("0;default;7", False)]
)
def test_a_light_terminal_is_known_by_what_it_says(said, is_dark, monkeypatch):
    monkeypatch.setenv("COLORFGBG", said)
    assert reviewing.is_dark_terminal() is is_dark


def test_a_user_id_without_a_name_can_write(folder, tmp_path, monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert user_name() == ""
    from make_review import BEFORE

    (tmp_path / "a.txt").write_text(BEFORE)
    answers = iter(["y", "n", "w"])
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    assert reviewing._prompt(Session.load(folder), folder, tmp_path) == 0
    assert (tmp_path / "a.txt").read_text() == changed(2)
