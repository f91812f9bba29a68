"""Fine-tune a small BERT with the Trainer of transformers; titles are cut into pieces as they are used."""

import random
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from runlog import RunLog, arguments


class Titles(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        rnd = random.Random(seed)
        self.titles = ["".join(rnd.choices("abcdefghij klmnop", k=rnd.randint(450, 650))) for _ in range(count)]

    def __len__(self):
        return len(self.titles)

    def __getitem__(self, i):
        return {"title": self.titles[i], "label": i % 2}


class CharacterCollator:
    """Pieces of three characters, hashed; longer titles are cut."""

    def __init__(self, length, cache):
        self.length = length
        self.cache = {} if cache else None

    def pieces(self, title):
        ids = []
        for start in range(len(title) - 2):
            code = 0
            for character in title[start : start + 3]:
                code = code * 97 + ord(character)
            ids.append(code % 499 + 1)
        return ids[: self.length] + [0] * (self.length - len(ids))

    def __call__(self, rows):
        if self.cache is None:
            ids = [self.pieces(row["title"]) for row in rows]
        else:
            for row in rows:
                if row["title"] not in self.cache:
                    self.cache[row["title"]] = self.pieces(row["title"])
            ids = [self.cache[row["title"]] for row in rows]
        input_ids = torch.tensor(ids)
        return {
            "input_ids": input_ids,
            "attention_mask": input_ids.ne(0).long(),
            "labels": torch.tensor([row["label"] for row in rows]),
        }


class Tell(TrainerCallback):
    def __init__(self, log):
        self.log = log

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = self.log.step(torch.tensor(0.0))


def main():
    args = arguments(__doc__, batch_size=32, length=24, dim=48)
    torch.set_num_threads(1)
    log = RunLog(args)
    config = BertConfig(
        vocab_size=500,
        hidden_size=args.dim,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * args.dim,
        max_position_embeddings=args.length,
    )
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            BertForSequenceClassification(config),
            TrainingArguments(
                folder,
                per_device_train_batch_size=args.batch_size,
                num_train_epochs=10_000,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                use_cpu=True,
                remove_unused_columns=False,
                disable_tqdm=True,
                seed=args.seed,
            ),
            train_dataset=Titles(3200, args.seed),
            data_collator=CharacterCollator(args.length, cache=args.fixed),
            callbacks=[Tell(log)],
        ).train()


if __name__ == "__main__":
    main()
