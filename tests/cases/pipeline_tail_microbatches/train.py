import torch
import torch.distributed as dist
import torch.nn as nn

MICRO, WIDTH = 16, 96


def stage_module(index, stages):
    torch.manual_seed(10 + index)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1)) if index == stages - 1 else nn.Sequential(*layers, nn.ReLU())


class Stage:
    def __init__(self, batch_size):
        self.index, self.stages = dist.get_rank(), dist.get_world_size()
        self.first, self.last = self.index == 0, self.index == self.stages - 1
        self.module = stage_module(self.index, self.stages)
        self.opt = torch.optim.SGD(self.module.parameters(), lr=0.02)
        self.chunks = batch_size // MICRO
        self.held = []

    def take(self):
        x = torch.empty(MICRO, WIDTH)
        dist.recv(x, self.index - 1)
        return x.requires_grad_()

    def forward_all(self, inputs):
        for x in inputs:
            y = self.module(x)
            self.held.append((x, y))
            if not self.last:
                dist.send(y.detach(), self.index + 1)

    def backward_all(self):
        total = 0.0
        for x, y in self.held:
            if self.last:
                loss = (y - x.detach().mean(1, keepdim=True).sin()).pow(2).mean()
                loss.backward()
                total += loss.item()
            else:
                grad = torch.empty_like(y)
                dist.recv(grad, self.index + 1)
                y.backward(grad)
            if not self.first:
                dist.send(x.grad, self.index - 1)
        n, self.held = len(self.held), []
        self.opt.step()
        self.opt.zero_grad()
        return total / max(n, 1)

    def train_batch(self, batch):
        if self.first:
            inputs = batch.split(MICRO)
        else:
            inputs = (self.take() for _ in range(self.chunks))
        self.forward_all(inputs)
        return self.backward_all()


def main(rows=2592, batch_size=64, epochs=3):
    dist.init_process_group("gloo")
    stage = Stage(batch_size)
    data = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(5))
    step = 0
    for epoch in range(epochs):
        for start in range(0, rows, batch_size):
            loss = stage.train_batch(data[start:start + batch_size])
            step += 1
            if stage.last and step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
