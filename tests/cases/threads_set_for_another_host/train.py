import time

import runtime

runtime.tune()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402


class Spectral(nn.Module):
    """Filters rows in frequency space, then mixes the channels."""

    def __init__(self, channels=16, length=256):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(channels, length // 2 + 1, 2) * 0.02)
        self.mix = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        f = torch.fft.rfft(x) * torch.view_as_complex(self.filter)
        return x + torch.relu(self.mix(torch.fft.irfft(f, n=x.shape[-1])))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(Spectral(), Spectral(), nn.Conv1d(16, 1, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    t0 = time.perf_counter()
    for step in range(1, 61):
        x = torch.randn(32, 16, 256, generator=g)
        loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 6 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 6 * 1e3:.1f} ms/it", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
