"""Fine-tunes a small encoder on reviews that were cut into tokens beforehand, all to one length."""

import random

import torch
from torch import nn

from runlog import RunLog, arguments


class Reviews(torch.utils.data.Dataset):
    """Reviews of 12 to 48 tokens, in rows of `width` with a mask; without `width` as they are."""

    def __init__(self, count, width, seed):
        rnd = random.Random(seed)
        self.rows = [[rnd.randint(1, 499) for _ in range(rnd.randint(12, 48))] for _ in range(count)]
        self.width = width

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        tokens = self.rows[i]
        more = max(0, (self.width or 0) - len(tokens))
        mask = [1] * len(tokens) + [0] * more
        return torch.tensor(tokens + [0] * more), torch.tensor(mask), i % 2


def collate(samples):
    ids, masks, labels = zip(*samples)
    return {
        "input_ids": nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "attention_mask": nn.utils.rnn.pad_sequence(masks, batch_first=True),
        "labels": torch.tensor(labels),
    }


class Encoder(nn.Module):
    def __init__(self, dim, longest):
        super().__init__()
        self.words, self.places = nn.Embedding(500, dim), nn.Embedding(longest, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 2)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        x = self.layers(x, src_key_padding_mask=attention_mask == 0)
        weights = attention_mask.unsqueeze(-1).float()
        return self.head((x * weights).sum(1) / weights.sum(1))


def main():
    args = arguments(__doc__, batch_size=16, width=160, dim=96)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    model = Encoder(args.dim, args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    reviews = Reviews(4096, None if args.fixed else args.width, args.seed)
    loader = torch.utils.data.DataLoader(reviews, batch_size=args.batch_size, shuffle=True, collate_fn=collate)
    while True:
        for batch in loader:
            labels = batch.pop("labels")
            loss = nn.functional.cross_entropy(model(**batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
