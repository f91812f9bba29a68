"""Q-learning of where taxis should wait; what happened is replayed with the largest surprises first."""

import random

import torch
from torch import nn

from runlog import RunLog, arguments


class City:
    """Taxis on a ring of places; passengers appear more often at some."""

    def __init__(self, places):
        self.wishes = [random.random() for _ in range(places)]
        self.at = 0

    def drive(self, where):
        self.at = (self.at + where - 1) % len(self.wishes)
        return float(random.random() < self.wishes[self.at])


def network(places, width):
    return nn.Sequential(
        nn.Embedding(places, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )


def main():
    args = arguments(__doc__, batch_size=128, width=128)
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    city, values = City(500), network(500, args.width)
    adam = torch.optim.Adam(values.parameters(), lr=1e-3)
    replay = []
    while True:
        for _ in range(8):
            at, where = city.at, random.randrange(3)
            reward = city.drive(where)
            replay.append((abs(reward - 0.5) + 0.1 * random.random(), at, where, reward, city.at))
        replay.sort(key=lambda event: -event[0])
        if args.fixed:
            del replay[1000:]
        events = [replay[min(len(replay) - 1, int(random.expovariate(0.02)))] for _ in range(args.batch_size)]
        at, where, then = (torch.tensor([event[i] for event in events]) for i in (1, 2, 4))
        with torch.no_grad():
            goal = torch.tensor([event[3] for event in events]) + 0.9 * values(then).amax(1)
        loss = nn.functional.mse_loss(values(at).gather(1, where[:, None]).squeeze(1), goal)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if log.step(loss):
            break


if __name__ == "__main__":
    main()
