"""A mixer for small pictures, compiled. All batches have one shape."""

import torch
from torch import nn

from runlog import RunLog, arguments


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.across = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.within = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, tokens=64, dim=96, depth=2, classes=10):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, stride=4)
        self.blocks = nn.Sequential(*(MixerBlock(tokens, dim) for _ in range(depth)))
        self.head = nn.Linear(dim, classes)

    def forward(self, pictures):
        x = self.patch(pictures).flatten(2).transpose(1, 2)
        return self.head(self.blocks(x).mean(1))


def main():
    args = arguments(__doc__, batch_size=32, depth=2, backend="aot_eager")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    model = Mixer(depth=args.depth)
    step_model = torch.compile(model, backend=args.backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    pictures = torch.rand(1024, 3, 32, 32)
    labels = torch.randint(10, (1024,))
    while True:
        for rows in torch.randperm(1024).split(args.batch_size):
            loss = nn.functional.cross_entropy(step_model(pictures[rows]), labels[rows], label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
