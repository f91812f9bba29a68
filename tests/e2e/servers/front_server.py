"""A FastAPI server that has no torch before somebody asks it to /load a model: `front_server.py PORT`."""

import sys
import time

import uvicorn
from fastapi import FastAPI

app = FastAPI()
state = {"answer": lambda: None}


@app.get("/health")
def health():
    assert "torch" not in sys.modules
    return {}


@app.get("/ask")
def ask():
    began = time.monotonic()
    time.sleep(0.02)
    state["answer"]()
    return {"began": began, "ready": time.monotonic()}


@app.get("/load")
def load():
    import torch

    model = torch.nn.Linear(8, 8).eval()

    def answer():
        with torch.no_grad():
            model(torch.ones(1, 8))

    state["answer"] = answer
    return {}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
