"""Scores reviews over HTTP with a small transformer: FastAPI and uvicorn, in an async handler."""

import argparse
import gc
import os
import threading
import time
import zlib

import torch
import torch._dynamo
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from torch import nn

VOCABULARY, LENGTH = 8192, 96
REFRESH_EVERY = 3.0  # seconds


class Review(BaseModel):
    text: str


class Classifier(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids)).mean(1)).softmax(1)


class Pieces:
    """A text cut into the longest known pieces."""

    def __init__(self):
        letters = "etaoinshrdlu"
        parts = [*letters, *(a + b for a in letters for b in letters)]
        self.ids = {part: number for number, part in enumerate(parts, 1)}

    def __call__(self, text):
        ids, start = [], 0
        while start < len(text):
            end = min(len(text), start + 64)
            while text[start:end] not in self.ids and end > start + 1:
                end -= 1
            ids.append(self.ids.get(text[start:end], 0))
            start = end
        return ids


def hashed(text):
    return [zlib.crc32(word.encode()) % VOCABULARY for word in text.split()]


class Popularity:
    """What has been asked for most, counted again and again by a thread of its own."""

    def __init__(self):
        self.seen = list(range(4000))
        self.top = []
        threading.Thread(target=self.count, daemon=True).start()

    def count(self):
        while True:
            weights = {}
            for age, item in enumerate(self.seen):
                weights[item % 97] = weights.get(item % 97, 0.0) + 1.0 / (1 + age)
            self.top = sorted(weights, key=weights.get)[:10]


class Refresher:
    """Does in the first request after each few seconds what somebody wanted done in the background."""

    def __init__(self, cause):
        self.cause = cause
        self.due = time.monotonic() + REFRESH_EVERY
        self.sessions = [[number] for number in range(1_000_000)] if cause == "collect" else []

    def __call__(self):
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + REFRESH_EVERY
        if self.cause == "collect":
            gc.collect()
        elif self.cause == "sleep":
            self.token = fetch_token()
        elif self.cause == "loop":
            self.table = similar_words(400)


def fetch_token():
    """Asks the identity service for a new token."""
    time.sleep(0.4)
    return os.urandom(8).hex()


def similar_words(count):
    table = {}
    for a in range(count):
        for b in range(count):
            table[a, b] = sum(x == y for x, y in zip(str(a * 7919), str(b * 7919), strict=False))
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--cause", default="none")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Classifier().eval()
    tokenize = Pieces() if args.cause == "tokenise" else hashed
    score = model
    if args.cause == "compile":
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
        score = torch.compile(model, backend="aot_eager", dynamic=False)
    if args.cause == "lock":
        Popularity()
    refresh = Refresher(args.cause)
    app = FastAPI()

    @app.post("/score")
    async def score_review(review: Review):
        ids = torch.tensor([tokenize(review.text)[:LENGTH]])
        with torch.inference_mode():
            answer = score(ids)
        refresh()
        return {"positive": round(float(answer[0, 1]), 5)}

    print(f"model in process {os.getpid()}", flush=True)
    uvicorn.run(app, port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
