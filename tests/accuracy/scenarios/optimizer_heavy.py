"""Per-item embeddings kept as separate parameters, trained with an AdamW of our own."""

import math

import torch
from torch import nn

from runlog import RunLog, arguments


class MyAdamW(torch.optim.Optimizer):
    """AdamW after the paper, one parameter at a time."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.update(p, group, beta1, beta2)

    def update(self, p, group, beta1, beta2):
        state = self.state[p]
        if not state:
            state["t"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
        state["t"] += 1
        m, v, t = state["m"], state["v"], state["t"]
        p.mul_(1 - group["lr"] * group["weight_decay"])
        m.mul_(beta1).add_(p.grad, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
        denominator = (v.sqrt() / math.sqrt(1 - beta2**t)).add_(group["eps"])
        p.addcdiv_(m, denominator, value=-group["lr"] / (1 - beta1**t))


class Items(nn.Module):
    def __init__(self, items, dim):
        super().__init__()
        self.vectors = nn.ParameterList([nn.Parameter(torch.randn(1, dim) * 0.1) for _ in range(items)])
        self.tower = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self):
        return self.tower(torch.cat(list(self.vectors))).squeeze(1)


def main():
    args = arguments(__doc__, items=1000, dim=64, stock=0)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    model = Items(args.items, args.dim)
    target = torch.randn(args.items)
    if args.fixed:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    elif args.stock:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    else:
        optimizer = MyAdamW(model.parameters(), lr=1e-3)
    while True:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(), target)
        loss.backward()
        optimizer.step()
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
