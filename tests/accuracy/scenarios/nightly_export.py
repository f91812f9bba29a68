"""A regression net whose weights other people want as numpy archives, as fresh as can be."""

import os
import tempfile

import numpy as np
import torch
from torch import nn

from runlog import RunLog, arguments


def export_weights(model, folder, step):
    """One .npz with an array for each parameter."""
    arrays = {name: value.detach().cpu().numpy() for name, value in model.named_parameters()}
    target = os.path.join(folder, "weights.npz")
    np.savez_compressed(target + ".tmp.npz", step=step, **arrays)
    os.replace(target + ".tmp.npz", target)


class Wave(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inp = nn.Linear(32, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(torch.sin(self.mid(torch.sin(self.inp(x)))))


def main():
    args = arguments(__doc__, batch_size=256, width=512, every=12)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    every = 100 * args.every if args.fixed else args.every
    model = Wave(args.width)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        step = 0
        while True:
            x = torch.rand(args.batch_size, 32) * 2 - 1
            loss = (model(x) - x.prod(1, keepdim=True)).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % every == 0:
                export_weights(model, folder, step)
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
