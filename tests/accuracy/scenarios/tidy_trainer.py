"""Training in a class, with callbacks. The data set is a list of dictionaries, as it was read from JSON."""

import gc

import torch
from torch import nn

from runlog import RunLog, arguments


class Callback:
    def on_step_end(self, trainer):
        pass


class CleanUp(Callback):
    """Keep the memory of the run small."""

    def __init__(self, every):
        self.every = every

    def on_step_end(self, trainer):
        if trainer.step % self.every == 0:
            gc.collect()


class Trainer:
    def __init__(self, model, optimizer, callbacks):
        self.model, self.optimizer, self.callbacks = model, optimizer, callbacks
        self.step = 0

    def training_step(self, x, y):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def fit(self, batches, log):
        for x, y in batches:
            loss = self.training_step(x, y)
            self.step += 1
            for callback in self.callbacks:
                callback.on_step_end(self)
            if log.step(loss):
                return


def make_records(count):
    return [{"id": i, "tags": [f"t{i % 7}"], "meta": {"source": i % 3, "split": "train"}} for i in range(count)]


def batches(records, size):
    while True:
        pick = torch.randint(len(records), (size,))
        sources = torch.tensor([records[i]["meta"]["source"] for i in pick.tolist()])
        yield torch.randn(size, 64) + sources[:, None], sources


if __name__ == "__main__":
    args = arguments(__doc__, batch_size=128, records=20_000, every=8, width=640)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    records = make_records(args.records)
    model = nn.Sequential(
        nn.Linear(64, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, 3)
    )
    trainer = Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.01), [CleanUp(100 * args.every if args.fixed else args.every)]
    )
    trainer.fit(batches(records, args.batch_size), log)
