"""A costly callback in the loop of Lightning or of transformers' Trainer: FRAMEWORK and the name of the CALLBACK."""

import sys

import torch
from torch import nn
from torch.utils.data import Dataset

FRAMEWORK, CALLBACK = sys.argv[1:]


def net():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def sharpness(module):
    matrices = [weight.detach() for weight in module.parameters() if weight.ndim == 2]
    return max(torch.linalg.svdvals(matrix)[0].item() for matrix in matrices)


class Rows(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return {"x": torch.ones(256) * (index % 7), "labels": index % 10}


def lightning():
    import lightning.pytorch as pl

    class Regressor(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.net(batch["x"]), batch["labels"])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    class Watch(pl.Callback):
        def watch(self, trainer, module, *_):
            module.sharpness = sharpness(module)

    setattr(Watch, CALLBACK, Watch.watch)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(max_epochs=100000, accelerator="cpu", callbacks=[Watch()], **quiet)
    trainer.fit(Regressor(), torch.utils.data.DataLoader(Rows(), batch_size=64, shuffle=True))


def transformers():
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, labels):
            scores = self.net(x)
            return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

    class Watch(TrainerCallback):
        def watch(self, args, state, control, model=None, **_):
            model.sharpness = sharpness(model)

    setattr(Watch, CALLBACK, Watch.watch)
    arguments = TrainingArguments(
        per_device_train_batch_size=64, num_train_epochs=100000, save_strategy="no", report_to=[], use_cpu=True
    )
    Trainer(model=Classifier(), args=arguments, train_dataset=Rows(), callbacks=[Watch()]).train()


torch.set_num_threads(1)
{"lightning": lightning, "transformers": transformers}[FRAMEWORK]()
