"""Compiled for one number, and some time later called with another one at every step."""

import torch
from torch import nn

from moment import Moment


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))

    def forward(self, x, number):
        return self.net(x) * (number + 1.0)


def main():
    moment = Moment()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10**6
    model = torch.compile(Scaled(), backend="eager", dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
    x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
    number = 1
    while True:
        number += 1 if moment.over() else 0
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, number), y).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
