"""Streams continued texts with the continuous batching of transformers behind FastAPI, with a small random model."""

import argparse
import asyncio
import gc
import os
import time
import zlib

import torch
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

VOCABULARY, TOKENS = 512, 16


class Prompt(BaseModel):
    text: str


def small_model():
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=8192,
    )
    return LlamaForCausalLM(config).eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--cause", default="none")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    manager = small_model().init_continuous_batching(
        GenerationConfig(max_new_tokens=TOKENS, do_sample=False, eos_token_id=-1),
        ContinuousBatchingConfig(num_blocks=512, page_size=16, max_batch_tokens=2048),
    )
    # Else every full collection goes through all that the libraries made: 0.2 s, in which nobody gets a token.
    gc.freeze()
    chats = [[number] for number in range(1_000_000)] if args.cause == "collect" else []
    tidied = time.monotonic()
    app = FastAPI()

    async def stream(ids):
        nonlocal tidied
        answers = asyncio.Queue()
        name = f"{time.monotonic_ns()}"
        manager.register_result_handler(name, answers.put_nowait)
        manager.add_request(ids, request_id=name, max_new_tokens=TOKENS, streaming=True)
        sent, finished = 0, False
        while not finished:
            answer = await answers.get()
            finished = answer.is_finished()
            tokens = answer.generated_tokens
            yield " ".join(map(str, tokens[sent:])).encode() + b"\n"
            sent = len(tokens)
        if chats and time.monotonic() - tidied > 3.0:
            tidied = time.monotonic()
            gc.collect()

    @app.post("/chat")
    async def chat(prompt: Prompt):
        ids = [zlib.crc32(word.encode()) % VOCABULARY for word in prompt.text.split()]
        return StreamingResponse(stream(ids), media_type="text/plain")

    manager.start()
    print(f"model in process {os.getpid()}", flush=True)
    uvicorn.run(app, port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
