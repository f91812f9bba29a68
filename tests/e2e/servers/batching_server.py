"""transformers' continuous batching behind FastAPI, with a tiny random model: `batching_server.py PORT BLOCKS`."""

import asyncio
import sys
import time

import torch
import uvicorn
from fastapi import FastAPI
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)
TOKENS = 12
app = FastAPI()
config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=256,
)  # fmt: skip
model = LlamaForCausalLM(config).eval()
manager = model.init_continuous_batching(
    GenerationConfig(max_new_tokens=TOKENS, do_sample=False, eos_token_id=-1),
    # The default takes most of the machine's memory.
    ContinuousBatchingConfig(num_blocks=int(sys.argv[2]), page_size=16, max_batch_tokens=64),
)


@app.get("/generate")
async def generate():
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    name = manager.add_request([1, 2, 3, 4, 5], max_new_tokens=TOKENS)
    manager.register_result_handler(name, lambda result: loop.call_soon_threadsafe(done.set))
    await done.wait()
    return {"tokens": TOKENS, "ready": time.monotonic()}


@app.get("/health")
async def health():
    return {}


if __name__ == "__main__":
    manager.start()
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
