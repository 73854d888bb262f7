"""A background thread that died, as the hook noted it, and whoever waits for it."""

import pytest
from test_localize_stuck import BACKWARD, Program, localize, rank, stack

from eroica.records import Place, RankExit

GET = Place(name="Queue.get", file="/usr/local/lib/python3.11/queue.py", line=171)
STARTED = (
    "import queue, threading\n\nclass Feed:\n    def __init__(self):\n"
    "        self.items = queue.Queue(4)\n"
    "        {start}\n\n"
    "    def pump(self):\n        for raw in source:\n"
    "            self.items.put(self.parse(raw))\n\n"
    "    def parse(self, raw):\n        return raw[0] / raw[1]\n\n"
    "def main(feed):\n    for step in range(100):\n        batch = feed.items.get()\n"
    "        loss.backward()\n"
)


@pytest.mark.parametrize(
    "start",
    ["threading.Thread(target=self.pump, name='pump').start()", "start_by_name(self, 'pump')"],
    ids=["seen in the source", "started by other means"],
)
def test_a_thread_that_died_is_why_the_queue_stays_empty(tmp_path, start):
    program = Program(tmp_path, STARTED.format(start=start))
    parse, pump = program.at("raw[0] / raw", "parse"), program.at("items.put", "pump")
    error = RankExit(
        error_type="ZeroDivisionError",
        message="division by zero\nmore",
        frames=(parse, pump),
        thread="pump",
    )
    hungry = rank(1, stack(GET, program.at("items.get", "main")), thread_errors=(error,))
    peer = rank(0, stack(*BACKWARD, program.at("loss.backward", "main")))
    cause = localize([peer, hungry], tmp_path, symptom_hint="stuck").causes[0]
    assert (cause.category, cause.ranks) == ("exception_swallowed", (1,))
    assert cause.functions[0] == parse and cause.functions[1].name == "main"
    assert any("ZeroDivisionError: division by zero" in why for why in cause.why)


def test_a_thread_that_died_in_a_library_accuses_nobody(tmp_path):
    program = Program(tmp_path, STARTED.format(start="start_by_name(self, 'pump')"))
    error = RankExit(
        error_type="OSError",
        frames=(Place(name="x", file="/usr/lib/python3.11/socket.py", line=1),),
    )
    hungry = rank(1, stack(GET, program.at("items.get", "main")), thread_errors=(error,))
    peer = rank(0, stack(*BACKWARD, program.at("loss.backward", "main")))
    causes = localize([peer, hungry], tmp_path, symptom_hint="stuck").causes
    assert all(cause.category != "exception_swallowed" for cause in causes)
