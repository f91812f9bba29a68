"""Plain training loops in all the shapes that people write: `loops.py FOLDER KIND...`."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from diary import Diary, twice

BATCH = 4


class Rows(Dataset):
    def __init__(self, diary: Diary | None = None) -> None:
        self.diary = diary
        self.rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if self.diary is not None and index % BATCH == 0:
            self.diary.pause("data_wait")
        return self.rows[index], index % 3


class Pause(torch.autograd.Function):
    """Takes its time on the way back."""

    @staticmethod
    def forward(ctx, value, diary):
        ctx.diary = diary
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.diary.pause("backward")
        return grad, None


class Net(nn.Module):
    def __init__(self, diary: Diary, inputs: int = 8, outputs: int = 3) -> None:
        super().__init__()
        self.diary = diary
        self.layers = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, outputs))

    def forward(self, rows):
        self.diary.pause("forward")
        return Pause.apply(self.layers(rows), self.diary)


class Quick(nn.Module):
    """Nothing in it that torch.compile cannot take whole."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, rows):
        return self.layers(rows)


class Slow(torch.optim.AdamW):
    diary: Diary

    def step(self, closure=None):
        self.diary.pause("optimizer")
        return super().step(closure)


def optimizer_of(model, diary, kind=Slow):
    optimizer = kind(model.parameters(), lr=0.01)
    optimizer.diary = diary
    return optimizer


def batches(diary: Diary, **options):
    """Epoch after epoch in file order; the pause comes with the first row of a batch."""
    loader = DataLoader(Rows(diary), batch_size=BATCH, **options)
    while True:
        yield from loader


def loss_of(output, labels):
    return nn.functional.cross_entropy(output, labels)


def plain(diary: Diary) -> None:
    torch.manual_seed(0)
    model = Net(diary)
    optimizer = optimizer_of(model, diary)
    for rows, labels in batches(diary):
        optimizer.zero_grad()
        loss = loss_of(model(rows), labels)
        loss.backward()
        optimizer.step()
        diary.loss(loss)
        diary.step()
        if diary.over():
            return


def bound(diary: Diary) -> None:
    """Everything that the loop calls was saved before it."""
    torch.manual_seed(0)
    model = Net(diary)
    optimizer = optimizer_of(model, diary)
    forward, step, zero = model.forward, optimizer.step, optimizer.zero_grad
    for rows, labels in batches(diary):
        zero()
        loss = loss_of(forward(rows), labels)
        loss.backward()
        step()
        diary.loss(loss)
        diary.step()
        if diary.over():
            return


def accumulate(diary: Diary) -> None:
    torch.manual_seed(0)
    model = Net(diary)
    optimizer = optimizer_of(model, diary)
    for number, (rows, labels) in enumerate(batches(diary), 1):
        loss = loss_of(model(rows), labels) / 3
        loss.backward()
        diary.loss(loss)
        if number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
            diary.step()
            if diary.over():
                return


def amp(diary: Diary) -> None:
    torch.manual_seed(0)
    model = Net(diary)
    optimizer = optimizer_of(model, diary)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for rows, labels in batches(diary):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model(rows), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        diary.loss(loss)
        diary.step()
        if diary.over():
            return


def gan(diary: Diary) -> None:
    torch.manual_seed(0)
    generator, judge = Net(diary, inputs=4, outputs=8), Net(diary, outputs=1)
    making, judging = optimizer_of(generator, diary), optimizer_of(judge, diary)
    criterion = nn.BCEWithLogitsLoss()
    for rows, _ in batches(diary):
        judging.zero_grad()
        made = generator(torch.randn(len(rows), 4))
        loss = criterion(judge(rows), torch.ones(len(rows), 1))
        loss = loss + criterion(judge(made.detach()), torch.zeros(len(rows), 1))
        loss.backward()
        judging.step()
        diary.loss(loss)
        making.zero_grad()
        loss = criterion(judge(made), torch.ones(len(rows), 1))
        loss.backward()
        making.step()
        diary.loss(loss)
        diary.step()
        if diary.over():
            return


def loaders(diary: Diary) -> None:
    """Two loaders of different make, one with workers, feed each step."""
    torch.manual_seed(0)
    model = Net(diary)
    optimizer = optimizer_of(model, diary)
    many = DataLoader(Rows(), batch_size=2 * BATCH, num_workers=1, prefetch_factor=3, persistent_workers=True)
    pairs = zip(batches(diary), itertools.chain.from_iterable(itertools.repeat(many)), strict=False)
    for (rows, labels), (other_rows, other_labels) in pairs:
        optimizer.zero_grad()
        output = model(torch.cat([rows, other_rows]))
        loss = loss_of(output, torch.cat([labels, other_labels]))
        loss.backward()
        optimizer.step()
        diary.loss(loss)
        diary.step()
        if diary.over():
            return


BACKEND = "aot_eager"


def compiled(diary: Diary, optimize: bool = False) -> None:
    """The model is compiled, and on demand the optimizer's step too."""
    torch.manual_seed(0)
    model = Quick()
    quick = torch.compile(model, backend=BACKEND)
    optimizer = optimizer_of(model, diary, torch.optim.AdamW)
    step = torch.compile(optimizer.step, backend=BACKEND) if optimize else optimizer.step
    for rows, labels in batches(diary):
        optimizer.zero_grad()
        loss = loss_of(quick(rows), labels)
        loss.backward()
        step()
        diary.loss(loss)
        diary.step()
        if diary.over():
            return


def compiled_optimizer(diary: Diary) -> None:
    compiled(diary, optimize=True)


def compiled_step(diary: Diary) -> None:
    """Forward, backward and optimizer in one compiled function."""
    torch.manual_seed(0)
    model = Quick()
    optimizer = optimizer_of(model, diary, torch.optim.AdamW)

    @torch.compile(backend=BACKEND)
    def train(rows, labels):
        optimizer.zero_grad()
        loss = loss_of(model(rows), labels)
        loss.backward()
        optimizer.step()
        return loss

    for rows, labels in batches(diary):
        diary.loss(train(rows, labels))
        diary.step()
        if diary.over():
            return


KINDS = {
    kind.__name__: kind
    for kind in (plain, bound, accumulate, amp, gan, loaders, compiled, compiled_optimizer, compiled_step)
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        twice(Path(sys.argv[1]), name, KINDS[name])
