"""A regression whose forward hook was meant to look at activations for a while, and keeps all of them.

--fixed keeps those of the last step.
"""

import torch
from torch import nn

from runlog import RunLog, arguments


def watch(kept, name, last_only):
    def look(module, inputs, output):
        if last_only:
            kept[name] = [output.detach()]
        else:
            kept.setdefault(name, []).append(output.detach())

    return look


def main():
    args = arguments(__doc__, batch_size=100, width=700)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    net = nn.Sequential(
        nn.Linear(200, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, 1)
    )
    kept = {}
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(watch(kept, name, args.fixed))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    while True:
        strain = torch.randn(args.batch_size, 200)
        loss = nn.functional.mse_loss(net(strain), strain.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if log.step(loss.detach()):
            break


if __name__ == "__main__":
    main()
