"""Recordings of the programs of tests/accuracy/libraries: no step is seen in them, or no module of torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from aitop.engine.core import Engine
from aitop.sources.replay import read_recording

RECORDINGS = Path(__file__).resolve().parent / "libraries" / "recordings"


def judged(name):
    """The verdicts of every tick."""
    header, events = read_recording(RECORDINGS / f"{name}.jsonl.gz")
    engine = Engine(header.target)
    return [snapshot.diagnosis.verdicts for event in events if (snapshot := engine.handle(event)) is not None]


@pytest.mark.parametrize(
    ("name", "text"),
    [("jax_update", "value.block_until_ready()"), ("torch_functions", None)],
)
def test_what_computes_is_never_a_loss(name, text):
    """XLA computes in threads of its own while Python waits for a lock; a model may be functions alone."""
    ticks = judged(name)
    assert not [verdict.id for verdicts in ticks for verdict in verdicts if verdict.severity != "info"]
    first = ticks[-1][0]
    assert (first.id, first.speedup) == ("compute-bound", None)
    assert text is None or first.where[0].text == text


def test_a_function_that_is_compiled_for_every_shape_is_named_with_its_call():
    first = judged("jax_shapes")[-1][0]
    assert (first.id, first.severity) == ("recompile", "warning")
    assert first.where[0].text == "table = update(table, tokens, jnp.ones(length))"
