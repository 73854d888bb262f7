import torch
import torch.distributed as dist
from .helpers import main_only

class Evaluator:
    def __init__(self, model, data):
        self.model, self.data = model, data

    @main_only
    def run(self, step):
        total = torch.zeros(1)
        for x, y in self.data:
            total += (self.model.module(x) - y).abs().mean().detach()
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, total.item())
        print(f"step {step} eval {total.item():.3f}", flush=True)
