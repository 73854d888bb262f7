import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler


class Utterances(Dataset):
    def __init__(self, n=1800):
        g = torch.Generator().manual_seed(11)
        self.lengths = (torch.rand(n, generator=g).pow(2) * 90 + 10).long().tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(self.lengths[i], 12, generator=g)


class BudgetBatches(Sampler):
    """Each rank packs its share of the utterances into batches of at most `budget` frames."""

    def __init__(self, lengths, budget, rank, world):
        self.lengths, self.budget, self.rank, self.world = lengths, budget, rank, world
        self.epoch = 0

    def order(self):
        g = torch.Generator().manual_seed(self.epoch)
        return torch.randperm(len(self.lengths), generator=g).tolist()[self.rank::self.world]

    def __iter__(self):
        batch, longest = [], 0
        for i in self.order():
            longest = max(longest, self.lengths[i])
            if batch and longest * (len(batch) + 1) > self.budget:
                yield batch
                batch, longest = [], self.lengths[i]
            batch.append(i)
        yield batch


def pad(items):
    return nn.utils.rnn.pad_sequence(items, batch_first=True)


def main(epochs=2):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Utterances()
    sampler = BudgetBatches(data.lengths, 640, rank, world)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=pad)
    model = DDP(nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 12)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        sampler.epoch = epoch
        frames = 0
        count = torch.tensor(sum(1 for _ in sampler))
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
        for step, x in zip(range(1, count.item() + 1), loader):
            loss = (model(x)[:, :-1] - x[:, 1:].cumsum(2)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            frames += x.shape[0] * x.shape[1]
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        totals = [None] * world
        dist.all_gather_object(totals, frames)
        if rank == 0:
            print(f"end of pass {epoch}: {sum(totals)} frames", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
