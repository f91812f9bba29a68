"""Neural additive model: one tiny net per feature, evaluated one after the other."""

import torch
from torch import nn

from runlog import RunLog, arguments


class AdditiveLayer(nn.Module):
    """One hidden unit group per feature."""

    def __init__(self, features, hidden, batched):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(features, hidden) * 0.3)
        self.b1 = nn.Parameter(torch.zeros(features, hidden))
        self.w2 = nn.Parameter(torch.randn(features, hidden) * 0.3)
        self.batched = batched

    def forward(self, x):
        if self.batched:
            return (torch.tanh(x[:, :, None] * self.w1 + self.b1) * self.w2).sum(2)
        outputs = []
        for f in range(x.shape[1]):
            hidden = torch.tanh(x[:, f, None] * self.w1[f] + self.b1[f])
            outputs.append((hidden * self.w2[f]).sum(1))
        return torch.stack(outputs, dim=1)


def main():
    args = arguments(__doc__, features=200, batch_size=64)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    tower = [nn.Linear(args.features, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)]
    model = nn.Sequential(AdditiveLayer(args.features, 8, args.fixed), *tower)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        x = torch.randn(args.batch_size, args.features)
        y = x[:, :3].prod(1, keepdim=True)
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
