"""Texts of equal length, and some time later longer ones."""

import torch
from torch import nn

from moment import Moment


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        self.encode = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
        self.out = nn.Linear(128, 10)

    def forward(self, ids):
        return self.out(self.encode(self.embed(ids)))


def main():
    moment = Moment()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        length = 110 if moment.over() else 60
        ids = torch.randint(0, 1000, (32, length))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten() % 10).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
