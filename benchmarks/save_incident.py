"""Saves an incident small enough for tests/data/recorded, with its job and the truth beside it.

    python benchmarks/save_incident.py INCIDENT CASE tests/data/recorded/NAME

INCIDENT is JOB/.eroica/incidents/ID as eroica made it of a case, CASE the case's folder (train.py,
fixed.py, case.json). Kept are the last Flight Recorder entries, stacks and log lines of a rank and
its commonest sampled stacks: all that a prompt shows, little more. Paths are rewritten as if the
job had run in /srv/job.
"""

import gzip
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from eroica.columns import RankPatterns
from eroica.incident import IncidentFolder
from eroica.records import (
    FlightRecord,
    Function,
    JobEvidence,
    Place,
    RankEvidence,
    Samples,
    Setting,
)
from eroica.summarize import read_parquet, write_parquet

MAX_ENTRIES, MAX_SAMPLED, MAX_LOG_LINES, MAX_STACKS = 40, 60, 40, 3
TRUTH_KEYS = (
    "id",
    "symptom",
    "world_size",
    "run",
    "root_cause",
    "expected_category",
    "guilty_file_line",
    "guilty_ranks",
    "accept",
    "fault_in",
)
change = msgspec.structs.replace


class Rewriter:
    """Paths of the machine an incident was made on, replaced by those of a plain server."""

    def __init__(self, job: str, host: str) -> None:
        repository = str(Path(__file__).parents[1])
        library = "/srv/venv/lib/python3.11/site-packages"
        self.rules = [
            (re.escape(job), "/srv/job"),
            (re.escape(f"{repository}/.venv"), "/srv/venv"),
            (re.escape(f"{repository}/eroica"), f"{library}/eroica"),
            (re.escape(sys.base_prefix), "/usr/local"),
            (r"/tmp/torchelastic_\w+/[\w-]+", "/srv/scratch/elastic"),
            (r"/tmp/torchinductor_\w+", "/srv/scratch/inductor"),
            (r"/tmp/[\w.-]+", "/srv/scratch"),
            (rf'"{re.escape(host)}"', '"node-a"'),
            (rf"\b{re.escape(host)}/", "node-a/"),
        ]

    def __call__(self, text: str) -> str:
        for pattern, new in self.rules:
            text = re.sub(pattern, new, text)
        return text


def trimmed(evidence: JobEvidence) -> JobEvidence:
    return change(evidence, ranks=tuple(trimmed_rank(rank) for rank in evidence.ranks))


def trimmed_rank(rank: RankEvidence) -> RankEvidence:
    return change(
        rank,
        stacks=rank.stacks[-MAX_STACKS:],
        stalls=rank.stalls[-MAX_STACKS:],
        flight=trimmed_flight(rank.flight) if rank.flight else None,
        samples=trimmed_samples(rank.samples) if rank.samples else None,
        log_tail="\n".join(rank.log_tail.splitlines()[-MAX_LOG_LINES:]),
    )


def trimmed_flight(flight: FlightRecord) -> FlightRecord:
    return change(flight, entries=flight.entries[-MAX_ENTRIES:])


def trimmed_samples(samples: Samples) -> Samples:
    kept = sorted(samples.stacks, key=lambda stack: -stack.count)[:MAX_SAMPLED]
    return change(samples, stacks=tuple(kept))


def rewritten_patterns(patterns: RankPatterns, rewrite: Rewriter) -> RankPatterns:
    def place(one: Place) -> Place:
        return change(one, file=rewrite(one.file) if one.file else None)

    def function(one: Function) -> Function:
        file = rewrite(one.file) if one.file else None
        return change(one, file=file, stack=tuple(place(caller) for caller in one.stack))

    functions = tuple(function(one) for one in patterns.functions)
    host = rewrite(f'"{patterns.host}"').strip('"')
    plain = rewrite(msgspec.json.encode(patterns.settings).decode())
    settings = msgspec.json.decode(plain, type=tuple[Setting, ...])
    changed = replace(patterns, functions=functions, host=host, settings=settings)
    return replace(changed, source=rewrite(patterns.source))


def save(incident: Path, case: Path, target: Path) -> None:
    folder = IncidentFolder(incident)
    evidence = folder.read_evidence()
    if evidence is None:
        raise SystemExit(f"{incident} has no evidence")
    host = next((rank.host for rank in evidence.ranks if rank.host), "-")
    rewrite = Rewriter(str(evidence.source_root), host)
    shutil.rmtree(target, ignore_errors=True)
    hidden = shutil.ignore_patterns("case.json", "fixed.py", "__pycache__", ".*")
    shutil.copytree(case, target / "job", ignore=hidden)
    for path in (target / "job").rglob("*"):  # the program as it was when it ran
        ran = incident.parents[2] / path.relative_to(target / "job")
        if path.is_file() and ran.is_file():
            shutil.copy(ran, path)
    if (case / "fixed.py").exists():
        shutil.copy(case / "fixed.py", target / "fixed.py")
    plain = rewrite(msgspec.json.encode(trimmed(evidence)).decode())
    checked = msgspec.json.encode(msgspec.json.decode(plain, type=JobEvidence))
    (target / "evidence.json.gz").write_bytes(gzip.compress(checked, 9, mtime=0))
    (target / "incident.json").write_text(rewrite(folder.incident_bytes().decode()))
    if folder.patterns_path.exists():
        found = [rewritten_patterns(one, rewrite) for one in read_parquet(folder.patterns_path)]
        write_parquet(target / "patterns.parquet", found)
    case_file = json.loads((case / "case.json").read_text())
    truth = {key: case_file[key] for key in TRUTH_KEYS if key in case_file}
    (target / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    save(*(Path(argument) for argument in sys.argv[1:]))
