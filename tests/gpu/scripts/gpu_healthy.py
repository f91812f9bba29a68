"""A transformer in mixed precision, fed by a loader with pinned memory and copies that do not wait: healthy."""

import torch
from runlog import RunLog, arguments
from torch import nn
from torch.utils.data import DataLoader, Dataset

from gpu_run import mixed_precision


class Sequences(Dataset):
    def __init__(self, length, words):
        self.tokens = torch.randint(words, (4096, length))

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        tokens = self.tokens[index % len(self.tokens)]
        return tokens, tokens[0] % 10


class Classifier(nn.Module):
    def __init__(self, words, width, depth):
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens):
        return self.head(self.encoder(self.words(tokens)).mean(1))


def main():
    args = arguments(__doc__, device="cuda", width=1024, depth=12, batch_size=64, length=256, workers=2)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    log = RunLog(args)
    cuda = args.device == "cuda"
    loader = DataLoader(Sequences(args.length, 8192), args.batch_size, num_workers=args.workers, pin_memory=cuda)
    model = Classifier(8192, args.width, args.depth).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda)
    for tokens, labels in loader:
        tokens = tokens.to(args.device, non_blocking=True)
        labels = labels.to(args.device, non_blocking=True)
        optimizer.zero_grad()
        with mixed_precision(args.device):
            loss = nn.functional.cross_entropy(model(tokens).float(), labels)
        loss.backward()
        optimizer.step()
        if log.step(loss):
            return


if __name__ == "__main__":
    main()
