"""Recorded answers of a language model to the incidents in tests/data/recorded.

    python benchmarks/recorded.py prompts --out DIR       the texts a model would be sent
    python benchmarks/recorded.py record --answers DIR    its answers into answers.jsonl
    python benchmarks/recorded.py table                  what the answers are worth, offline
    python benchmarks/recorded.py table --run all          and whether the patched jobs are cured

Prompts and answers go the way they go in the product: eroica.explain.ask, eroica.fix.from_answer.
A row of the table says of one incident

- truth: whether the explanation names what is wrong (the rule is in naming.py),
- cited: claims whose citations, numbers and ranks the evidence holds, of all; others are marked,
- patch: whether the recorded patch passes the gates; "none" where the model says so or no patch
  is asked for since the fault is outside the code,
- cured: with --run, the patched job ends (stuck) or wins back half of what fixed.py wins (slow),
  with the work of fixed.py; where it does not, a fixer's patch is tried.

Run it with --run alone on the machine.
"""

import argparse
import gzip
import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import adopt_orphans, end_leftovers, mend
from naming import names_truth

from eroica.errors import EroicaError
from eroica.explain import Asked, ask
from eroica.explain.model import ChatModel
from eroica.explain.scripted import ReplayModel, ScriptedModel
from eroica.fix import Refusal, from_answer, propose
from eroica.incident import IncidentFolder
from eroica.records import Patch

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests/data/recorded"
MODEL = "a capable language model that saw the prompt alone"
PURPOSES = ("explain", "patch")


@dataclass(frozen=True)
class Saved:
    """One incident of tests/data/recorded, laid out as eroica leaves it."""

    name: str
    folder: IncidentFolder
    job: Path
    truth: dict[str, Any]

    @property
    def purposes(self) -> tuple[str, ...]:
        """No patch is asked for where the first cause is outside the code, as in the product."""
        causes = self.folder.read_incident().causes
        is_code = bool(causes) and causes[0].action in ("patch", "investigate")
        return PURPOSES if is_code else PURPOSES[:1]


def unpack(source: Path, scratch: Path) -> Saved:
    job = scratch / source.name / "job"
    shutil.copytree(source / "job", job)
    incident = json.loads((source / "incident.json").read_text())
    target = job / ".eroica/incidents" / incident["id"]
    target.mkdir(parents=True)
    shutil.copy(source / "incident.json", target)
    data = gzip.decompress((source / "evidence.json.gz").read_bytes())
    (target / "evidence.json").write_bytes(data)
    if (source / "patterns.parquet").exists():
        shutil.copy(source / "patterns.parquet", target)
    truth = json.loads((source / "truth.json").read_text())
    return Saved(source.name, IncidentFolder(target), job, truth)


def all_saved(scratch: Path, only: str = "") -> list[Saved]:
    found = sorted(path.parent for path in DATA.glob("*/truth.json") if only in path.parent.name)
    return [unpack(source, scratch) for source in found]


def put(saved: Saved, purpose: str, model: ChatModel) -> Asked:
    """One question, as ``eroica diagnose --explain`` and ``eroica fix`` put it."""
    return ask(saved.folder, model, purpose, source_root=str(saved.job.resolve()))


def write_prompts(out: Path, only: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="eroica-recorded-") as scratch:
        for saved in all_saved(Path(scratch), only):
            for purpose in saved.purposes:
                model = ScriptedModel([""] * 2)
                put(saved, purpose, model)
                parts = [f"### {one.role}\n{one.content}\n" for one in model.calls[0]]
                (out / f"{saved.name}.{purpose}.prompt.txt").write_text("\n".join(parts))


def record(answers: Path, out: Path) -> list[str]:
    """Write the replay file; returns which answers are not there."""
    rows, missing = [], []
    when = time.strftime("%Y-%m-%d")
    with tempfile.TemporaryDirectory(prefix="eroica-recorded-") as scratch:
        for saved in all_saved(Path(scratch)):
            for purpose in saved.purposes:
                file = answers / f"{saved.name}.{purpose}.answer.txt"
                if not file.exists():
                    missing.append(file.name)
                    continue
                prompt = put(saved, purpose, ScriptedModel([""] * 2)).prompt
                assert prompt is not None
                keys = {"category": prompt.category, "source_sha256": prompt.source_sha256}
                row = {"purpose": purpose, **keys, "prompt_sha256": prompt.sha256}
                row |= {"incident": saved.name, "answer": file.read_text()}
                rows.append(row | {"recorded": when, "model": MODEL})
    head = {"purpose": "head", "answer": "", "about": f"recorded answers of {MODEL}"}
    lines = [head | {"recorded": when, "answers": len(rows)}, *rows]
    out.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return missing


def replayed(saved: Saved, purpose: str, recording: Path) -> Asked:
    """Play the answer recorded for this incident."""
    whole = ReplayModel.load(str(recording))
    own = [one for one in whole.records if one.get("incident") == saved.name]
    return put(saved, purpose, ReplayModel(whole.path, own))


def judge_explanation(saved: Saved, recording: Path) -> dict[str, Any]:
    asked = replayed(saved, "explain", recording)
    row: dict[str, Any] = {"notes": list(asked.notes)}
    if not asked.is_answered:
        return row | {"truth": f"no: {asked.reason}", "claims": 0, "resolved": 0, "marked": 0}
    said = asked.diagnoses[0]
    causes = saved.folder.read_incident().causes
    row["truth"] = names_truth(causes[0] if causes else None, said, saved.truth, saved.job)
    row["verdict"] = said.verdict
    row["claims"] = len(said.claims)
    row["resolved"] = sum(claim.is_resolved for claim in said.claims)
    # What does not resolve is marked: a note says what, so nothing passes in silence.
    row["marked"] = len(said.claims) - row["resolved"]
    row["notes"] += said.notes
    return row


def patch_of(saved: Saved, recording: Path) -> tuple[str, Patch | None]:
    """What became of the recorded patch, and the patch where it passes every gate."""
    if "patch" not in saved.purposes:
        return "none: outside the code", None
    asked = replayed(saved, "patch", recording)
    if not asked.is_answered:
        kind = "none" if "no patch" in asked.reason else "no"
        return f"{kind}: {asked.reason}", None
    incident = saved.folder.read_incident()
    made = from_answer(asked.text, incident, saved.job, why=asked.why, behaviour=asked.behavior)
    if isinstance(made, Refusal):
        return f"refused: {'; '.join(made.reasons)}", None
    return "passes", made


def is_code_fault(truth: dict[str, Any]) -> bool:
    return bool(truth["symptom"] != "healthy" and truth.get("fault_in") != "environment")


def fixer_patches(saved: Saved) -> list[Patch]:
    incident, evidence = saved.folder.read_incident(), saved.folder.read_evidence()
    found = propose(incident, evidence=evidence, source_root=saved.job)
    first = incident.causes[0].id if incident.causes else ""
    return [one for one in found if one.cause == first and one.edits][:1]


def cure(saved: Saved, patches: list[Patch], scratch: Path, limit_s: float) -> dict[str, Any]:
    """Run the patched job beside the faulty one and fixed.py."""
    whole = Path(tempfile.mkdtemp(dir=scratch)) / "case"
    shutil.copytree(saved.job, whole, ignore=shutil.ignore_patterns(".eroica"))
    shutil.copy(DATA / saved.name / "fixed.py", whole)
    changed = {Path(e.path): e.after.encode() for one in patches for e in one.edits}
    try:
        return dict(mend(saved.truth, whole, changed, scratch, limit_s))
    finally:
        end_leftovers(0)


def row_of(saved: Saved, recording: Path, scratch: Path, run_s: float | None) -> dict[str, Any]:
    patch_text, patch = patch_of(saved, recording)
    row = {"incident": saved.name, "case": saved.truth["id"], "symptom": saved.truth["symptom"]}
    row |= {"category": saved.truth["expected_category"], "is_code": is_code_fault(saved.truth)}
    row |= judge_explanation(saved, recording) | {"patch": patch_text}
    if run_s is None or not row["is_code"]:
        return row
    fixers = fixer_patches(saved)
    row["fixer"] = fixers[0].source.removeprefix("fixer ") if fixers else ""
    for who, patches in (("model", [patch] if patch else []), ("fixer", fixers)):
        if patches and not row.get("cured"):
            done = cure(saved, patches, scratch, run_s)
            row[f"{who}_run"] = done["mend"]
            row["cured"] = who if done.get("mended") else ""
            row["no_verdict"] = "mended" not in done
    row.setdefault("cured", "")
    return row


def mixed(all_of_them: list[Saved], recording: Path) -> tuple[int, int]:
    """How many explanations the rule takes for right of an incident they are not about."""
    about = {one.name: replayed(one, "explain", recording).diagnoses[0] for one in all_of_them}
    faulty = [one for one in all_of_them if one.truth["symptom"] != "healthy"]
    pairs = [(a, b) for a in all_of_them for b in faulty if a.name != b.name]
    taken = [names_truth(None, about[a.name], b.truth, b.job) for a, b in pairs]
    return sum(not text.startswith("no") for text in taken), len(pairs)


def totals(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Each figure as how many of how many."""
    asked = [row for row in rows if not row["patch"].startswith("none: outside")]
    code = [row for row in rows if row["is_code"]]
    claims = sum(row["claims"] for row in rows)
    found = {
        "truth named": (sum(not row["truth"].startswith("no") for row in rows), len(rows)),
        "claims resolved": (sum(row["resolved"] for row in rows), claims),
        "claims resolved or marked": (sum(row["resolved"] + row["marked"] for row in rows), claims),
        "patch passes the gates": (sum(row["patch"] == "passes" for row in asked), len(asked)),
    }
    if any("cured" in row for row in rows):
        tried = [row for row in code if "cured" in row]
        found["cured by the model's patch"] = (
            sum(r["cured"] == "model" for r in tried),
            len(tried),
        )
        found["cured by it or a fixer"] = (sum(bool(r["cured"]) for r in tried), len(tried))
    return found


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| incident | kind | truth | cited | patch | fixer | cured |"]
    lines += ["|---|---|---|--:|---|---|---|"]
    for row in rows:
        cured = row.get("cured", "") or ("no verdict" if row.get("no_verdict") else "")
        runs = "; ".join(row[key] for key in ("model_run", "fixer_run") if key in row)
        cells = [row["incident"], f"{row['symptom']}: {row['category']}", row["truth"]]
        cells += [f"{row['resolved']}/{row['claims']}", row["patch"][:80], row.get("fixer", "")]
        cells += [f"{cured} ({runs})" if runs else cured]
        lines.append(f"| {' | '.join(cells)} |")
    figures = totals(rows).items()
    lines += ["", *(f"- {name}: {some} of {of}" for name, (some, of) in figures)]
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("mode", choices=("prompts", "record", "table"))
    options.add_argument("--out", type=Path, help="folder of prompts, or the recording")
    options.add_argument("--answers", type=Path, help="folder of NAME.explain.answer.txt ...")
    options.add_argument("--only", default="", help="part of an incident's name")
    options.add_argument("--run", choices=("all", "stuck", "slow"), help="run the patched jobs")
    options.add_argument("--mixed", action="store_true", help="test the rule of naming.py")
    options.add_argument("--limit", type=float, default=60, help="seconds for one run")
    options.add_argument("--stop-after", type=float, default=1e9, help="seconds for all runs")
    options.add_argument("--rows", type=Path, help="file of rows; those in it are kept")
    asked = options.parse_args()
    recording = DATA / "answers.jsonl"
    if asked.mode == "prompts":
        write_prompts(asked.out or Path("prompts"), asked.only)
        return
    if asked.mode == "record":
        missing = record(asked.answers, asked.out or recording)
        print(f"not there: {', '.join(missing)}" if missing else "all answers are recorded")
        return
    if asked.mixed:
        with tempfile.TemporaryDirectory(prefix="eroica-recorded-") as scratch:
            taken, pairs = mixed(all_saved(Path(scratch)), recording)
        print(f"taken for right of another incident: {taken} of {pairs}")
        return
    adopt_orphans()
    start = time.monotonic()
    kept = json.loads(asked.rows.read_text()) if asked.rows and asked.rows.exists() else []
    rows = {row["incident"]: row for row in kept}
    with tempfile.TemporaryDirectory(prefix="eroica-recorded-") as scratch:
        for saved in all_saved(Path(scratch), asked.only):
            is_over = time.monotonic() - start > asked.stop_after
            is_run = asked.run in ("all", saved.truth["symptom"]) and not is_over
            if saved.name in rows and ("cured" in rows[saved.name] or not is_run):
                continue
            run_s = asked.limit if is_run else None
            try:
                rows[saved.name] = row_of(saved, recording, Path(scratch), run_s)
            except EroicaError as error:
                raise SystemExit(f"{saved.name}: {error}") from error
            if asked.rows:
                asked.rows.write_text(json.dumps(list(rows.values()), indent=1))
    print(table(sorted(rows.values(), key=lambda row: str(row["incident"]))))


if __name__ == "__main__":
    main()
