"""The training runs that benches of the hook time: a small MLP (about a millisecond a step) and a transformer."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, count: int, width: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randn(count, width, generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int):
        return self.rows[index], index % 10


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, rows):
        return self.net(rows)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(192, 4, 512, batch_first=True, dropout=0.0)
        self.embed = nn.Linear(64, 192)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(192, 10)

    def forward(self, rows):
        return self.head(self.encoder(self.embed(rows).unsqueeze(1).expand(-1, 12, -1)).mean(1))


# How a model is made, and how many of its steps fill about a quarter of a second.
MODELS = {"mlp": (Mlp, 300), "transformer": (Transformer, 5)}


def steps_of(model, device="cpu", loader=None):
    """An endless training run; each `next` makes a step and gives its loss."""
    torch.manual_seed(0)
    model.to(device)
    loader = loader or DataLoader(Rows(3200, 64), batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loss_of = nn.CrossEntropyLoss()
    while True:
        for rows, labels in loader:
            loss = loss_of(model(rows.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.detach()
