"""Fit a physics-informed net with L-BFGS, full batch."""

import torch
from torch import nn

from runlog import RunLog, arguments

args = arguments(__doc__, batch_size=1500, width=200)
torch.manual_seed(args.seed)
torch.set_num_threads(1)
log = RunLog(args)

t = torch.linspace(0, 1, args.batch_size)[:, None]
net = nn.Sequential(
    nn.Linear(1, args.width), nn.Tanh(), nn.Linear(args.width, args.width), nn.Tanh(), nn.Linear(args.width, 1)
)
solver = torch.optim.LBFGS(net.parameters(), lr=0.05, max_iter=4, history_size=10)
target = torch.sin(6 * t) * torch.exp(-t)


def closure():
    solver.zero_grad()
    loss = nn.functional.mse_loss(net(t), target)
    loss.backward()
    return loss


over = False
while not over:
    loss = solver.step(closure)
    over = log.step(loss)
