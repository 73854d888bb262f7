import time

import memory
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Node:
    def __init__(self, key, links):
        self.key, self.links, self.seen = key, links, {}


def graph(n=12_000):
    nodes = [Node(i, []) for i in range(n)]
    for i, node in enumerate(nodes):
        node.links.extend((nodes[i * 7 % n], nodes[(i * 31 + 1) % n]))
    return nodes


def walk(nodes, start, length):
    node, path = nodes[start], []
    for i in range(length):
        path.append({"at": node.key, "turn": i % 2})
        node = node.links[i % 2]
    return path


@memory.tidy
def train_step(model, opt, nodes, g):
    starts = torch.randint(len(nodes), (48,), generator=g).tolist()
    paths = [walk(nodes, s, 24) for s in starts]
    ids = torch.tensor([[p["at"] % 1000 for p in path] for path in paths])
    loss = (model(ids).squeeze(1) - (ids[:, -1] / 500 - 1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    nodes = graph()
    model = DDP(nn.Sequential(nn.Embedding(1000, 32), nn.Flatten(), nn.Linear(32 * 24, 192), nn.ReLU(), nn.Linear(192, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(rank)
    dist.barrier()
    t0 = time.perf_counter()
    for step in range(1, 101):
        loss = train_step(model, opt, nodes, g)
        if rank == 0 and step % 10 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss:.4f} {(t1 - t0) / 10 * 1e3:.1f} ms/it {memory.peak_mb():.0f} MB", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
