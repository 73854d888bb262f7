from .rank import rank_zero_only


class Callback:
    def on_train_batch_end(self, trainer, loss):
        pass

    def on_stage_end(self, trainer):
        pass


class ProgressLines(Callback):
    def __init__(self, every=10):
        self.every = every

    @rank_zero_only
    def on_train_batch_end(self, trainer, loss):
        if trainer.global_step % self.every == 0:
            print(f"step {trainer.global_step} loss {loss:.4f}", flush=True)


class MetricCard(Callback):
    """Keeps the mean of the last losses and writes a card at the end of a stage."""

    def __init__(self, path, momentum=0.9):
        self.path, self.momentum, self.mean = path, momentum, 1.0

    def on_train_batch_end(self, trainer, loss):
        self.mean = self.momentum * self.mean + (1 - self.momentum) * loss

    @rank_zero_only
    def on_stage_end(self, trainer):
        spread = trainer.strategy.collect(self.mean)
        with open(self.path, "a") as card:
            card.write(f"{trainer.global_step}: {spread.mean():.4f} (max {spread.max():.4f})\n")
