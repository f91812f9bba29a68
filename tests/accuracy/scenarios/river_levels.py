"""Forecasting of river levels whose gradients are clipped at a percentile of all norms so far."""

from collections import deque

import numpy as np
import torch
from torch import nn

from runlog import RunLog, arguments


def clip(net, norms, percentile):
    norm = nn.utils.clip_grad_norm_(net.parameters(), float("inf"))
    norms.append(float(norm))
    nn.utils.clip_grad_norm_(net.parameters(), np.percentile(norms, percentile))


def clip_by_recent(net, recent, percentile):
    norm = nn.utils.clip_grad_norm_(net.parameters(), float("inf"))
    recent.append(float(norm))
    nn.utils.clip_grad_norm_(net.parameters(), sorted(recent)[len(recent) * percentile // 100])


def windows(levels, hours, size):
    while True:
        starts = torch.randint(0, len(levels) - hours - 1, (size, 1))
        series = levels[starts + torch.arange(hours + 1)]
        yield series[:, :-1], series[:, -1:]


def main():
    args = arguments(__doc__, batch_size=64, hours=96)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    levels = torch.cumsum(torch.randn(20_000), 0) / 50
    net = nn.Sequential(nn.Linear(args.hours, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 1))
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    norms, recent = [], deque(maxlen=200)
    for past, future in windows(levels, args.hours, args.batch_size):
        loss = nn.functional.huber_loss(net(past), future)
        sgd.zero_grad()
        loss.backward()
        if args.fixed:
            clip_by_recent(net, recent, 10)
        else:
            clip(net, norms, 10)
        sgd.step()
        if log.step(loss):
            break


if __name__ == "__main__":
    main()
