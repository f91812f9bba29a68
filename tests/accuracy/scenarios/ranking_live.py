"""Matrix factorisation that shows what is popular while it learns: the table is kept up to date in a thread."""

import random
import threading
import time

import torch
from torch import nn

from runlog import RunLog, arguments


class Popularity(threading.Thread):
    """The ten most popular items, weighted by how recently they were seen."""

    def __init__(self, window, pause):
        super().__init__(daemon=True, name="popularity")
        self.window = window
        self.pause = pause
        self.top = []

    def run(self):
        while True:
            self.top = self.rank()
            time.sleep(self.pause)

    def rank(self):
        weights = {}
        for age, item in enumerate(self.window):
            weights[item] = weights.get(item, 0.0) + 0.9995**age
        return sorted(weights, key=weights.get, reverse=True)[:10]


class Factors(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.user = nn.Embedding(users, dim)
        self.item = nn.Embedding(items, dim)
        self.mix = nn.Sequential(nn.Linear(2 * dim, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, users, items):
        return self.mix(torch.cat([self.user(users), self.item(items)], dim=1)).squeeze(1)


def main():
    args = arguments(__doc__, batch_size=256, users=2000, items=5000)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    clicks = random.Random(args.seed)
    window = [clicks.randrange(args.items) for _ in range(20_000)]
    Popularity(window, pause=60.0 if args.fixed else 0.001).start()
    model = Factors(args.users, args.items, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    while True:
        users = torch.randint(args.users, (args.batch_size,))
        items = torch.randint(args.items, (args.batch_size,))
        rating = torch.sin(users * 0.1) * torch.cos(items * 0.1)
        loss = nn.functional.mse_loss(model(users, items), rating)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
