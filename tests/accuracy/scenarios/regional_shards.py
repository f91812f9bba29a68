"""House prices by region. Each loader worker has the files of one region, in the format that the region delivers."""

import io
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from runlog import RunLog, arguments

COLUMNS = 64


def export(folder, region, as_text):
    rng = np.random.default_rng(region)
    table = rng.standard_normal((400, COLUMNS)).astype(np.float32)
    if as_text:
        rows = "\n".join(";".join(f"{value:.5f}".replace(".", ",") for value in row) for row in table)
        Path(folder, f"region-{region}.csv").write_text(rows)
    else:
        np.save(Path(folder, f"region-{region}.npy"), table)


def read_npy(path):
    for row in np.load(io.BytesIO(path.read_bytes())):
        yield torch.from_numpy(row)


def read_csv(path):
    """Numbers with a decimal comma."""
    for line in path.read_text().splitlines():
        numbers = []
        for field in line.split(";"):
            whole, _, fraction = field.partition(",")
            sign = -1.0 if whole.startswith("-") else 1.0
            numbers.append(sign * (abs(int(whole)) + int(fraction) / 10 ** len(fraction)))
        yield torch.tensor(numbers)


class Regions(IterableDataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).iterdir())

    def __iter__(self):
        worker = get_worker_info()
        path = self.paths[worker.id % len(self.paths)]
        while True:
            yield from read_csv(path) if path.suffix == ".csv" else read_npy(path)


def main():
    args = arguments(__doc__, workers=3, batch_size=128, hidden=128)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    with tempfile.TemporaryDirectory() as folder:
        for region in range(args.workers):
            export(folder, region, as_text=region == 0 and not args.fixed)
        loader = DataLoader(Regions(folder), batch_size=args.batch_size, num_workers=args.workers)
        model = nn.Sequential(
            nn.Linear(COLUMNS, args.hidden),
            nn.ELU(),
            nn.Linear(args.hidden, args.hidden),
            nn.ELU(),
            nn.Linear(args.hidden, 1),
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for x in loader:
            loss = (model(x) - x[:, :5].sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
