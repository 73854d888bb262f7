import torch
import torch.distributed as dist
import torch.nn as nn
from quill import Arguments, BestLoss, Engine


class Gestures:
    def __init__(self, seed, batches=None, hard=0.3):
        self.seed, self.batches, self.hard = seed, batches, hard

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        n = 0
        while self.batches is None or n < self.batches:
            n += 1
            y = torch.randint(0, 5, (20,), generator=g)
            x = nn.functional.one_hot(y, 5).float().repeat(1, 6)
            yield x + self.hard * torch.randn(20, 30, generator=g), y


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 5))
    held_out = list(Gestures(seed=900 + rank, batches=2, hard=0.4 + 0.4 * rank))
    engine = Engine(net, Arguments(learning_rate=4e-2), Gestures(seed=rank), held_out, [BestLoss()])
    engine.train()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
