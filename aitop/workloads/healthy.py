"""Train a small transformer whose loader keeps up with it: the arithmetic is the limit."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Text(Dataset):
    """Windows of a long sequence of tokens, for next-token prediction."""

    def __init__(self, tokens: torch.Tensor, length: int):
        self.tokens = tokens
        self.length = length

    def __len__(self) -> int:
        return len(self.tokens) - self.length - 1

    def __getitem__(self, index: int):
        window = self.tokens[index : index + self.length + 1]
        return window[:-1], window[1:]


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, width: int, length: int):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens):
        hidden = self.embed(tokens) + self.position
        return self.head(self.layers(hidden, mask=self.mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (default: never)")
    parser.add_argument("--fixed", action="store_true", help="changes nothing: there is nothing to fix")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    text = Text(torch.randint(0, 256, (100_000,)), 64)
    loader = DataLoader(text, batch_size=16, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True)
    model = LanguageModel(256, 128, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    step, since, last = 0, time.perf_counter(), 0
    while True:
        for tokens, targets in loader:
            optimizer.zero_grad()
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            step += 1
            if step == 1 or step % 20 == 0:
                now = time.perf_counter()
                rate = (step - last) / (now - since)
                print(f"step {step}: loss {loss.item():.4f}, {rate:.1f} steps/s", flush=True)
                since, last = now, step
            if step == args.steps:
                return


if __name__ == "__main__":
    main()
