import torch
import torch.distributed as dist
import torch.nn as nn
from spark import MetricCard, Trainer
from train import windows


class SharedMetricCard(MetricCard):
    """Every rank takes part in the gather; the first one writes."""

    def on_stage_end(self, trainer):
        spread = trainer.strategy.collect(self.mean)
        if dist.get_rank() == 0:
            with open(self.path, "a") as card:
                card.write(f"{trainer.global_step}: {spread.mean():.4f} (max {spread.max():.4f})\n")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(48, 128), nn.GELU(), nn.Linear(128, 1))
    Trainer(callbacks=[SharedMetricCard("card.txt")]).fit(net, windows(dist.get_rank()))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
