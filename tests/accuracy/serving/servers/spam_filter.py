"""Finds spam over HTTP: FastAPI and uvicorn with a handler without async, which runs in a pool of threads."""

import argparse
import gc
import os
import time
import zlib

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from torch import nn

VOCABULARY, LENGTH = 8192, 96


class Mail(BaseModel):
    text: str


class Spam(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.mix = nn.GRU(width, 2 * width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(4 * width, 1)

    def forward(self, ids):
        states, _ = self.mix(self.embed(ids))
        return self.head(states.amax(1)).sigmoid()


def distance(a, b):
    """How many letters differ, as in the dictionary of Levenshtein."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (letter != other))
    return row[-1]


KNOWN = [
    *("winner", "lottery", "discount", "pharmacy", "invoice", "account", "password", "refund", "crypto", "casino"),
    *("prize", "loan", "urgent", "offer", "investment", "delivery", "parcel", "customs", "verify"),
]


def corrected(text):
    return [min((distance(word, known), known) for known in KNOWN)[1] for word in text.split()[:60]]


class Mailboxes:
    """What is known of each sender. Memory is tidied up now and then."""

    def __init__(self, cause):
        self.senders = [[number] for number in range(1_000_000)] if cause == "collect" else []
        self.tidied = time.monotonic()

    def tidy(self):
        if self.senders and time.monotonic() - self.tidied > 3.0:
            self.tidied = time.monotonic()
            gc.collect()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--cause", default="none")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Spam().eval()
    mailboxes = Mailboxes(args.cause)
    app = FastAPI()

    @app.post("/score")
    def score_mail(mail: Mail):
        words = corrected(mail.text) if args.cause == "tokenise" else mail.text.split()
        ids = torch.tensor([[zlib.crc32(word.encode()) % VOCABULARY for word in words][:LENGTH]])
        with torch.inference_mode():
            answer = model(ids)
        mailboxes.tidy()
        said = {"spam": round(float(answer[0, 0]), 5)}
        if args.cause == "explain":
            said["words"] = model.embed(ids)[0].tolist()
        return said

    print(f"model in process {os.getpid()}", flush=True)
    uvicorn.run(app, port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
