"""Keeps its best weights: once in a while, and some time later at nearly every improvement."""

import io

import torch
from torch import nn

from moment import Moment


def main():
    moment = Moment()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU(), nn.Linear(1200, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
    step = 0
    while True:
        step += 1
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % (4 if moment.over() else 300) == 0:
            best = io.BytesIO()
            for _ in range(8):
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, best)


if __name__ == "__main__":
    main()
