import torch
import torch.nn as nn
import torch.distributed as dist

class Sync:
    def __init__(self):
        self.rank = dist.get_rank()
        self.a = dist.new_group([0, 1, 2])
        self.b = dist.new_group([0, 1, 2])

    def exchange(self, t, first):
        order = [self.a, self.b] if first else [self.b, self.a]
        for group in order:
            dist.all_reduce(t, group=group)
        return t

def main():
    dist.init_process_group("gloo")
    s = Sync()
    g = torch.Generator().manual_seed(s.rank)
    for step in range(200):
        big = torch.randn(64, generator=g).max() > 2.2
        t = s.exchange(torch.ones(4), not (big and step > 30 and s.rank == 2))
        if s.rank == 0 and step % 5 == 0:
            print(f"step {step} loss {t.sum().item():.1f}", flush=True)

if __name__ == "__main__":
    main()
    dist.destroy_process_group()
