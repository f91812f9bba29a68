"""A small vision transformer that remembers where it looked, to draw it later."""

import torch
from torch import nn

from runlog import RunLog, arguments


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / (d // self.heads) ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, d)), weights


class ViT(nn.Module):
    def __init__(self, dim=64, heads=4, depth=3, patches=36, keep=None):
        super().__init__()
        self.embed = nn.Linear(48, dim)
        self.pos = nn.Parameter(torch.zeros(patches, dim))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.layers = nn.ModuleList(Attention(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, 10)
        self.keep = keep
        self.maps = []

    def forward(self, x):
        x = self.embed(x) + self.pos
        for norm, layer in zip(self.norms, self.layers):
            looked, weights = layer(norm(x))
            x = x + looked
            self.maps.append(weights.mean(1))
        if self.keep:
            self.maps = [m.detach() for m in self.maps[-self.keep :]]
        return self.head(x.mean(1))


def main():
    args = arguments(__doc__, batch_size=24, depth=3)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    model = ViT(depth=args.depth, keep=args.depth if args.fixed else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    images = torch.randn(512, 36, 48)
    labels = torch.randint(10, (512,))
    while True:
        pick = torch.randint(512, (args.batch_size,))
        loss = nn.functional.cross_entropy(model(images[pick]), labels[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
