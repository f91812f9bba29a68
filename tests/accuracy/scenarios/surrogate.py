"""A surrogate for a flow solver: fields in, drag out. The solver's output is in numpy arrays."""

import numpy as np
import torch
from torch import nn

from runlog import RunLog, arguments


def simulate(cases, width, seed):
    rng = np.random.default_rng(seed)
    fields = rng.standard_normal((cases, width))
    drag = np.tanh(fields[:, :16]).sum(axis=1, keepdims=True)
    return fields, drag


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(torch.nn.functional.silu(self.a(x)))


def main():
    args = arguments(__doc__, batch_size=256, width=512, depth=2)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    fields, drag = simulate(4000, args.width, args.seed)
    if args.fixed:
        fields, drag = fields.astype(np.float32), drag.astype(np.float32)
    x, y = torch.from_numpy(fields), torch.from_numpy(drag)
    model = nn.Sequential(*(Residual(args.width) for _ in range(args.depth)), nn.Linear(args.width, 1)).to(x.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    start = 0
    while True:
        rows = slice(start, start + args.batch_size)
        start = (start + args.batch_size) % (len(x) - args.batch_size)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        if log.step(loss):
            break


if __name__ == "__main__":
    main()
