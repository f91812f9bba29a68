"""Scores reviews as they come in: words to pieces, pieces to numbers, numbers through a small encoder."""

import random

import torch
from torch import nn

from runlog import RunLog, arguments


class WordPieces:
    """The longest known piece first, as in the paper."""

    def __init__(self, pieces, remember):
        self.ids = {piece: n for n, piece in enumerate(pieces, 2)}
        self.longest = max(map(len, pieces))
        self.known = {} if remember else None

    def split(self, word):
        found, start = [], 0
        while start < len(word):
            end = min(len(word), start + self.longest)
            while end > start and word[start:end] not in self.ids:
                end -= 1
            if end == start:
                return [1]
            found.append(self.ids[word[start:end]])
            start = end
        return found

    def __call__(self, text, length):
        numbers = []
        for word in text.lower().split():
            if self.known is None:
                numbers += self.split(word)
            else:
                if word not in self.known:
                    self.known[word] = self.split(word)
                numbers += self.known[word]
        return (numbers + [0] * length)[:length]


class Encoder(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.conv = nn.Conv1d(dim, dim, 5, padding=2)
        self.score = nn.Linear(dim, 1)

    def forward(self, ids):
        states = torch.relu(self.conv(self.embed(ids).transpose(1, 2)))
        return self.score(states.amax(2)).squeeze(1).sigmoid()


def incoming(size, words):
    """Requests with a few reviews each."""
    while True:
        yield [" ".join(random.choices(words, k=90)) for _ in range(size)]


def main():
    args = arguments(__doc__, batch_size=16, dim=32)
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    letters = "etaoinshrdlu"
    pieces = list(letters) + [a + b for a in letters for b in letters] + ["tion", "ness", "ment", "able", "ing", "est"]
    words = ["".join(random.choices(letters, k=random.randint(6, 12))) for _ in range(3000)]
    tokenizer = WordPieces(pieces, remember=args.fixed)
    model = Encoder(len(pieces) + 2, args.dim).eval()
    for reviews in incoming(args.batch_size, words):
        ids = torch.tensor([tokenizer(review, 160) for review in reviews])
        with torch.inference_mode():
            scores = model(ids)
        if log.step(scores.mean()):
            break


if __name__ == "__main__":
    main()
