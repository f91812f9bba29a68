"""precision: numbers wider than the model needs."""

import pytest
from judgements import fired, level, unjudged
from msgspec.structs import replace
from snapshot_builder import facts, line, on_gpu, snapshot, steps

from aitop.diagnosis.causes import precision, underbatched
from aitop.model.gpu import GpuDevice
from aitop.model.snapshot import Phases

FLOAT32 = {"cuda": True, "parameter_dtypes": ("float32",), "matmul_precision": "highest"}


COMPUTES = {"seconds": 0.1, "forward": 0.04, "backward": 0.05, "optimizer": 0.005}


DOUBLE = {"parameter_dtypes": ("float64",), "root": "Net"}


def test_float64_by_accident_on_the_cpu():
    verdict = fired(precision.judge(snapshot(steps(**COMPUTES), facts=facts(**DOUBLE))))
    assert (verdict.id, verdict.severity) == ("precision", "critical")
    assert verdict.speedup == pytest.approx(1.91, abs=0.03)
    assert "parameters of Net are float64" in verdict.evidence and "model.float()" in verdict.fixes[0].text
    mixed = facts(parameter_dtypes=("float32", "float64"))
    assert fired(precision.judge(snapshot(steps(**COMPUTES), facts=mixed))).confidence <= 0.5, "only a few"
    waiting = steps(seconds=0.1, data_wait=0.09, forward=0.005, backward=0.004)
    assert level(precision.judge(snapshot(waiting, facts=facts(**DOUBLE)))) < precision.judge.leave


def test_calling_operations_takes_as_long_in_float32():
    """Who holds the interpreter's lock calls operations, and goes back through as many."""

    def gain(held, ops=9000):
        parts = (("python", held), ("native", 1.0 - held))
        lines = [line("forward", 0.4 * part, phase="forward", activity=does) for does, part in parts if part]
        return fired(precision.judge(snapshot(steps(**COMPUTES), facts=facts(**DOUBLE, ops=ops), lines=lines))).speedup

    assert gain(0.0) == pytest.approx(1.91, abs=0.03), "many operations that one native call makes"
    assert gain(0.0) > gain(0.1) > gain(0.2) > gain(0.4) > 1.0, "the more of it is calling, the less is gained"
    assert gain(0.4) < 1.2, "tiny operations in a loop"
    assert gain(0.4, ops=10) == pytest.approx(1.9, abs=0.03), "few operations cannot take long to call"


def test_types_and_batches_are_not_known_from_outside():
    shares = Phases(forward=0.9, outside=0.1)
    assert "only from inside" in unjudged(precision.judge(snapshot(phases=shares)))
    seen = snapshot(phases=shares, kind="inference")
    assert unjudged(underbatched.judge(seen)).startswith("how many samples a step takes is known only from inside")


def computing(*, mfu=0.6, told=None, name="NVIDIA H200", **figures):
    """Steps that compute in float32 on a GPU."""
    told = told or facts(**FLOAT32)
    device = GpuDevice(index=0, mine=True, name=name)
    seen = on_gpu(steps(**COMPUTES), device=device, facts=told, **figures)
    return replace(seen, steps=replace(seen.steps, mfu=mfu))


def test_float32_products_beside_idle_tensor_cores():
    verdict = fired(precision.judge(computing(busy=0.98, tensor=0.01)))
    assert verdict.share == pytest.approx(0.75 * 0.75, abs=0.01) and verdict.severity == "critical"
    assert 'set_float32_matmul_precision("high")' in verdict.fixes[0].text
    assert verdict.confidence <= 0.6


@pytest.mark.parametrize(
    ("name", "least", "speedup"),
    [
        ("NVIDIA A40", "set_float32_matmul_precision", 1.6),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 1.6),
        ("Tesla T4", "float16", 2.29),
        ("NVIDIA RTX PRO 9999", "set_float32_matmul_precision", 1.6),
    ],
)
def test_how_much_faster_products_get_is_the_cards(name, least, speedup):
    verdict = fired(precision.judge(computing(busy=0.98, tensor=0.01, name=name)))
    assert least in verdict.fixes[0].text and verdict.fixes[0].speedup == pytest.approx(speedup, abs=0.01)
    assert verdict.speedup == pytest.approx(speedup, abs=0.01)


def by_counters(**counters):
    """A run of which only the device tells something: whatever library it computes with."""
    device = GpuDevice(index=0, mine=True, name="NVIDIA H100 80GB HBM3")
    return on_gpu(phases=Phases(forward=0.9), device=device, facts=None, busy=1.0, **counters)


def test_without_the_hook_the_units_at_work_tell_it():
    verdict = fired(precision.judge(by_counters(fp32=0.74, tensor=0.0)))
    assert verdict.share == pytest.approx(0.69, abs=0.01) and verdict.confidence <= 0.6
    assert "float32 units at work 74 % of the time" in verdict.evidence


def test_float32_of_what_only_moves_memory_is_no_fault():
    # As normalisations and activations on an H100 had it.
    assert level(precision.judge(by_counters(fp32=0.094, tensor=0.005))) < precision.judge.leave
    assert "only from inside" in unjudged(precision.judge(by_counters(fp32=0.74, tensor=0.3)))


@pytest.mark.parametrize(
    "figures",
    [
        {"busy": 0.98, "tensor": 0.4},
        {"busy": 0.3},
        {"busy": 0.98, "name": "Tesla P100-PCIE-16GB"},
        {"busy": 0.98, "told": facts(**{**FLOAT32, "matmul_precision": "high"})},
        {
            "busy": 1.0,
            "told": facts(**FLOAT32, autocast="bfloat16"),
        },
    ],
    ids=["tensor cores busy", "idle device", "no tensor cores", "tf32", "autocast"],
)
def test_float32_that_is_no_fault(figures):
    assert precision.judge(computing(**figures)) is None


def test_how_much_is_products_must_be_known():
    assert "not measured" in unjudged(precision.judge(computing(busy=0.98, tensor=0.0, mfu=None)))
    assert "whether the GPU is the limit" in unjudged(precision.judge(computing()))
