import collections
import time
import zlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

TILES, SIDE, FRAMES = 60, 40, 240


class TileStore:
    """Compressed tiles with a cache of decoded ones; the ranks of a host share its memory."""

    def __init__(self, rank, world, cache_tiles=240):
        g = torch.Generator().manual_seed(rank)
        pixels = torch.randint(0, 255, (TILES, SIDE * SIDE * FRAMES), generator=g, dtype=torch.uint8) // 16 * 16
        self.blobs = [zlib.compress(bytes(p.numpy()), 1) for p in pixels]
        per_rank = -(-cache_tiles // world)
        self.room = per_rank
        self.cache = collections.OrderedDict()

    def decode(self, i):
        raw = torch.frombuffer(bytearray(zlib.decompress(self.blobs[i])), dtype=torch.uint8)
        return raw.view(FRAMES, -1).float().mean(0) / 255

    def tile(self, i):
        if i in self.cache:
            self.cache.move_to_end(i)
            return self.cache[i]
        value = self.decode(i)
        self.cache[i] = value
        while len(self.cache) > self.room:
            self.cache.popitem(last=False)
        return value


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = TileStore(rank, world)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(SIDE * SIDE, 48), nn.ReLU(), nn.Linear(48, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    step, t0 = 0, time.perf_counter()
    for epoch in range(12):
        for ids in torch.arange(TILES).split(4):
            x = torch.stack([store.tile(i) for i in ids.tolist()])
            loss = (model(x) - x.std(1, keepdim=True)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if rank == 0 and step % 15 == 0:
                t1 = time.perf_counter()
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} {(t1 - t0) / 15 * 1e3:.1f} ms/it", flush=True)
                t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
