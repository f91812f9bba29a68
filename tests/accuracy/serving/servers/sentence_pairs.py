"""Compares a text with questions over HTTP: a coroutine collects batches, and the model runs in a thread."""

import argparse
import asyncio
import contextlib
import os
import zlib

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from torch import nn

VOCABULARY, LENGTH, MOST = 8192, 48, 16


class Question(BaseModel):
    text: str


class Matcher(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
        self.mix = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, ids):
        return self.head(self.mix(self.embed(ids)).mean(1)).squeeze(-1)


def encode(text):
    ids = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in text.split()][:LENGTH]
    return torch.tensor(ids + [0] * (LENGTH - len(ids)))


class Desk:
    """Collects what was asked within `patience` seconds, and answers it together."""

    def __init__(self, model, patience):
        self.model, self.patience = model, patience
        self.asked = asyncio.Queue()

    def match(self, questions):
        with torch.inference_mode():
            return self.model(torch.stack(questions)).sigmoid().tolist()

    async def serve(self):
        loop = asyncio.get_running_loop()
        while True:
            together = [await self.asked.get()]
            until = loop.time() + self.patience
            while len(together) < MOST:
                try:
                    together.append(await asyncio.wait_for(self.asked.get(), until - loop.time()))
                except asyncio.TimeoutError:
                    break
            answers = await loop.run_in_executor(None, self.match, [ids for ids, _ in together])
            for (_, reply), answer in zip(together, answers, strict=True):
                if not reply.done():
                    reply.set_result(answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--cause", default="none")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    desk = Desk(Matcher().eval(), patience=0.12 if args.cause == "window" else 0.002)

    @contextlib.asynccontextmanager
    async def serving(_app):
        task = asyncio.create_task(desk.serve())
        yield
        task.cancel()

    app = FastAPI(lifespan=serving)

    @app.post("/score")
    async def score(question: Question):
        reply = asyncio.get_running_loop().create_future()
        await desk.asked.put((encode(question.text), reply))
        return {"match": round(await reply, 5)}

    print(f"model in process {os.getpid()}", flush=True)
    uvicorn.run(app, port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
