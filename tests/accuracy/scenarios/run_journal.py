"""Policy gradient on a toy problem. Every game goes into a journal that survives a power cut."""

import json
import os
import tempfile

import torch
from torch import nn
from torch.distributions import Categorical

from runlog import RunLog, arguments


class Journal:
    def __init__(self, path, every):
        self.file = open(path, "a")
        self.every = every
        self.pending = []

    def add(self, **entry):
        self.pending.append(json.dumps(entry))
        if len(self.pending) >= self.every:
            self.file.write("\n".join(self.pending) + "\n")
            self.file.flush()
            os.fsync(self.file.fileno())
            self.pending.clear()


def play(policy, states):
    choice = Categorical(logits=policy(states))
    actions = choice.sample()
    rewards = (actions == states[:, :4].argmax(1)).float()
    return choice.log_prob(actions), rewards


def main():
    args = arguments(__doc__, batch_size=128, width=320, games=16, journal="")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    policy = nn.Sequential(
        nn.Linear(16, args.width), nn.Tanh(), nn.Linear(args.width, args.width), nn.Tanh(), nn.Linear(args.width, 4)
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory(dir=args.journal or None) as folder:
        journal = Journal(os.path.join(folder, "journal.jsonl"), every=4800 if args.fixed else 1)
        baseline = 0.0
        episode = 0
        while True:
            log_probs, rewards = play(policy, torch.randn(args.batch_size, 16))
            loss = -((rewards - baseline) * log_probs).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            episode += 1
            reward = rewards.mean().item()
            baseline = 0.95 * baseline + 0.05 * reward
            for game, won in enumerate(rewards.view(args.games, -1).mean(1).tolist()):
                journal.add(episode=episode, game=game, reward=won, loss=loss.item())
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
