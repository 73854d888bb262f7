"""Incidents with source beside them, and answers, for the tests of explain."""

import json

import msgspec

TRAIN = """\
import torch
import torch.distributed as dist


def save_checkpoint(model):
    torch.save(model.state_dict(), "model.pt")
    dist.barrier()


def main():
    rank = dist.get_rank()
    for step in range(100):
        train_step(step)
        if rank == 0 and step % 20 == 0:
            save_checkpoint(model)
"""

GOOD = {
    "verdict": "established",
    "summary": "Rank 0 waits in the barrier at train.py:7, which ranks 1-3 never reach.",
    "claims": [
        {"text": "The barrier stands under a condition on the rank.", "citations": ["train.py:14"]},
        {"text": "Collective #63 differs over the ranks.", "citations": ["F1"]},
    ],
    "next_steps": ["Take the barrier out."],
    "disproved_by": ["All ranks in the barrier."],
}


def answer(**changes):
    return json.dumps({**GOOD, **changes})


def with_source(folder, root, text=TRAIN, line=7):
    """Put a project beside a saved incident and let its places point there."""
    from eroica.records import Place

    root.mkdir(parents=True, exist_ok=True)
    (root / "train.py").write_text(text)
    incident = folder.read_incident()
    places = (
        Place(name="save_checkpoint", file="train.py", line=line),
        Place(name="main", file="train.py", line=15),
    )
    cause = msgspec.structs.replace(incident.causes[0], functions=places)
    job = msgspec.structs.replace(incident.job, source_root=str(root))
    folder.write_incident(
        msgspec.structs.replace(incident, causes=(cause, *incident.causes[1:]), job=job)
    )
    evidence = folder.read_evidence()
    if evidence is not None:
        folder.write_evidence(msgspec.structs.replace(evidence, source_root=str(root)))
    return folder
