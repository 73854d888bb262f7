import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class DDPStrategy:
    def __init__(self):
        self.world_size = dist.get_world_size()

    def setup(self, module):
        return DDP(module)

    def collect(self, value):
        """One value of every rank, as a vector."""
        parts = [torch.zeros(1) for _ in range(self.world_size)]
        dist.all_gather(parts, torch.tensor([float(value)]))
        return torch.cat(parts)
