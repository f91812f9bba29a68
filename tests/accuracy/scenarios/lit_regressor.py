"""A LightningModule; the validation metric decides when to stop, so it is looked at often."""

import logging

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runlog import RunLog, arguments


class Regressor(L.LightningModule):
    def __init__(self, width, log_steps):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(40, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )
        self.steps = log_steps

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.steps.step(outputs["loss"].detach()):
            self.trainer.should_stop = True

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.l1_loss(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def data(rows, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 40, generator=g)
    return TensorDataset(x, x[:, :4].prod(1, keepdim=True))


def main():
    args = arguments(__doc__, batch_size=128, width=640, validate_every=8)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    L.seed_everything(args.seed)
    torch.set_num_threads(1)
    trainer = L.Trainer(
        max_epochs=-1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        val_check_interval=400 if args.fixed else args.validate_every,
    )  # fmt: skip
    trainer.fit(
        Regressor(args.width, RunLog(args)),
        DataLoader(data(51_200, 1), args.batch_size, shuffle=True),
        DataLoader(data(2560, 2), 256),
    )


if __name__ == "__main__":
    main()
