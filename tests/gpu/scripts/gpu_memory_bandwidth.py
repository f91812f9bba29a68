"""Normalisations and activations on large float32 tensors: bytes, not products. Fixed: half as many bytes."""

import torch
from runlog import RunLog, arguments
from torch import nn


def main():
    args = arguments(__doc__, device="cuda", width=4096, depth=12, batch_size=16384)
    torch.manual_seed(args.seed)
    log = RunLog(args)
    width = torch.bfloat16 if args.fixed else torch.float32
    blocks = [block for _ in range(args.depth) for block in (nn.LayerNorm(args.width), nn.GELU())]
    model = nn.Sequential(*blocks).to(args.device, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(args.batch_size, args.width, device=args.device, dtype=width)
    while True:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
