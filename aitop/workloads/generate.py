"""Generate text token by token with a small network, penalising repetition by counting tokens in Python."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

VOCABULARY, LENGTH, PENALTY = 1024, 96, 0.4
BATCH, WIDTH = 8, 512


class LanguageModel(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens, state=None):
        hidden, state = self.layers(self.embed(tokens), state)
        return self.head(hidden[:, -1]), state


class CountingInPython:
    """Counts how often each text has each token, anew for every token."""

    def __init__(self, prompts):
        self.texts = prompts.tolist()

    def counts(self):
        return torch.tensor([[text.count(token) for token in range(VOCABULARY)] for text in self.texts])

    def add(self, tokens) -> None:
        for text, token in zip(self.texts, tokens[:, 0].tolist(), strict=True):
            text.append(token)


class CountingInPlace:
    """Keeps the same counts in a tensor to which each new token is added."""

    def __init__(self, prompts):
        self.table = torch.zeros(len(prompts), VOCABULARY).scatter_add_(1, prompts, torch.ones(prompts.shape))

    def counts(self):
        return self.table

    def add(self, tokens) -> None:
        self.table.scatter_add_(1, tokens, torch.ones(tokens.shape))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many tokens of each text (default: never)")
    parser.add_argument("--fixed", action="store_true", help="count in a tensor")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = LanguageModel(WIDTH).eval()

    step, since, last = 0, time.perf_counter(), 0
    with torch.inference_mode():
        while True:
            tokens = torch.randint(VOCABULARY, (BATCH, 16))
            seen = CountingInPlace(tokens) if args.fixed else CountingInPython(tokens)
            state = None
            for _ in range(LENGTH):
                logits, state = model(tokens, state)
                logits -= PENALTY * seen.counts()
                tokens = torch.multinomial(logits.softmax(dim=1), 1)
                seen.add(tokens)
                step += 1
                if step == 1 or step % 200 == 0:
                    now = time.perf_counter()
                    rate = BATCH * (step - last) / (now - since)
                    print(f"token {step} of {BATCH} texts: {rate:.0f} tokens/s", flush=True)
                    since, last = now, step
                if step == args.steps:
                    return


if __name__ == "__main__":
    main()
