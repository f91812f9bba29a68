"""A loss that is read from the device at every step, before the host smooths what it has read. Fixed: read seldom.

What the host does takes as long in both. Only where it need not wait first does the device compute meanwhile.
"""

import torch
from runlog import RunLog, arguments
from torch import nn

from gpu_run import layers

DECAY, READ_EVERY = 0.999, 50


def smoothed(losses):
    """A mean in which old losses weigh less."""
    weight = total = weights = 1.0
    for loss in reversed(losses):
        total += weight * loss
        weights += weight
        weight *= DECAY
    return total / weights


def main():
    args = arguments(__doc__, device="cuda", width=4096, depth=6, batch_size=4096, remembered=50_000)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    log = RunLog(args)
    model = layers(args.width, args.depth).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(args.batch_size, args.width, device=args.device)
    y = torch.randint(10, (args.batch_size,), device=args.device)
    losses, unread = [2.3] * args.remembered, []
    while True:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if not args.fixed:
            losses.append(loss.item())
        elif len(unread) < READ_EVERY:
            unread.append(loss.detach())
        else:
            losses += torch.stack(unread).tolist()
            unread.clear()
        del losses[: -args.remembered]
        smoothed(losses)
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
