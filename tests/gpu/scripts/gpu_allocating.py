"""Trains with a gigabyte of its own, and takes two more when the file that it is given is there."""

import os

import torch
from runlog import RunLog, arguments
from torch import nn

from gpu_run import layers

GIGABYTE = 1 << 30


def main():
    args = arguments(__doc__, device="cuda", width=1024, batch_size=256, more="", unit=GIGABYTE)
    log = RunLog(args)
    model = layers(args.width, 4).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(args.batch_size, args.width, device=args.device)
    y = torch.randint(10, (args.batch_size,), device=args.device)
    held = [torch.zeros(args.unit, dtype=torch.uint8, device=args.device)]
    while True:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if args.more and len(held) == 1 and os.path.exists(args.more):
            held.append(torch.zeros(2 * args.unit, dtype=torch.uint8, device=args.device))
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
