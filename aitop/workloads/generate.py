"""Generate text token by token with a small network, penalising repetition by counting tokens in Python."""

from __future__ import annotations

import torch
from torch import nn

from aitop.workloads._run import Progress, options, prepare

VOCABULARY, LENGTH, PENALTY = 1024, 96, 0.4


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
    """How often each text has each token, counted anew for every token."""

    def __init__(self, prompts):
        self.texts = prompts.tolist()

    def counts(self):
        return torch.tensor([[text.count(token) for token in range(VOCABULARY)] for text in self.texts])

    def add(self, tokens) -> None:
        for text, token in zip(self.texts, tokens[:, 0].tolist(), strict=True):
            text.append(token)


class CountingInPlace:
    """The same in a tensor to which each new token is added."""

    def __init__(self, prompts):
        self.table = torch.zeros(len(prompts), VOCABULARY).scatter_add_(1, prompts, torch.ones(prompts.shape))

    def counts(self):
        return self.table

    def add(self, tokens) -> None:
        self.table.scatter_add_(1, tokens, torch.ones(tokens.shape))


def main() -> None:
    parser = options(__doc__, "count in a tensor", batch_size=8, unit="tokens of each text")
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()

    prepare(args)
    model = LanguageModel(args.width).eval()

    progress = Progress(args.steps, 200, units=args.batch_size, unit="tokens")
    with torch.inference_mode():
        while True:
            tokens = torch.randint(VOCABULARY, (args.batch_size, 16))
            seen = CountingInPlace(tokens) if args.fixed else CountingInPython(tokens)
            state = None
            for _ in range(LENGTH):
                logits, state = model(tokens, state)
                logits -= PENALTY * seen.counts()
                tokens = torch.multinomial(logits.softmax(dim=1), 1)
                seen.add(tokens)
                if progress.step():
                    return


if __name__ == "__main__":
    main()
