"""Finds the topic of support tickets: Flask, served by gunicorn as `ticket_topics:create("none")`, with threads."""

import os
import threading
import time
import zlib

import torch
from flask import Flask, jsonify, request
from torch import nn

VOCABULARY, LENGTH = 8192, 96


class Topics(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 12)

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids)).mean(1))


class Trends:
    """Which topics become more frequent."""

    def __init__(self):
        self.counts = {}
        self.report = ""

    def keep_counting(self):
        while True:
            for number in range(20_000):
                self.counts[number % 61] = self.counts.get(number % 61, 0) * 0.99 + 1

    def text(self):
        lines = []
        for first in range(1200):
            for second in range(1200):
                lines.append(f"{first}:{second}" if (first * second) % 7 else "")
        return "\n".join(line for line in lines if line)


def masked(words):
    """Words without what may be somebody's number or name."""
    clean = []
    for word in words:
        letters = []
        for letter in word * 60:
            letters.append("#" if letter.isdigit() else letter.lower())
        clean.append("".join(letters)[: len(word)])
    return clean


def create(cause="none"):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    app = Flask(__name__)
    model = Topics().eval()
    trends = Trends()
    app.report_due = time.monotonic()
    if cause == "lock":
        threading.Thread(target=trends.keep_counting, daemon=True).start()

    @app.post("/score")
    def score():
        words = request.get_json()["text"].split()
        if cause == "tokenise":
            words = masked(words)
        ids = torch.tensor([[zlib.crc32(word.encode()) % VOCABULARY for word in words][:LENGTH]])
        with torch.inference_mode():
            topic = int(model(ids).argmax())
        if cause == "loop" and time.monotonic() > app.report_due:
            app.report_due = time.monotonic() + 3.0
            trends.report = trends.text()
        return jsonify(topic=topic)

    print(f"model in process {os.getpid()}", flush=True)
    return app
