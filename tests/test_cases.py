"""The truth of tests/cases holds together, and the scorer takes it and nothing else for right."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest

from eroica.records import FAMILY

ROOT = Path(__file__).parents[1]
CASES = sorted((ROOT / "tests/cases").glob("*/case.json"))
FAULTY = [path for path in CASES if json.loads(path.read_text())["symptom"] != "healthy"]


def load_judging():
    spec = importlib.util.spec_from_file_location("judging", ROOT / "benchmarks/judging.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


judging = load_judging()


def by_name(path):
    return path.parent.name


def enclosing(source, line):
    """Name of the innermost function around a line, <module> outside of all."""
    spans = [
        (node.lineno, node.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= node.end_lineno
    ]
    return max(spans)[1] if spans else "<module>"


def answer_for(case, reading):
    """The answer that says this reading."""
    outside = "environment" in (case["fault_in"], FAMILY[reading["category"]])
    place = reading["functions"][0]
    where = {"name": place["function"], "file": f"job/{place['file']}", "line": place["line"]}
    cause = {"category": reading["category"], "ranks": reading["ranks"], "functions": [where]}
    cause["action"] = "drain" if outside else "patch"
    return {"symptom": case["symptom"], "causes": [cause]}


def test_there_are_stuck_slow_and_healthy_cases():
    symptoms = [json.loads(path.read_text())["symptom"] for path in CASES]
    assert min(symptoms.count(s) for s in ("stuck", "slow", "healthy")) >= 8


@pytest.mark.parametrize("path", FAULTY, ids=by_name)
def test_each_place_of_the_truth_is_where_it_says(path):
    case = json.loads(path.read_text())
    places = [place for reading in case["accept"] for place in reading["functions"]]
    for place in [case["guilty_file_line"], *places]:
        source = (path.parent / place["file"]).read_text()
        assert enclosing(source, place["line"]) == place["function"], place
    guilty = case["guilty_file_line"]
    source = (path.parent / guilty["file"]).read_text().splitlines()
    assert source[guilty["line"] - 1].strip() == guilty["text"]


@pytest.mark.parametrize("path", FAULTY, ids=by_name)
def test_each_reading_is_solved_and_another_category_is_not(path):
    case = json.loads(path.read_text())
    for reading in case["accept"]:
        incident = answer_for(case, reading)
        assert judging.judge(incident, case, left_behind=0)["solved"]
        assert not judging.judge(incident, case, left_behind=1)["solved"]
        incident["causes"][0]["category"] = "unknown"
        assert not judging.judge(incident, case, left_behind=0)["solved"]


@pytest.mark.parametrize("path", FAULTY, ids=by_name)
def test_the_fixed_program_is_another_one(path):
    assert (path.parent / "fixed.py").read_text() != (path.parent / "train.py").read_text()
    assert json.loads(path.read_text())["expected_category"] in FAMILY


def test_a_healthy_program_with_a_cause_is_not_solved():
    case = {"symptom": "healthy", "world_size": 2}
    assert judging.judge({"symptom": "healthy", "causes": []}, case, 0)["solved"]
    assert not judging.judge({"symptom": "slow", "causes": []}, case, 0)["solved"]
    assert not judging.judge({"symptom": "healthy", "causes": [{}]}, case, 0)["solved"]


def test_in_main_the_line_has_to_be_right():
    place = {"file": "train.py", "function": "main", "line": 40}
    assert judging.is_at({"name": "main", "file": "/jobs/train.py", "line": 43}, place)
    assert not judging.is_at({"name": "main", "file": "/jobs/train.py", "line": 44}, place)
    assert not judging.is_at({"name": "main", "file": "/jobs/other.py", "line": 40}, place)


def test_pace_leaves_out_the_first_report():
    text = (
        "step 5 loss 2.5 90.0 ms/it\nstep 10 loss 1.5e-1 10.0 ms/it\nstep 15 loss 0.25 12.0 ms/it"
    )
    run = judging.Run(0, text, "", 1.0)
    assert (run.milliseconds, run.progress, run.loss) == (11.0, 3, 0.25)


def test_the_environment_of_a_command_is_split_off():
    assert judging.split_command("A=1 B_2=x=y torchrun train.py") == (
        {"A": "1", "B_2": "x=y"},
        ["torchrun", "train.py"],
    )


def test_the_last_incident_of_the_output_counts():
    lines = ['{"symptom": "slow", "causes": []}', "step 1", '{"other": 1}', '{"symptom": "stuck",']
    assert judging.incident_in("\n".join(lines))["symptom"] == "slow"
    assert judging.incident_in("step 1\n{not json") is None
