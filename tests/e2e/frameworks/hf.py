"""Hugging Face `Trainer` and an Accelerate loop on a tiny random GPT-2: `hf.py FOLDER KIND...`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from diary import Diary, twice
from loops import Slow

BATCH, LENGTH, ACCUMULATE = 2, 16, 2


class Texts(Dataset):
    def __init__(self, diary: Diary) -> None:
        self.diary = diary
        self.ids = torch.randint(0, 64, (64, LENGTH), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        if index % BATCH == 0:
            self.diary.pause("data_wait")
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def model_of(diary: Diary) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2))
    model.transformer.register_forward_pre_hook(lambda module, args: diary.pause("forward"))
    model.transformer.ln_f.bias.register_hook(lambda grad: diary.pause("backward"))
    return model


def slow_optimizer(model, diary):
    optimizer = Slow(model.parameters(), lr=0.01)
    optimizer.diary = diary
    return optimizer


class Watching(TrainerCallback):
    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def on_optimizer_step(self, args, state, control, **more):
        self.diary.step()

    def on_step_end(self, args, state, control, **more):
        control.should_training_stop = self.diary.over()
        return control


class Telling(Trainer):
    diary: Diary

    def training_step(self, *args, **more):
        loss = super().training_step(*args, **more)
        self.diary.loss(loss)
        return loss


def trainer(diary: Diary) -> None:
    model = model_of(diary)
    arguments = TrainingArguments(
        output_dir=str(diary.stop.parent / "out"),
        max_steps=100_000,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        lr_scheduler_type="constant",
        use_cpu=True,
        save_strategy="no",
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
        train_sampling_strategy="sequential",
    )
    run = Telling(
        model=model,
        args=arguments,
        train_dataset=Texts(diary),
        optimizers=(slow_optimizer(model, diary), None),
        callbacks=[Watching(diary)],
    )
    run.diary = diary
    run.train()


def accelerated(diary: Diary) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    model = model_of(diary)
    loader = DataLoader(Texts(diary), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, slow_optimizer(model, diary), loader)
    while True:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            diary.loss(loss)
            if accelerator.sync_gradients:
                diary.step()
                if diary.over():
                    return


KINDS = {"trainer": trainer, "accelerated": accelerated}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        twice(Path(sys.argv[1]), name, KINDS[name])
