"""Four ranks; after some steps rank 0 enters a barrier that the others never do."""

import os

import torch.distributed as dist
from model import steps

for number, _ in enumerate(steps(None, 64)):
    if number == 300 and os.environ["RANK"] == "0":
        dist.barrier()
