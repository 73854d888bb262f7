"""Reports as text and HTML: golden, escaped, complete, and only with what the incident holds."""

import html as stdlib_html
import re
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import pytest
from make_patterns import make_patterns

from eroica.explain import explain
from eroica.records import (
    Claim,
    Decision,
    Diagnosis,
    JobEvidence,
    RankEvidence,
    RankExit,
    StepMs,
    StepTimes,
)
from eroica.report import html, markdown
from eroica.report.blocks import Document, Section, Table, Text, all_anchors
from eroica.report.content import Options, document
from eroica.report.impact import impact_of, lost_share
from eroica.report.material import load
from eroica.report.timeline import strip

NAMES = ["stuck", "slow", "hardware", "healthy", "missing"]
HOSTILE = [
    "<script>alert(1)</script>",
    "</pre></section><img src=x onerror=alert(1)>",
    "\"'><svg/onload=alert(1)>",
    "[click](javascript:alert(1)) ![x](http://evil.example/p.png)",
    "| a | b |\n| --- | --- |\n# heading\n```\ncode",
    "`</code><b>`",
    "a\x00b\x1b[31m\u202egnp.exe",
    "F1 C1 &amp; &lt;",
]


OUR_TAGS = set(
    re.findall(
        r"\w+",
        "html head meta title link style body header nav main section footer p a h1 h2 h3 h4 "
        "dl div dt dd ul ol li table thead tbody tr th td pre code span figure figcaption "
        "svg defs g path clippath rect use text tspan image",
    )
)


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.attributes = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.append((tag, name, value))
            if name == "id":
                self.ids.append(value)
            if name == "href" and value.startswith("#"):
                self.links.append(value[1:])


@pytest.mark.parametrize("name", NAMES)
def test_markdown_is_as_recorded(saved_incident, golden, name):
    golden(f"golden_reports/{name}.md", markdown.render(saved_incident(name)))


def test_markdown_with_an_explanation_by_a_model_is_as_recorded(saved_incident, golden):
    folder = saved_incident("stuck")
    told = Diagnosis(
        cause="C1",
        verdict="supported",
        summary="Rank 0 waits alone.",
        claims=(
            Claim(text="It waits in the barrier.", citations=("F1", "train.py:28")),
            Claim(text="Rank 9 is slow.", citations=("F8",), is_resolved=False),
        ),
        next_steps=("Take the barrier out.",),
        source="openai:m",
        notes=("not in the evidence: F8",),
    )
    folder.write_diagnoses([told])
    golden("golden_reports/stuck_model.md", markdown.render(folder))


def test_a_model_that_failed_is_said_and_the_rules_stand(saved_incident):
    from eroica.explain import explain

    folder = saved_incident("stuck")
    [rules] = explain(folder.read_incident())
    note = "written by rule: openai:m did not answer"
    folder.write_diagnoses([msgspec.structs.replace(rules, notes=(note,))])
    text = markdown.render(folder)
    assert "> Written by rule: openai:m did not answer." in text
    assert "Not collected\n\n- written by rule" not in text


@pytest.mark.parametrize("name", NAMES)
def test_pages_stand_alone_and_their_links_resolve(saved_incident, name):
    text = html.render(saved_incident(name))
    page = Page(text)
    assert len(text) < 2_000_000
    assert len(page.ids) == len(set(page.ids))
    assert set(page.links) <= set(page.ids)
    assert "script" not in page.tags and "iframe" not in page.tags
    sources = [v for _, a, v in page.attributes if a in ("src", "href", "xlink:href", "action")]
    assert all(value.startswith(("#", "data:")) for value in sources)
    assert not re.search(r"url\((?!#)", text) and "@import" not in text


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_has_words(saved_incident, name):
    page = Page(html.render(saved_incident(name)))
    labels = [v for _, a, v in page.attributes if a == "aria-label"]
    labels = [label for label in labels if label not in ("Sections", "Timeline")]
    assert page.tags.count("svg") == len(labels)
    assert all(len(label) > 20 for label in labels)


@pytest.mark.parametrize(
    ("name", "pictures"),
    [
        ("stuck", {"waiting", "steps"}),
        ("slow", {"breakdown"}),
        ("hardware", set()),
        ("healthy", {"breakdown"}),
    ],
)
def test_the_pictures_are_those_the_incident_can_support(saved_incident, name, pictures):
    page = Page(html.render(saved_incident(name)))
    known = {"waiting", "steps", "breakdown", "heatmap", "arrivals", "pattern"}
    assert set(page.ids) & known == pictures


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_stay_text(saved_incident, hostile):
    folder = saved_incident("stuck")
    incident = folder.read_incident()
    raw = msgspec.to_builtins(incident)
    for cause in raw["causes"]:
        cause |= {"summary": hostile, "why": [hostile], "against": [hostile], "advice": hostile}
        cause["functions"] = [{"name": hostile, "file": hostile, "line": 3}]
        cause["hosts"] = [hostile]
    for finding in raw["findings"]:
        finding |= {"text": hostile, "function": {"id": "x", "kind": "python", "name": hostile}}
    for row in raw["ranks_table"]:
        row |= {"place": hostile, "last_collective": hostile, "note": hostile}
    raw |= {"headline": hostile, "not_seen": [hostile], "source": hostile}
    raw["job"] |= {"hosts": {hostile: [0]}, "command": [hostile]}
    folder.write_incident(msgspec.convert(raw, type(incident)))
    claim = Claim(text=hostile, citations=(hostile,), is_resolved=False)
    told = Diagnosis(
        cause="C1",
        verdict="supported",
        summary=hostile,
        claims=(claim,),
        next_steps=(hostile,),
        disproved_by=(hostile,),
        source=hostile,
        notes=(hostile,),
    )
    folder.write_diagnoses([told])
    patches = [
        msgspec.structs.replace(patch, title=hostile, why=hostile, behaviour=hostile)
        for patch in folder.read_patches()
    ]
    folder.write_patches(patches)
    text = html.render(folder)
    page = Page(text)
    assert set(page.tags) <= OUR_TAGS
    assert not [a for _, a, _ in page.attributes if a.startswith("on")]
    assert not any(ord(char) < 32 and char not in "\n\t" for char in text)
    assert "\u202e" not in text
    page_text = markdown.render(folder)
    bare = re.sub(r"(?ms)^(```+)diff$.*?^\1$", "", page_text)
    assert not re.search(r"(?<!\\)<[a-z/]", re.sub(r"`[^`]*`", "", bare), re.IGNORECASE)
    assert "](javascript" not in bare.replace("\\", "") or "\\[click" in bare
    assert "\n# heading" not in bare


def test_a_code_block_cannot_end_its_fence():
    from eroica.report.blocks import Code

    text = markdown.render_document(
        Document("t", "slow", "", (Section("s", "S", (Code("a\n````\n# x\n", "diff"),)),))
    )
    assert "`````diff\na\n````\n# x\n`````" in text


def test_a_pipe_or_backtick_does_not_break_a_table():
    table = Table(("a", "b"), (("x|`y|z`", "w"),))
    text = markdown.render_document(Document("t", "slow", "", (Section("s", "S", (table,)),)))
    row = text.splitlines()[-1]
    assert row == "| x\\|'y\\|z' | w |"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("- item", "\\- item"),
        ("1. one", "1\\. one"),
        ("> quote", "\\> quote"),
        ("+ plus", "\\+ plus"),
        ("snake_case _em_ *b*", "snake_case \\_em\\_ \\*b\\*"),
        ("see http://x.example", "see http:\\//x.example"),
        ("`eroica list` now", "`eroica list` now"),
        ("lone ` tick", "lone \\` tick"),
    ],
)
def test_markdown_text_is_inert(text, line):
    document = Document("t", "slow", "", (Section("s", "S", (Text(text),)),))
    assert markdown.render_document(document).splitlines()[-1] == line


def test_prose_links_to_findings_that_exist_and_to_no_others():
    table = Table(("Id",), (("F1",),), anchors=("F1",))
    sections = (Section("s", "S", (Text("F1 and F2, XF1"), table)),)
    text = html.render_document(Document("t", "slow", "", sections, "", all_anchors(sections)))
    assert '<a href="#F1">F1</a> and F2, XF1' in text


# --- what it says ---------------------------------------------------------------------------


def test_impact_counts_rank_hours_and_money(saved_incident):
    facts = dict(impact_of(load(saved_incident("hardware")), 2.5, "EUR"))
    # 1 h at 1 - 9260/10500 of 256 ranks
    assert facts["GPU-hours lost"].startswith("30.23 in 60 min")
    assert facts["Cost"] == "75.58 EUR at 2.5 an hour"
    assert facts["Step"] == "10 s, before 9.3 s (1.13 x)"


def test_a_stuck_job_loses_all_its_time(saved_incident):
    facts = dict(impact_of(load(saved_incident("stuck"))))
    assert facts["Time lost"] == "100 % of the job's time"
    assert facts["Rank-hours lost"] == "0.04 in 34 s since the onset"


def test_a_healthy_job_lost_nothing(saved_incident):
    assert impact_of(load(saved_incident("healthy"))) == (("Step", "135 ms"),)


def test_hardware_says_that_code_does_not_help(saved_incident):
    text = markdown.render(saved_incident("hardware"))
    assert "> This is not in the code: no patch is proposed." in text
    assert "Suspected" in text and "C2" in text


def test_a_broken_part_is_named_and_the_rest_stands(saved_incident):
    folder = saved_incident("stuck")
    (folder.path / "patches.json").write_text("{")
    folder.patterns_path.write_bytes(b"junk")
    text = markdown.render(folder)
    assert "the patches could not be read" in text
    assert "the patterns could not be read" in text
    assert "rank 0 waits in a barrier" in text


def test_many_findings_and_hosts_are_cut_and_the_cut_is_said(saved_incident):
    folder = saved_incident("hardware")
    incident = folder.read_incident()
    one = incident.findings[0]
    many = tuple(msgspec.structs.replace(one, id=f"F{n}") for n in range(1, 500))
    folder.write_incident(msgspec.structs.replace(incident, findings=many))
    text = markdown.render(folder)
    assert "439 more in incident.json" in text


def test_numbers_of_the_text_come_from_the_incident(saved_incident):
    """Every number a reader sees is in the records, a rank count, or derived from them here."""
    folder = saved_incident("slow")
    text = stdlib_html.unescape(markdown.render(folder))
    known = folder.incident_bytes().decode()
    derived = {"1.75", "43", "0.60", "10", "30", "8", "7", "2", "0.40", "1.30"}
    numbers = set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", text))
    strange = {n for n in numbers if n not in known and n not in derived}
    assert {n for n in strange if not re.fullmatch(r"0?\d|\d\.\d0|0\.\d+0", n)} == set()


def test_anonymized_reports_name_nobody_and_the_owner_can_turn_them_back(saved_incident):
    from eroica.report.bundle import reveal

    folder = saved_incident("stuck")
    plain = markdown.render(folder)
    hidden = markdown.render(folder, Options(pictures=False, anonymize=True))
    assert "gpu-003" in plain and "by ada" in plain
    assert "gpu-003" not in hidden and "ada" not in hidden
    assert reveal(folder, hidden) == plain
    assert "gpu-003" not in html.render(folder, Options(anonymize=True))


@pytest.mark.parametrize("world_size", [8, 3400])
def test_pictures_of_patterns_name_the_odd_ranks(saved_incident, world_size):
    odd = (2, 5)
    material = load(saved_incident("slow"))
    cause = msgspec.structs.replace(material.incident.causes[0], ranks=odd)
    incident = msgspec.structs.replace(material.incident, causes=(cause,))
    patterns = make_patterns(world_size, odd)
    made = document(replace(material, incident=incident, patterns=patterns), Options())
    text = html.render_document(made)
    page = Page(text)
    assert {"heatmap", "pattern", "arrivals"} <= set(page.ids)
    assert set(page.links) <= set(page.ids)
    assert len(text) < 600_000
    labels = {v for t, a, v in page.attributes if a == "aria-label" and t == "div"}
    assert any("ranks 2,5 43 %" in label for label in labels)
    assert any(re.search(r"rank [25] comes latest", label) for label in labels)
    assert any(re.search(r"(json.loads|all_reduce) on rank [25] is", label) for label in labels)


def test_pages_are_the_same_bytes_each_time(saved_incident):
    folder = saved_incident("slow")
    assert html.render(folder) == html.render(folder)


# --- the timeline's strip --------------------------------------------------------------------

T0 = 1_700_000_000_000_000_000


def timed(material, **evidence):
    """The same incident, its onset at T0 and diagnosed a minute later, with this evidence."""
    incident = msgspec.structs.replace(
        material.incident, onset="2023-11-14T22:13:20+00:00", created="2023-11-14T22:14:20+00:00"
    )
    record = JobEvidence(world_size=2, **{"ranks": (), **evidence})
    return replace(material, incident=incident, evidence=record, decisions=())


def test_the_strip_shows_the_moments_in_order_with_their_distance(saved_incident):
    material = timed(
        load(saved_incident("slow")),
        ranks=(
            RankEvidence(
                rank=0,
                steps=StepTimes(
                    first_step=7,
                    start_ns=(T0 - 3 * 10**9, T0 - 2 * 10**9, T0),
                    duration_ns=(10**9, 10**9, 10**9),
                ),
            ),
        ),
        detected_ns=T0 + 20 * 10**9,
        window_ns=(T0 + 22 * 10**9, T0 + 25 * 10**9),
        taken_ns=T0 + 30 * 10**9,
    )
    stops = [(stop.label, stop.when, stop.offset) for stop in strip(material).stops]
    assert stops == [
        ("last healthy step 8", "22:13:19", "-1.0 s"),
        ("onset", "22:13:20", "0"),
        ("noticed", "22:13:40", "+20 s"),
        ("window", "22:13:42", "+22 s"),
        ("evidence taken", "22:13:50", "+30 s"),
        ("diagnosed", "22:14:20", "+60 s"),
    ]
    shown = document(material, Options(pictures=False))
    page, text = html.render_document(shown), markdown.render_document(shown)
    assert page.count('<li class="bad">') == 1 and 'class="strip"' in page
    assert "**onset** 22:13:20 (0) → **noticed** 22:13:40 (+20 s)" in text


def test_decisions_stand_on_the_strip_and_the_last_one_always(saved_incident):
    material = load(saved_incident("stuck"))
    decisions = tuple(
        Decision(time=f"2023-11-14T22:2{n}:00+00:00", patch=f"P{n}", action="reject")
        for n in range(9)
    )
    material = replace(timed(material), decisions=decisions)
    bare = msgspec.structs.replace(material.incident, deadline_ns=None)
    material = replace(material, incident=bare)
    stops = strip(material).stops
    assert len(stops) == 7
    assert stops[0].label == "onset" and stops[-1].label == "reject P8"


def test_one_moment_alone_is_no_strip(saved_incident):
    material = timed(load(saved_incident("healthy")))
    bare = msgspec.structs.replace(material.incident, onset=None)
    assert strip(replace(material, incident=bare)) is None


def test_hostile_text_on_the_strip_is_escaped(saved_incident):
    hostile = "<script>alert(1)</script>"
    material = replace(
        timed(load(saved_incident("slow"))),
        decisions=(Decision(time="2023-11-14T22:20:00+00:00", patch=hostile, action="reject"),),
    )
    page = html.render_document(document(material, Options(pictures=False)))
    assert hostile not in page and "reject &lt;script&gt;" in page


def test_an_end_without_fault_has_no_place_on_the_strip(saved_incident):
    ended = [(0, 0, 1), (1, 1, 2), (2, 0, 3)]
    ranks = tuple(
        RankEvidence(rank=rank, exit=RankExit(exit_code=code, time_ns=T0 + at))
        for rank, code, at in ended
    )
    material = timed(load(saved_incident("slow")), ranks=ranks)
    assert [stop.label for stop in strip(material).stops] == [
        "onset",
        "rank 1 exited",
        "diagnosed",
    ]


def test_a_job_that_was_slow_from_the_start_loses_what_its_cause_costs(saved_incident):
    material = load(saved_incident("slow"))
    job = msgspec.structs.replace(material.incident.job, step_ms=StepMs(before=282.0, now=289.0))
    cause = msgspec.structs.replace(material.incident.causes[0], share=0.93)
    incident = msgspec.structs.replace(material.incident, job=job, causes=(cause,))
    assert lost_share(replace(material, incident=incident)) == 0.93


def test_what_was_said_of_one_cause_is_not_said_again_of_the_next(saved_incident):
    material = load(saved_incident("stuck"))
    cause = msgspec.structs.replace(material.incident.causes[0], why=("Rank 1 waits.", "One."))
    other = msgspec.structs.replace(cause, id="C2", why=("Rank 1 waits.", "Another."))
    incident = msgspec.structs.replace(material.incident, causes=(cause, other))
    told = explain(incident, evidence=material.evidence)
    page = html.render_document(
        document(replace(material, incident=incident, diagnoses=tuple(told)), Options(False))
    )
    assert page.count("<li>Rank 1 waits.") == 1
    assert page.count("<li>One.") == page.count("<li>Another.") == 1


def test_code_in_a_heading_is_code(saved_incident):
    material = load(saved_incident("stuck"))
    cause = msgspec.structs.replace(material.incident.causes[0], summary="left by `continue`")
    incident = msgspec.structs.replace(material.incident, causes=(cause,))
    page = html.render_document(document(replace(material, incident=incident), Options(False)))
    assert "<h1>left by <code>continue</code>" in page
    assert "<title>stuck: left by continue" in page
