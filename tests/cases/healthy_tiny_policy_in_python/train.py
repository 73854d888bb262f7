import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Grid:
    """A walk on a grid with walls; everything that happens is Python."""

    MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))

    def __init__(self, seed, size=9):
        self.rng, self.size = random.Random(seed), size
        self.walls = {(self.rng.randrange(size), self.rng.randrange(size)) for _ in range(14)}
        self.reset()

    def reset(self):
        self.at, self.goal = (0, 0), (self.size - 1, self.rng.randrange(self.size))
        return self.view()

    def view(self):
        y, x = self.at
        near = [float((y + dy, x + dx) in self.walls) for dy, dx in self.MOVES]
        return [y / self.size, x / self.size, self.goal[0] / self.size, self.goal[1] / self.size, *near]

    def step(self, move):
        dy, dx = self.MOVES[move]
        y, x = min(max(self.at[0] + dy, 0), self.size - 1), min(max(self.at[1] + dx, 0), self.size - 1)
        if (y, x) not in self.walls:
            self.at = (y, x)
        done = self.at == self.goal
        return self.view(), 1.0 if done else -0.01, done


def play(grid, net, steps):
    seen, moves, rewards = [], [], []
    view = grid.reset()
    for _ in range(steps):
        with torch.no_grad():
            move = int(torch.multinomial(net(torch.tensor(view)).softmax(-1), 1))
        seen.append(view)
        moves.append(move)
        view, reward, done = grid.step(move)
        rewards.append(reward)
        if done:
            view = grid.reset()
    total, returns = 0.0, []
    for reward in reversed(rewards):
        total = reward + 0.95 * total
        returns.append(total)
    return torch.tensor(seen), torch.tensor(moves), torch.tensor(returns[::-1])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    grid = Grid(rank)
    torch.manual_seed(rank)
    t0 = time.perf_counter()
    for step in range(1, 241):
        seen, moves, returns = play(grid, net, 120)
        picked = model(seen).log_softmax(-1).gather(1, moves[:, None]).squeeze(1)
        loss = -(picked * (returns - returns.mean())).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 15 == 0:
            t1 = time.perf_counter()
            print(f"step {step} loss {loss.item():.4f} {(t1 - t0) / 15 * 1e3:.1f} ms/it", flush=True)
            t0 = t1


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
