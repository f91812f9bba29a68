"""A bag-of-words topic model on a stream of articles; every worker reads its own part of the files."""

import re
import tempfile
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from runlog import RunLog, arguments

BUCKETS = 2048
WORD = re.compile(r"[a-z]+")


def write_articles(folder, files, seed):
    g = torch.Generator().manual_seed(seed)
    words = ["".join(chr(97 + int(c)) for c in torch.randint(26, (6,), generator=g)) for _ in range(500)]
    for number in range(files):
        picks = torch.randint(500, (100, 150), generator=g).tolist()
        lines = (f"{n % 8}\t" + " ".join(words[i] for i in row) for n, row in enumerate(picks))
        Path(folder, f"part-{number:02}.tsv").write_text("\n".join(lines))


class Articles(IterableDataset):
    def __init__(self, folder, cached):
        self.files = sorted(Path(folder).glob("*.tsv"))
        self.cache = {} if cached else None

    def __iter__(self):
        info = get_worker_info()
        mine = self.files[info.id :: info.num_workers] if info else self.files
        for file in mine:
            for line in file.read_text().splitlines():
                topic, text = line.split("\t")
                yield self.vector(text), int(topic)

    def vector(self, text):
        if self.cache is not None and text in self.cache:
            return self.cache[text]
        counts = torch.zeros(BUCKETS)
        for word in WORD.findall(text):
            stem = word[:-1] if word.endswith("s") else word
            counts[zlib.crc32(stem.encode()) % BUCKETS] += 1.0
        if self.cache is not None:
            self.cache[text] = counts
        return counts


def main():
    args = arguments(__doc__, workers=2, batch_size=20, files=8)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    with tempfile.TemporaryDirectory() as folder:
        write_articles(folder, args.files, args.seed)
        loader = DataLoader(
            Articles(folder, cached=args.fixed),
            batch_size=args.batch_size,
            num_workers=args.workers,
            persistent_workers=True,
        )
        model = nn.Sequential(nn.Linear(BUCKETS, 128), nn.Dropout(0.2), nn.ReLU(), nn.Linear(128, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            for counts, topics in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(counts), topics)
                loss.backward()
                optimizer.step()
                if log.step(loss):
                    return


if __name__ == "__main__":
    main()
