import os

import torch
import torch.distributed as dist


class Saver:
    def __init__(self, root, limit):
        self.root, self.limit, self.kept = root, limit, []

    def save(self, step, module):
        """All ranks enter; the first one writes."""
        if dist.get_rank() == 0:
            os.makedirs(self.root, exist_ok=True)
            path = os.path.join(self.root, f"step-{step}.pt")
            torch.save(module.state_dict(), path)
            self.kept.append(path)
            for old in self.kept[:-self.limit]:
                os.remove(old)
            self.kept = self.kept[-self.limit:]
        dist.barrier()
