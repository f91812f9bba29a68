"""Lightning's `Trainer` on a small network: `pl.py FOLDER KIND...`."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader

from diary import Diary, twice
from loops import BATCH, Net, Rows, Slow, loss_of


class Lit(lightning.LightningModule):
    def __init__(self, diary: Diary) -> None:
        super().__init__()
        self.net = Net(diary)
        # Not a submodule, nor a hyperparameter.
        self.diary = diary

    def training_step(self, batch, number):
        rows, labels = batch
        loss = loss_of(self.net(rows), labels)
        self.diary.loss(loss)
        return loss

    def validation_step(self, batch, number):
        rows, labels = batch
        self.log("val", loss_of(self.net(rows), labels))

    def configure_optimizers(self):
        optimizer = Slow(self.parameters(), lr=0.01)
        optimizer.diary = self.diary
        return optimizer

    def optimizer_step(self, *args, **more):
        super().optimizer_step(*args, **more)
        self.diary.step()

    def on_train_batch_end(self, outputs, batch, number):
        if self.diary.over():
            self.trainer.should_stop = True


class Manual(Lit):
    """Two optimizers, stepped by hand."""

    def __init__(self, diary: Diary) -> None:
        super().__init__(diary)
        self.other = Net(diary)
        self.automatic_optimization = False

    def training_step(self, batch, number):
        rows, labels = batch
        for net, optimizer in zip((self.net, self.other), self.optimizers(), strict=True):
            optimizer.zero_grad()
            loss = loss_of(net(rows), labels)
            self.manual_backward(loss)
            optimizer.step()
            self.diary.loss(loss)
        self.diary.step()

    def configure_optimizers(self):
        made = [Slow(net.parameters(), lr=0.01) for net in (self.net, self.other)]
        for optimizer in made:
            optimizer.diary = self.diary
        return made

    def optimizer_step(self, *args, **more):
        lightning.LightningModule.optimizer_step(self, *args, **more)


def fit(diary: Diary, module, **options) -> None:
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )
    trainer.fit(module(diary), DataLoader(Rows(diary), batch_size=BATCH))


def automatic(diary: Diary) -> None:
    fit(diary, Lit)


def accumulated(diary: Diary) -> None:
    fit(diary, Lit, accumulate_grad_batches=2, precision="bf16-mixed")


def manual(diary: Diary) -> None:
    fit(diary, Manual)


KINDS = {"automatic": automatic, "accumulated": accumulated, "manual": manual}

if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for name in sys.argv[2:]:
        twice(Path(sys.argv[1]), name, KINDS[name])
