"""Tokens, operations and the share of a device's peak, from step records and the hook's facts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aitop.engine.snapshot.steps import compute_dtype, operations, steps_view, with_throughput
from aitop.model.gpu import GpuDevice, GpuProcess, GpuSample
from aitop.model.peaks import peak
from aitop.model.steps import HookFacts, StepRecord

PID = 7


def facts(**values) -> HookFacts:
    return HookFacts(way="attach", python="3.12", torch="2.9", cuda=True, **values)


def records(count=10, seconds=0.1, **values):
    values = {"kind": "train", "backwards": 1} | values
    return [StepRecord(index=i, end=i * seconds, seconds=seconds, **values) for i in range(count)]


def view(made):
    return steps_view(PID, made, len(made))


def gpus(*names, pid=PID, mine=False) -> GpuSample:
    processes = (GpuProcess(pid=pid, mine=True),)
    devices = [GpuDevice(index=i, name=name, processes=processes, mine=mine) for i, name in enumerate(names)]
    return GpuSample(time=1.0, devices=tuple(devices))


def test_tokens_per_second():
    assert view(records(tokens=50)).tokens_per_second == pytest.approx(500)
    assert view(records()).tokens_per_second is None


def test_operations_of_an_accumulating_step():
    known = facts(flops_per_backward=1e9, flops_basis="shapes")
    made = operations(known, records(backwards=4))
    assert made.flops == 4e10
    _, measured = with_throughput(view(records(backwards=4)), known, None)
    assert measured.flops_basis == "shapes"


def test_operations_by_tokens_only_where_the_graph_says_nothing():
    known = facts(parameters=1000)
    made = operations(known, records(tokens=10))
    assert made == (6 * 1000 * 100, "6 × parameters × tokens")
    made = operations(known, records(tokens=10, kind="generate", backwards=0))
    assert made == (2 * 1000 * 100, "2 × parameters × tokens")
    assert operations(known, records()) is None
    assert operations(facts(), records(tokens=10)) is None
    assert operations(known, []) is None


def test_share_of_the_peak():
    # A step of 0.1 s with 49.47e12 operations is half of what an H200 does in bfloat16.
    known = facts(flops_per_backward=49.47e12, flops_dtype="bfloat16")
    steps, _ = with_throughput(view(records()), known, gpus("NVIDIA H200"))
    assert steps.flops_per_second == pytest.approx(494.7e12)
    assert steps.mfu == pytest.approx(0.5)
    # More devices of the same kind are not more peak.
    assert with_throughput(view(records()), known, gpus("NVIDIA H200", "NVIDIA H200"))[0].mfu == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("gpu", "changes"),
    [
        (None, {}),
        (gpus("NVIDIA Quadro 9"), {}),
        (gpus("NVIDIA H200", "NVIDIA A100-SXM4-80GB"), {}),
        (gpus("NVIDIA H200", pid=8), {}),
        (gpus("NVIDIA H200"), {"cuda": False, "flops_dtype": "float32"}),
        (gpus("NVIDIA H200"), {"flops_dtype": "float8_e4m3fn"}),
    ],
    ids=["no device", "an unknown one", "two kinds", "somebody else's", "on the CPU", "an unknown type"],
)
def test_no_share_without_a_known_peak(gpu, changes):
    known = replace(facts(flops_per_backward=1e12, flops_dtype="bfloat16"), **changes)
    steps, _ = with_throughput(view(records()), known, gpu)
    assert steps.mfu is None and steps.flops_per_second is not None


def test_dtype_of_the_products():
    assert compute_dtype(facts(flops_dtype="tf32", autocast="float16")) == "tf32"
    assert compute_dtype(facts(autocast="bfloat16", parameter_dtypes=("float32",))) == "bfloat16"
    assert compute_dtype(facts(parameter_dtypes=("float32",), matmul_precision="high")) == "tf32"
    assert compute_dtype(facts(parameter_dtypes=("float32",), matmul_precision="highest")) == "float32"
    assert compute_dtype(facts()) is None


@pytest.mark.parametrize(
    ("name", "dtype", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA H200", "float32", 67),
        ("NVIDIA H200 NVL", "bfloat16", 835.5),
        ("Tesla V100-SXM2-32GB", "tf32", 15.7),
        ("Tesla V100-SXM2-32GB", "bfloat16", None),
        ("Tesla T4", "float16", 65),
        ("NVIDIA L4", "bfloat16", 121),
        ("NVIDIA L40S", "bfloat16", 362),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "float32", 44.1),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "float32", None),
        ("NVIDIA A100", "int4", None),
        ("AMD Instinct MI300X", "bfloat16", None),
    ],
)
def test_peaks(name, dtype, tera):
    rate = peak(name, dtype)
    assert rate == (None if tera is None else pytest.approx(tera * 1e12))
