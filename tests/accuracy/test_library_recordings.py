"""Recordings of the programs of tests/accuracy/libraries: no step, no module of torch, a framework, a pool."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import replayed

RECORDINGS = Path(__file__).resolve().parent / "libraries" / "recordings"


def judged(name):
    """The verdicts of every tick."""
    return [snapshot.diagnosis.verdicts for snapshot in replayed(RECORDINGS / f"{name}.jsonl.gz")]


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


def test_operations_that_are_called_one_by_one_belong_in_a_compiled_function():
    """The gain was measured: 4.9 times as many steps with the whole step compiled."""
    first = judged("jax_eager")[-1][0]
    assert (first.id, first.severity) == ("host-bound", "warning")
    assert first.where[0].function == "step.<locals>.<lambda>" and "jax.jit" in first.fixes[0].text
    low, high = first.speedup_range
    assert low < 4.9 < high


@pytest.mark.parametrize(
    "name",
    [
        "lightning_on_train_batch_start.t3",
        "lightning_on_after_backward.t3",
        "lightning_on_before_optimizer_step.t2",
        "lightning_on_train_batch_end.t2",
        "transformers_on_pre_optimizer_step.t2",
        "transformers_on_step_end.t3",
    ],
)
def test_a_callback_in_the_loop_of_a_framework_is_the_host_s_wherever_the_framework_calls_it(name):
    """It makes no input, and no part of the update: Lightning calls it in the closure of the optimizer's step."""
    first = judged(name)[-1][0]
    assert (first.id, first.where[0].function) == ("host-bound", "sharpness.<locals>.<genexpr>")
    assert 0.8 < first.share < 0.95


@pytest.mark.parametrize("tier", ["t2", "t3"])
def test_a_pool_whose_jobs_are_pickled_for_longer_than_they_take_is_held_up_by_handing_over(tier):
    """Its processes run while they read the jobs, which the library calls a wait; the main thread waits in `map`."""
    first = judged(f"pool_jobs.{tier}")[-1][0]
    assert (first.id, first.subtype) == ("input-bound", "workers")
    assert first.where[0].text.startswith("totals = pool.map(") and "of the time" in first.title
    assert first.fixes[0].text.startswith("hand over less") and first.speedup > 2.0
