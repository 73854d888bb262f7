"""The evidence pack and the source behind it: bounded, differential, inside the project."""

import subprocess

import msgspec
import pytest
from make_patterns import make_patterns
from make_prompts import TRAIN, with_source

from eroica.explain.evidence import gather
from eroica.explain.parts import inert, near
from eroica.explain.sources import Sources
from eroica.records import LogEvent, Place


def packed(folder, **options):
    incident = folder.read_incident()
    return gather(incident, incident.causes[0], evidence=folder.read_evidence(), **options)


def part(pack, name):
    [text] = [one.text for one in pack.parts if one.name.startswith(name)]
    return text


def test_source_has_real_line_numbers_and_marks_the_line(saved_incident, tmp_path):
    pack = packed(with_source(saved_incident("stuck"), tmp_path / "p"))
    guilty = part(pack, "source train.py:5-7")
    assert guilty.splitlines() == [
        "     5  def save_checkpoint(model):",
        '     6      torch.save(model.state_dict(), "model.pt")',
        ">    7      dist.barrier()",
    ]
    assert len(pack.source_sha256) == 64


def test_the_caller_and_the_imports_come_along(saved_incident, tmp_path):
    pack = packed(with_source(saved_incident("stuck"), tmp_path / "p"))
    names = [one.name for one in pack.parts if one.name.startswith("source")]
    assert names[1] == "source train.py:10-15 (its caller or where it was set up)"
    assert names[-1] == "source train.py:1-2 (imports)"


def test_guilty_and_healthy_rank_stand_side_by_side(saved_incident):
    text = part(packed(saved_incident("stuck")), "difference")
    assert "the guilty rank 0" in text and "a healthy rank 1" in text
    assert text.index("distributed_c10d.py:5356 barrier") < text.index("a healthy rank 1")
    assert text.index("graph.py:979") > text.index("a healthy rank 1")


def test_patterns_are_shown_with_their_peers(saved_incident):
    pack = packed(saved_incident("slow"))
    assert "guilty:  beta=0.43 mu=0.91 sigma=0.05" in part(pack, "difference")
    assert "healthy: beta=0.02 mu=0.5 sigma=0.1" in part(pack, "difference")
    assert "beta=0.43 mu=0.91 sigma=0.05 differential_distance=1.3 threshold=0.4" in part(
        pack, "findings"
    )


@pytest.mark.parametrize("share", ["none", "names"])
def test_no_source_leaves_below_the_level_of_functions(saved_incident, tmp_path, share):
    pack = packed(with_source(saved_incident("stuck"), tmp_path / "p"), share=share)
    assert not [one for one in pack.parts if one.name.startswith("source")]
    assert "torch.save" not in pack.text


def test_files_are_sent_whole_where_that_is_allowed(saved_incident, tmp_path):
    pack = packed(with_source(saved_incident("stuck"), tmp_path / "p"), share="files")
    [name] = [one.name for one in pack.parts if one.name.startswith("source")]
    assert name.startswith(f"source train.py:1-{len(TRAIN.splitlines())}")


@pytest.mark.parametrize("budget", [2000, 600, 250, 60])
def test_the_budget_holds_and_what_is_left_out_is_named(saved_incident, tmp_path, budget):
    folder = with_source(saved_incident("stuck"), tmp_path / "p")
    full = packed(folder)
    pack = packed(folder, budget=budget)
    assert sum(one.tokens for one in pack.parts) <= budget + 16
    if sum(one.tokens for one in full.parts) > budget:
        assert pack.left_out
    assert pack.parts[0].name == "verdict"


def test_the_lowest_weight_goes_first(saved_incident, tmp_path):
    folder = with_source(saved_incident("stuck"), tmp_path / "p")
    evidence = folder.read_evidence()
    logs = (LogEvent(kind="watchdog", text="x" * 300),)
    folder.write_evidence(msgspec.structs.replace(evidence, log_events=logs))
    full = packed(folder)
    pack = packed(folder, budget=sum(one.tokens for one in full.parts) - 10)
    assert pack.left_out == ("logs",)


@pytest.mark.parametrize(
    "file",
    ["../outside.py", "/etc/passwd", "notes.txt", "<string>", "", "a\0b.py", "link.py", "none.py"],
)
def test_no_file_outside_the_project_is_read(tmp_path, file):
    (tmp_path / "outside.py").write_text("secret = 1\n")
    root = tmp_path / "project"
    root.mkdir()
    (root / "notes.txt").write_text("x\n")
    (root / "link.py").symlink_to(tmp_path / "outside.py")
    sources = Sources(root)
    assert sources.function(Place(name="f", file=file, line=1)) is None
    assert sources.whole(file) is None


def test_a_file_that_does_not_parse_is_shown_around_the_line(tmp_path):
    (tmp_path / "a.py").write_text("def f(:\n" * 100)
    excerpt = Sources(tmp_path).function(Place(name="f", file="a.py", line=50))
    assert (excerpt.first, excerpt.last, excerpt.mark) == (38, 62, 50)


def test_a_long_function_is_cut_around_the_line(tmp_path):
    (tmp_path / "a.py").write_text("def f():\n" + "    x = 1\n" * 500)
    excerpt = Sources(tmp_path).function(Place(name="f", file="a.py", line=400))
    assert excerpt.first < 400 < excerpt.last
    assert len(excerpt.lines) <= 120


def test_a_line_beyond_the_file_shows_nothing(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    assert Sources(tmp_path).function(Place(name="f", file="a.py", line=9)) is None


def test_the_commits_that_touched_the_lines_are_named(saved_incident, tmp_path):
    folder = with_source(saved_incident("stuck"), tmp_path / "p")
    git = ["git", "-C", str(tmp_path / "p"), "-c", "user.name=n", "-c", "user.email=e@x.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "train.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "Add a barrier after saving"], check=True)
    text = part(packed(folder), "commits")
    assert "train.py:5-7" in text and "Add a barrier after saving" in text
    assert "e@x.org" not in text


def test_foreign_text_stays_on_its_line():
    assert inert("a\nb\u202e\x1b[0m") == "a\\nb\\u202e\\x1b[0m"
    assert len(inert("x" * 5000)) < 500


def test_a_guilty_rank_is_set_beside_the_median_of_the_others(saved_incident):
    incident = saved_incident("slow").read_incident()
    pack = gather(incident, incident.causes[0], patterns=make_patterns(8, (2,)))
    lines = part(pack, "profile").splitlines()
    assert lines[0].startswith("window of the guilty ranks: compute 55 %")
    assert "rank 2 (guilty) against the median of the other ranks:" in lines
    at = lines.index("[python] dataset.py:88 json.loads")
    assert lines[at + 1].startswith("  guilty:  beta=0.43") and "in 10 calls" in lines[at + 1]
    assert lines[at + 2].startswith("  healthy: beta=0.019 mu=0.90")


def test_a_cause_on_all_ranks_lists_the_largest_functions(saved_incident):
    incident = saved_incident("hardware").read_incident()
    pack = gather(incident, incident.causes[1], patterns=make_patterns(8, ()))
    assert "mean over all ranks, largest first:" in part(pack, "profile")


def test_source_that_is_not_there_is_said(saved_incident):
    folder = saved_incident("stuck")
    pack = packed(folder)
    assert "the source of the guilty function was not found" in part(pack, "not collected")
    pack = packed(folder, share="names")
    assert "the source of the guilty function is not shared" in part(pack, "not collected")


def test_what_the_shown_functions_use_of_their_file_comes_along(saved_incident, tmp_path):
    text = TRAIN.replace("def save_checkpoint", 'NAMES = ("a", "b")\n\n\ndef save_checkpoint')
    text = text.replace('"model.pt")', "NAMES[0])") + "\n\ndef train_step(n):\n    return n\n"
    text += "\n\ndef unrelated():\n    return 0\n"
    folder = with_source(saved_incident("stuck"), tmp_path / "p", text, line=10)
    names = [one.name for one in packed(folder).parts if one.name.startswith("source")]
    assert "source train.py:5-5 (used by it)" in names
    assert "source train.py:21-22 (used by it)" in names
    assert "unrelated" not in packed(folder).text


def test_files_are_named_as_short_as_they_stay_clear():
    place = Place(name="f", file="/opt/v/lib/python3.11/site-packages/torch/nn/x.py", line=1)
    assert near(place, "/home/p").file == "torch/nn/x.py"
    assert near(Place(name="f", file="/home/p/a/t.py", line=1), "/home/p").file == "a/t.py"
    assert near(Place(name="f", file="/home/pq/t.py", line=1), "/home/p").file == "/home/pq/t.py"
    assert near(Place(name="f"), None).file is None


DECODER = """\
import subprocess

def command():
    return ["python", "decode.py"]

class Decoder:
    def __init__(self):
        self.process = subprocess.Popen(command(), stdin=subprocess.PIPE)

    def ask(self, number):
        self.process.stdin.write(number)
        return self.process.stdout.readline()

def main():
    Decoder().ask(1)
"""


def decoder_pack(folder, tmp_path):
    root = tmp_path / "p"
    root.mkdir()
    (root / "decode.py").write_text("while True:\n    print(input())\n")
    return packed(with_source(folder, root, DECODER, line=12))


def test_a_method_comes_with_its_class_and_what_that_uses(saved_incident, tmp_path):
    pack = decoder_pack(saved_incident("stuck"), tmp_path)
    assert "self.process = subprocess.Popen" in part(pack, "source train.py:6-12 (its class)")
    assert "def command" in part(pack, "source train.py:3-4 (used by it)")


def test_a_script_that_the_code_starts_is_shown(saved_incident, tmp_path):
    pack = decoder_pack(saved_incident("stuck"), tmp_path)
    assert "print(input())" in part(pack, "source decode.py:1-2 (a script it names)")


def test_of_a_long_class_the_set_up_and_the_methods_used_are_shown(tmp_path):
    filler = "".join(f"    def other_{n}(self):\n        return {n}\n" for n in range(40))
    text = f"class Long:\n    def __init__(self):\n        self.n = 0\n{filler}"
    text += "    def last(self):\n        return self.other_7()\n"
    (tmp_path / "long.py").write_text(text)
    sources = Sources(tmp_path)
    place = Place(name="Long.last", file="long.py", line=len(text.splitlines()))
    found = sources.class_of(sources.function(place))
    assert [one.lines[0].strip() for one in found] == ["def __init__(self):", "def other_7(self):"]


def test_paths_of_the_machine_of_the_job_are_found_below_the_root_given(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    place = Place(name="save_checkpoint", file="/jobs/17/train.py", line=7)
    assert Sources(tmp_path).function(place) is None
    assert Sources(tmp_path, "/jobs/17/").function(place).first == 5
    assert Sources(tmp_path, "/jobs/1").function(place) is None


def test_the_functions_on_the_way_to_a_finding_are_shown(saved_incident, tmp_path):
    folder = with_source(saved_incident("slow"), tmp_path / "p", DECODER, line=12)
    incident = folder.read_incident()
    cause = msgspec.structs.replace(incident.causes[0], functions=incident.causes[0].functions[:1])
    stack = (Place(name="main", file="train.py", line=15),)
    findings = tuple(
        msgspec.structs.replace(one, function=msgspec.structs.replace(one.function, stack=stack))
        if one.function
        else one
        for one in incident.findings
    )
    incident = msgspec.structs.replace(incident, findings=findings, causes=(cause,))
    names = [one.name for one in gather(incident, cause).parts]
    assert "source train.py:14-15 (on the way to it)" in names


def test_files_that_no_patch_may_change_are_left_out_and_the_rest_is_listed(
    saved_incident, tmp_path
):
    folder = with_source(saved_incident("stuck"), tmp_path / "p", TRAIN, line=10)
    assert packed(folder).files == ["train.py"]
    assert packed(folder, may_show=lambda path: path != "train.py").files == []
