"""Who is told of an incident: metrics, a web address, a command, other hosts."""

import http.client
import json
import logging
import re
import sys
import threading
from http import server as plain

import pytest

from eroica.errors import InputError
from eroica.incident import IncidentFolder
from eroica.records import Cause, Incident, Job, JobEvidence, Place, StepMs, Warning
from eroica.watch import webhook
from eroica.watch.metrics import CONTENT_TYPE, STATES, Metrics, MetricsServer, parse_address
from eroica.watch.result import WatchResult
from eroica.watch.telling import Telling


def incident_of(**changes):
    cause = Cause(
        id="C1",
        category="straggler_data_loading",
        ranks=(2,),
        functions=(Place(name="Corpus.__getitem__", file="src/data/dataset.py", line=88),),
        share=0.43,
        confidence=0.9,
        summary="rank 2 loads slowly at /home/alice/project/src/dataset.py:88",
        action="patch",
        hosts=("gpu-7",),
    )
    given = {
        "id": "20261129-031205-slow",
        "symptom": "slow",
        "onset": None,
        "job": Job(
            world_size=4,
            ranks=(0, 1, 2),
            missing_ranks=(3,),
            hosts={"gpu-7": (2,)},
            step_ms=StepMs(before=187.0, now=328.0),
            command=("torchrun", "train.py", "--token", "hunter2secret"),
            source_root="/home/alice/project",
        ),
        "causes": (cause,),
        "findings": (),
        "warnings": (Warning(file=None, what="env API_KEY=sk-abcdefghijklmnopqrstuvwx0123"),),
        "headline": "rank 2 loads data slowly",
    }
    return Incident(**(given | changes))


# --- metrics

LINE = re.compile(
    r"(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{([a-z]+=\"([^\"\\\n]|\\[\\n\"])*\",?)*\})? [-+.e0-9]+)"
)


def values(text):
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_metrics_are_in_the_exposition_format():
    metrics = Metrics(state="slow", step_s=0.328, num_steps=12, world_size=4, ranks_alive=3)
    metrics.missing_hosts = ('we"ird\\\nhost',)
    metrics.note_incident(incident_of())
    text = metrics.render()
    assert text.endswith("\n")
    assert all(LINE.fullmatch(line) for line in text.splitlines()), text
    found = values(text)
    assert found['eroica_state{state="slow"}'] == "1.0"
    assert sum(float(found[f'eroica_state{{state="{state}"}}']) for state in STATES) == 1.0
    assert found["eroica_step_seconds"] == "0.328"
    assert found['eroica_incidents_total{symptom="slow"}'] == "1"
    assert found["eroica_hosts_missing"] == "1"
    assert r'eroica_host_missing{host="we\"ird\\\nhost"}' in found
    info = next(name for name in found if name.startswith("eroica_last_incident_info"))
    assert 'id="20261129-031205-slow"' in info and 'category="straggler_data_loading"' in info


def test_what_is_not_known_yet_is_left_out():
    text = Metrics().render()
    assert "eroica_step_seconds" not in text and "last_incident" not in text


def test_metrics_are_served_on_loopback_only_at_their_path():
    metrics = Metrics(state="training", step_s=0.1)
    serving = MetricsServer(metrics, "0")
    try:
        assert serving.address[0] == "127.0.0.1"
        connection = http.client.HTTPConnection(*serving.address, timeout=5)
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        assert (response.status, response.headers["Content-Type"]) == (200, CONTENT_TYPE)
        assert values(response.read().decode())["eroica_step_seconds"] == "0.1"
        connection.close()
        connection.request("GET", "/etc/passwd")
        assert connection.getresponse().status == 404
        connection.close()
        connection.request("POST", "/metrics", b"x")
        assert connection.getresponse().status == 501
        connection.close()
    finally:
        serving.close()


def test_a_port_in_use_or_no_port_is_an_input_error():
    serving = MetricsServer(Metrics(), "0")
    try:
        with pytest.raises(InputError, match="cannot be used"):
            MetricsServer(Metrics(), str(serving.address[1]))
    finally:
        serving.close()
    for text in ("many", "70000", "host:", ""):
        with pytest.raises(InputError, match="is no port"):
            parse_address(text)
    assert parse_address("9464") == ("127.0.0.1", 9464)
    assert parse_address("0.0.0.0:9464") == ("0.0.0.0", 9464)
    assert parse_address("[::]:9464") == ("::", 9464)


# --- webhook


@pytest.fixture
def receiver():
    """A web server that keeps what it gets and answers as told."""

    class Handler(plain.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            serving.got.append((self.path, body))
            status = serving.answers.pop(0) if serving.answers else 200
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    serving = plain.HTTPServer(("127.0.0.1", 0), Handler)
    serving.got, serving.answers = [], []
    thread = threading.Thread(target=serving.serve_forever, args=(0.05,))
    thread.start()
    serving.url = f"http://127.0.0.1:{serving.server_address[1]}/hook/secret-key"
    yield serving
    serving.shutdown()
    thread.join()
    serving.server_close()


def test_the_summary_says_what_is_wrong_without_source_paths_or_secrets():
    found = webhook.summary(incident_of())
    text = json.dumps(found)
    assert found["symptom"] == "slow"
    assert found["causes"][0]["ranks"] == [2]
    assert found["job"]["missing_ranks"] == [3]
    assert found["causes"][0]["summary"] == "rank 2 loads slowly at dataset.py:88"
    assert "rank 2 loads data slowly" in found["text"]
    for secret in ("/home", "alice", "hunter2", "sk-abc", "src/data", "torchrun"):
        assert secret not in text


def test_rates_are_no_paths():
    text = "3.1 GB/s against 21.8 GB/s; see /var/log/x.log and a/b.py:3"
    assert webhook._without_paths(text) == "3.1 GB/s against 21.8 GB/s; see x.log and b.py:3"


def test_an_incident_arrives_at_the_web_address(receiver):
    notes = []
    hook = webhook.Webhook(receiver.url, notes.append)
    hook.send(incident_of())
    hook.close()
    ((path, body),) = receiver.got
    assert path == "/hook/secret-key"
    assert json.loads(body)["id"] == "20261129-031205-slow"
    assert notes == []


@pytest.mark.parametrize(
    ("answers", "problem", "tries"),
    [
        ([500, 503], None, 3),
        ([500, 500, 500], "it answered 500, 3 times", 3),
        ([429], None, 2),
        ([404], "it answered 404", 1),
        ([302], "it answered 302", 1),
    ],
)
def test_it_is_tried_again_where_that_may_help(receiver, answers, problem, tries):
    receiver.answers = list(answers)
    pauses = []
    assert webhook.post(receiver.url, b"{}", sleep=pauses.append) == problem
    assert len(receiver.got) == tries
    assert pauses == [1.0, 4.0][: tries - 1]


def test_an_address_that_is_not_there_costs_a_note_without_the_key(caplog):
    caplog.set_level(logging.DEBUG)
    notes = []
    hook = webhook.Webhook("http://127.0.0.1:9/hook/secret-key", notes.append)
    hook._url = "http://127.0.0.1:9/hook/secret-key"
    problem = webhook.post(hook._url, b"{}", sleep=lambda seconds: None)
    assert "refused" in problem and "secret-key" not in problem
    hook.close()
    assert "secret-key" not in caplog.text


@pytest.mark.parametrize("url", ["", "ftp://host/x", "file:///etc/passwd", "http://", "host/x"])
def test_what_is_no_web_address_is_refused_at_once(url):
    with pytest.raises(InputError, match="no web address"):
        webhook.check_url(url)


# --- all of them


def saved(tmp_path, incident):
    folder = IncidentFolder(tmp_path / incident.id)
    folder.path.mkdir()
    folder.write_incident(incident)
    return folder


def result():
    return WatchResult(evidence=JobEvidence(ranks=(), world_size=4))


def test_a_command_gets_the_incidents_id(tmp_path):
    out = tmp_path / "told"
    words = "sys.argv[1] + os.environ['EROICA_INCIDENT']"
    code = f"import os, sys; open({str(out)!r}, 'w').write({words})"
    telling = Telling(on_incident=[sys.executable, "-c", code])
    incident = incident_of()
    telling.tell(result(), saved(tmp_path, incident))
    telling.close()
    assert telling._started[0].wait(20) == 0
    assert out.read_text() == incident.id + str(tmp_path / incident.id)


def test_a_healthy_end_is_no_alarm(tmp_path, receiver):
    telling = Telling(on_incident=["/nonexistent"], webhook=receiver.url, note=pytest.fail)
    telling.tell(result(), saved(tmp_path, incident_of(symptom="healthy")))
    telling.close()
    assert receiver.got == []
    assert telling.metrics.incidents == {"healthy": 1}


def test_a_command_that_cannot_be_started_is_noted(tmp_path):
    notes = []
    telling = Telling(on_incident=["/nonexistent"], note=notes.append)
    telling.tell(result(), saved(tmp_path, incident_of()))
    telling.close()
    assert "--on-incident failed" in notes[0]


def test_the_detached_agent_goes_by_the_environment_and_survives_nonsense(receiver, tmp_path):
    telling = Telling.of({"EROICA_WEBHOOK": receiver.url, "EROICA_METRICS_PORT": "0"})
    assert telling.address.startswith("http://127.0.0.1:")
    telling.tell(result(), saved(tmp_path, incident_of()))
    telling.close()
    assert len(receiver.got) == 1
    plain_one = Telling.of({"EROICA_WEBHOOK": "nonsense", "EROICA_METRICS_PORT": "x"})
    assert plain_one.address is None
    plain_one.close()
