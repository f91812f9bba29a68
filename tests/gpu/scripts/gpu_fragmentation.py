"""Sequences of any length, and results that are kept between them: the allocator's memory ends up in pieces.

Fixed: lengths are rounded up to a few, and what is kept is copied to the host.
"""

import random

import torch
from runlog import RunLog, arguments
from torch import nn

from gpu_run import layers

KEPT = 400


def main():
    args = arguments(__doc__, device="cuda", width=1024, longest=65536, part=0.5)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    dice = random.Random(args.seed)
    log = RunLog(args)
    if args.device == "cuda":
        torch.cuda.set_per_process_memory_fraction(args.part)
    model = layers(args.width, 4).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    kept = []
    while True:
        length = dice.randint(args.longest // 16, args.longest)
        if args.fixed:
            length = -(-length * 4 // args.longest) * args.longest // 4
        x = torch.randn(length, args.width, device=args.device)
        optimizer.zero_grad()
        outputs = model(x)
        loss = nn.functional.mse_loss(outputs, torch.zeros_like(outputs))
        loss.backward()
        optimizer.step()
        # From 10 MB on, so that it is cut from a block that the next step would need whole.
        result = x[: dice.randint(2560, 4096)].clone()
        kept.append(result.cpu() if args.fixed else result)
        if len(kept) > KEPT:
            del kept[dice.randrange(len(kept))]
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
