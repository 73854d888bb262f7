import torch
import torch.distributed as dist
import torch.nn as nn
from quill import Arguments, BestLoss, Engine
from train import Gestures


class WorldLossEngine(Engine):
    """The evaluation loss is the mean over ranks, so that all ranks decide alike."""

    def evaluate(self):
        loss = torch.tensor(super().evaluate()["eval_loss"])
        dist.all_reduce(loss)
        return {"eval_loss": loss.item() / dist.get_world_size()}


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 5))
    held_out = list(Gestures(seed=900 + rank, batches=2, hard=0.4 + 0.4 * rank))
    engine = WorldLossEngine(net, Arguments(learning_rate=4e-2), Gestures(seed=rank), held_out, [BestLoss()])
    engine.train()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
