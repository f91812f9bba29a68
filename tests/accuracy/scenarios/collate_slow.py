"""Sentence classification with a custom collate function that pads and masks token by token."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from runlog import RunLog, arguments


class Sentences(Dataset):
    def __init__(self, n=4000):
        g = torch.Generator().manual_seed(1)
        lengths = torch.randint(20, 80, (n,), generator=g).tolist()
        self.tokens = [torch.randint(1, 2000, (length,), generator=g) for length in lengths]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i], i % 2


def collate_batch(batch):
    longest = max(len(tokens) for tokens, _ in batch)
    padded = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros(len(batch), longest)
    for row, (tokens, _) in enumerate(batch):
        for column, token in enumerate(tokens):
            padded[row, column] = token
            mask[row, column] = 1.0
    return padded, mask, torch.tensor([label for _, label in batch])


def collate_batch_fixed(batch):
    padded = pad_sequence([tokens for tokens, _ in batch], batch_first=True)
    return padded, (padded != 0).float(), torch.tensor([label for _, label in batch])


class Classifier(nn.Module):
    def __init__(self, vocab=2000, dim=64):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.encoder = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, dim))
        self.fc = nn.Linear(dim, 2)

    def forward(self, text, mask):
        states = self.encoder(self.embedding(text))
        pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.fc(pooled)


def main():
    args = arguments(__doc__, batch_size=16)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    loader = DataLoader(
        Sentences(),
        batch_size=args.batch_size,
        shuffle=True,
        collate_fn=collate_batch_fixed if args.fixed else collate_batch,
    )
    model = Classifier()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done = False
    while not done:
        for text, mask, label in loader:
            optimizer.zero_grad()
            predicted = model(text, mask)
            loss = criterion(predicted, label)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            done = log.step(loss)
            if done:
                break


if __name__ == "__main__":
    main()
