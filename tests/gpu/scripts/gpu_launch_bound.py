"""Hundreds of tiny layers. Fixed: their launches are replayed as a CUDA graph."""

import torch
from runlog import RunLog, arguments
from torch import nn

from gpu_run import layers


def main():
    args = arguments(__doc__, device="cuda", width=64, depth=200, batch_size=32)
    torch.manual_seed(args.seed)
    log = RunLog(args)
    model = layers(args.width, args.depth).to(args.device)
    x = torch.randn(args.batch_size, args.width, device=args.device)
    y = torch.randint(10, (args.batch_size,), device=args.device)
    if args.fixed and args.device == "cuda":
        model = torch.cuda.make_graphed_callables(model, (x.clone(),))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
