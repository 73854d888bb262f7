import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h):
        return h + self.down(torch.relu(self.up(self.norm(h))))


class CharModel(nn.Module):
    def __init__(self, vocab=64, width=64, depth=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def weight_norms(model):
    return {name: p.full_tensor().norm().item() for name, p in model.named_parameters() if name.endswith("up.weight")}


class Logger:
    def __init__(self, rank, path="norms.tsv"):
        self.main, self.path = rank == 0, path

    def weights(self, step, model):
        if not self.main:
            return
        with open(self.path, "a") as f:
            for name, value in weight_norms(model).items():
                f.write(f"{step}\t{name}\t{value:.5f}\n")

    def loss(self, step, loss):
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if self.main:
            print(f"step {step} loss {mean.item() / dist.get_world_size():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = shard(CharModel(), init_device_mesh("cpu", (world,)))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    log = Logger(rank)
    g = torch.Generator().manual_seed(rank)
    for step in range(1, 151):
        ids = torch.randint(0, 64, (8, 33), generator=g).cumsum(1) % 64
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            log.weights(step, model)
        if step % 5 == 0:
            log.loss(step, loss)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
