import io
import os
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class AsyncSaver:
    """Saves in a thread; at most one save is on its way."""

    def __init__(self, root):
        self.root, self.idle, self.error = root, threading.Event(), None
        self.idle.set()
        os.makedirs(root, exist_ok=True)

    def submit(self, step, state):
        self.idle.wait()
        if self.error:
            raise RuntimeError("the last save failed") from self.error
        self.idle.clear()
        threading.Thread(target=self._save, args=(step, state), daemon=True, name=f"save-{step}").start()

    def _save(self, step, state):
        try:
            blob = io.BytesIO()
            torch.save(state, blob)
            name = f"{state['tag'].replace('/', '-')}-{step}"
            part = os.path.join(self.root, name + ".part")
            with open(part, "wb") as f:
                f.write(blob.getvalue())
            os.replace(part, os.path.join(self.root, name + ".pt"))
        except Exception as error:
            self.error = error
        finally:
            self.idle.set()


def snapshot(model, step, tag):
    return {"tag": tag, "step": step, "model": {k: v.clone() for k, v in model.state_dict().items()}}


def phase_tag(step):
    return "warm" if step <= 80 else "main/decay"


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(4, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 4, 5, padding=2))
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    saver = AsyncSaver("saves") if rank == 0 else None
    g = torch.Generator().manual_seed(rank)
    for step in range(1, 301):
        clean = torch.randn(8, 4, 1, generator=g) * torch.linspace(0, 3, 64).sin()
        loss = (model(clean + 0.1 * torch.randn(8, 4, 64, generator=g)) - clean).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if saver and step % 25 == 0:
            saver.submit(step, snapshot(net, step, phase_tag(step)))
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
