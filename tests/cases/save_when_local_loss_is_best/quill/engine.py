from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from .control import Control, Handler
from .saving import Saver


class Engine:
    def __init__(self, module, args, train_data, eval_data, handlers=()):
        self.args, self.train_data, self.eval_data = args, train_data, eval_data
        self.model = DDP(module)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.learning_rate)
        self.handlers = [Handler(), *handlers]
        self.state, self.control = SimpleNamespace(step=0, loss=None), Control()
        self.saver = Saver(args.output_dir, args.save_limit)

    def compute_loss(self, batch):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.model(x), y)

    def evaluate(self):
        with torch.no_grad():
            losses = [torch.nn.functional.cross_entropy(self.model.module(x), y) for x, y in self.eval_data]
        return {"eval_loss": torch.stack(losses).mean().item()}

    def training_step(self, batch):
        loss = self.compute_loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.state.step += 1
        self.state.loss = loss.item()

    def train(self):
        for batch in self.train_data:
            self.training_step(batch)
            self.control.clear()
            for handler in self.handlers:
                handler.on_step(self.args, self.state, self.control)
            self.after_step()
            if self.control.should_stop:
                break

    def after_step(self):
        if self.control.should_log and dist.get_rank() == 0:
            print(f"step {self.state.step} loss {self.state.loss:.4f}", flush=True)
        if self.control.should_evaluate:
            metrics = self.evaluate()
            for handler in self.handlers:
                handler.on_evaluate(self.args, self.state, self.control, metrics)
        if self.control.should_save:
            self.saver.save(self.state.step, self.model.module)
