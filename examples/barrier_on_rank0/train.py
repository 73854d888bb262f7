"""A DDP job that stops at its first checkpoint.

    torchrun --standalone --nproc_per_node=4 train.py

Only rank 0 saves, but saving ends with a barrier, which needs all ranks.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_dataset(num_samples: int = 4096) -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    features = torch.randn(num_samples, 48, generator=generator)
    return TensorDataset(features, features[:, :8].argmax(1))


def write_checkpoint(model: nn.Module, folder: Path, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / f"{step:06d}.pt")
    dist.barrier()
    print(f"checkpoint written at step {step}", flush=True)


def train(epochs: int, checkpoint_every: int, folder: Path) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    dataset = make_dataset()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    network = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 8))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    step = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for features, labels in loader:
            loss = nn.functional.cross_entropy(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            if rank == 0 and step % checkpoint_every == 0:
                write_checkpoint(model, folder, step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--checkpoint-every", type=int, default=40)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()
    dist.init_process_group("gloo")
    train(options.epochs, options.checkpoint_every, options.folder)
    dist.barrier()
    if dist.get_rank() == 0:
        print("finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
