"""A loss of many heads, each read from the device as soon as it is known. Fixed: they stay there.

The device works on a head for about as long as the host launches it.
"""

import torch
from runlog import RunLog, arguments
from torch import nn

from gpu_run import layers


def main():
    args = arguments(__doc__, device="cuda", width=2048, heads=24, batch_size=4096)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    log = RunLog(args)
    trunk = layers(args.width, 2, args.width).to(args.device)
    heads = nn.ModuleList(layers(args.width, 1, 16) for _ in range(args.heads)).to(args.device)
    optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=1e-3)
    x = torch.randn(args.batch_size, args.width, device=args.device)
    y = torch.randint(16, (args.batch_size,), device=args.device)
    history = []
    while True:
        optimizer.zero_grad()
        shared = trunk(x)
        total = torch.zeros((), device=args.device)
        for head in heads:
            loss = nn.functional.cross_entropy(head(shared), y)
            history.append(loss.detach() if args.fixed else loss.item())
            total = total + loss
        del history[: -args.heads]
        total.backward()
        optimizer.step()
        if log.step(total):
            return


if __name__ == "__main__":
    main()
