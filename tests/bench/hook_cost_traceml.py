"""The part of hook_cost.py that TraceML's launcher runs: plain rounds, then as many under TraceML, whose patches stay.

The environment says what to do: HOOK_COST is JSON of model, rounds, seconds and the file for the figures.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import traceml_ai
from hook_cost import step_us
from hook_cost_models import MODELS, steps_of


def traced(run, model):
    """The same run, each step within TraceML's context."""
    while True:
        with traceml_ai.trace_step(model):
            next(run)
        yield


def main() -> None:
    asked = json.loads(os.environ["HOOK_COST"])
    torch.set_num_threads(1)
    model = MODELS[asked["model"]][0]()
    run = steps_of(model)
    step_us(run, 2.0)
    plain = [step_us(run, asked["seconds"]) for _ in range(asked["rounds"])]
    traceml_ai.init(mode="auto", on_missing_aggregator="raise")
    run = traced(run, model)
    step_us(run, 1.0)
    figures = {"plain": plain, "traceml": [step_us(run, asked["seconds"]) for _ in range(asked["rounds"])]}
    Path(asked["file"]).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
