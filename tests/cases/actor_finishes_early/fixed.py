import torch
import torch.distributed as dist
import torch.nn as nn

OBS, ACT, HORIZON = 10, 4, 25
LEARNER = 0


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(OBS, 64), nn.Tanh(), nn.Linear(64, ACT))

    def forward(self, obs):
        return self.net(obs).log_softmax(-1)


class Maze:
    def __init__(self, seed, tail):
        self.g, self.tail = torch.Generator().manual_seed(seed), tail
        self.episodes = 0

    def reset(self):
        self.episodes += 1
        self.obs = torch.randn(OBS, generator=self.g)

    def step(self, action):
        self.obs = self.obs.roll(int(action)) + 0.1 * torch.randn(OBS, generator=self.g)
        return self.obs[0] - self.obs[1]

    def exhausted(self):
        return self.episodes >= self.tail


def rollout(env, policy):
    env.reset()
    out = torch.zeros(HORIZON, OBS + 2)
    with torch.no_grad():
        for t in range(HORIZON):
            action = torch.distributions.Categorical(logits=policy(env.obs)).sample()
            out[t, :OBS], out[t, OBS] = env.obs, action
            out[t, OBS + 1] = env.step(action)
    return out


def sync(policy):
    for p in policy.parameters():
        dist.broadcast(p.data, src=LEARNER)


def act(rank, rounds, per_round):
    policy, env = Policy(), Maze(rank, tail=200 + 40 * (rank != 2))
    for _ in range(rounds):
        sync(policy)
        for _ in range(per_round):
            if env.exhausted():
                env.episodes = 0
            dist.send(rollout(env, policy), LEARNER)


def learn(world, rounds, per_round):
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    buffer = torch.zeros(HORIZON, OBS + 2)
    for number in range(1, rounds + 1):
        sync(policy)
        losses = []
        for _ in range(per_round):
            for actor in range(1, world):
                dist.recv(buffer, actor)
                logp = policy(buffer[:, :OBS]).gather(1, buffer[:, OBS:OBS + 1].long())
                losses.append(-(logp.squeeze(1) * buffer[:, OBS + 1]).mean())
        loss = torch.stack(losses).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"iter {number} loss {loss.item():.4f}", flush=True)


def main(rounds=60, per_round=4):
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    if dist.get_rank() == LEARNER:
        learn(dist.get_world_size(), rounds, per_round)
    else:
        act(dist.get_rank(), rounds, per_round)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
