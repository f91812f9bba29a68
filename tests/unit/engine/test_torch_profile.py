"""The figures of a trace of torch.profiler, from traces made by hand in its format."""

from __future__ import annotations

import json
import time

import pytest

from aitop.engine.torch_profile import TraceError, analyse
from aitop.model.profile import Holds
from aitop.outputs.profile import profile_text

HOLDS = Holds(start=0.001, stop=0.02, save=0.003)


def event(name: str, cat: str, ts: float, dur: float, tid: int = 1, **args: object) -> dict[str, object]:
    renamed = {name.replace("_", " "): value for name, value in args.items()}
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": 1000.0 + ts, "dur": dur, "args": renamed}


def trace(*events: dict[str, object]) -> bytes:
    return json.dumps({"schemaVersion": 1, "traceEvents": list(events)}).encode()


def on_cpu() -> bytes:
    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 7, "tid": 1, "s": "t", "ts": 1015.0}
    memory["args"] = {"Bytes": 4096, "Total Allocated": 10_000, "Device Type": 0}
    freed = {**memory, "ts": 1050.0, "args": {"Bytes": -4096, "Total Allocated": 5904, "Device Type": 0}}
    return trace(
        event("aten::linear", "cpu_op", 0, 40, External_id=1),
        event("aten::addmm", "cpu_op", 10, 20, External_id=2),
        memory,
        freed,
        event("aten::relu", "cpu_op", 60, 40, External_id=3),
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python"}},
    )


def on_gpu() -> bytes:
    return trace(
        event("aten::mm", "cpu_op", 0, 20, External_id=1),
        event("cudaLaunchKernel", "cuda_runtime", 5, 5, correlation=11),
        event("sm90_xmma_gemm_bf16", "kernel", 30, 50, tid=9, External_id=1, correlation=11, device=0),
        event("aten::add", "cpu_op", 20, 10, External_id=2),
        event("cudaLaunchKernel", "cuda_runtime", 22, 3, correlation=12),
        event("vectorized_elementwise_kernel", "kernel", 100, 20, tid=9, External_id=2, correlation=12, device=0),
        event("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 140, 60, tid=8, correlation=13, device=0),
    )


def test_bytes_that_are_no_text_cost_their_event_only():
    """Names of kernels are written as they are."""
    whole = analyse(on_cpu(), pid=7, steps=1, holds=HOLDS)
    torn = analyse(on_cpu().replace(b"aten::relu", b"aten::\xe4lu"), pid=7, steps=1, holds=HOLDS)
    assert {row.name for row in whole.ops} - {row.name for row in torn.ops} == {"aten::relu"}
    with pytest.raises(TraceError):
        analyse(b'{"traceEvents": [], "\xe4": 1}', pid=7, steps=1, holds=HOLDS)


def test_own_time_is_without_the_operators_that_are_called():
    profile = analyse(on_cpu(), pid=7, steps=2, holds=HOLDS)
    rows = {row.name: row for row in profile.ops}
    assert rows["aten::linear"].host == pytest.approx(40e-6)
    assert rows["aten::linear"].self_host == pytest.approx(20e-6)
    assert rows["aten::addmm"].self_host == pytest.approx(20e-6)
    assert [row.device for row in profile.ops] == [None] * 3
    assert profile.seconds == pytest.approx(100e-6)


def test_memory_belongs_to_the_innermost_operator():
    profile = analyse(on_cpu(), pid=7, steps=2, holds=HOLDS)
    assert {row.name: row.allocated for row in profile.ops} == {"aten::linear": 0, "aten::addmm": 4096, "aten::relu": 0}
    assert profile.peak_memory == 10_000
    profile = analyse(trace(event("aten::mm", "cpu_op", 0, 10)), pid=7, steps=1, holds=HOLDS)
    assert profile.ops[0].allocated is profile.peak_memory is None, "not watched is not zero"
    assert "allocated" not in profile_text(profile)


def test_a_kernel_whose_operator_is_not_known_belongs_to_none():
    profile = analyse(
        trace(
            event("aten::mm", "cpu_op", 0, 20),
            event("cudaLaunchKernel", "cuda_runtime", 5, 5, correlation=None),
            event("some_kernel", "kernel", 30, 50, tid=9, device=0),
        ),
        pid=7,
        steps=1,
        holds=HOLDS,
    )
    assert [(row.name, row.device) for row in profile.ops] == [("aten::mm", 0.0)]
    assert [(row.kind, row.device) for row in profile.kernels] == [("other", pytest.approx(50e-6))]
    assert profile.devices[0].launch_delay is None


def test_a_trace_that_nests_deep_takes_no_time():
    count = 5_000
    nested = trace(*(event(f"op{number}", "cpu_op", number, 2 * (count - number)) for number in range(count)))
    began = time.process_time()
    assert analyse(nested, pid=7, steps=1, holds=HOLDS).events == count
    assert time.process_time() - began < 0.75


def test_an_operator_inside_its_own_kind_is_counted_once():
    profile = analyse(
        trace(event("aten::to", "cpu_op", 0, 10), event("aten::to", "cpu_op", 2, 6)), pid=7, steps=1, holds=HOLDS
    )
    assert profile.ops[0].calls == 2
    assert profile.ops[0].host == pytest.approx(10e-6)
    assert profile.ops[0].self_host == pytest.approx(10e-6)


def test_kernels_count_for_the_operator_that_launched_them():
    profile = analyse(on_gpu(), pid=7, steps=1, holds=HOLDS)
    assert [(row.name, row.device) for row in profile.ops] == [
        ("aten::mm", pytest.approx(50e-6)),
        ("aten::add", pytest.approx(20e-6)),
    ]
    assert profile.kernels[0].name.startswith("Memcpy")
    assert {row.kind: row.share for row in profile.classes} == {
        "copy": pytest.approx(60 / 130),
        "matmul": pytest.approx(50 / 130),
        "elementwise": pytest.approx(20 / 130),
    }


def test_a_device_idles_between_its_kernels():
    (use,) = analyse(on_gpu(), pid=7, steps=1, holds=HOLDS).devices
    assert use.busy == pytest.approx(130e-6)
    assert use.idle == pytest.approx(70e-6)
    assert use.gaps == 3
    assert use.longest_gap == pytest.approx(30e-6)
    assert use.launch_delay == pytest.approx((20e-6 + 75e-6) / 2)


def test_kernels_that_overlap_are_busy_once():
    first = event("a", "kernel", 0, 100, device=0)
    second = event("b", "kernel", 50, 100, tid=2, device=0)
    (use,) = analyse(trace(first, second), pid=7, steps=1, holds=HOLDS).devices
    assert use.busy == pytest.approx(150e-6)
    assert use.idle == 0


@pytest.mark.parametrize("bad", [b"", b"{}", b"[]", b'{"traceEvents": 5}', b'{"traceEvents": []}', b"\xff\xfe"])
def test_what_is_no_trace_is_refused(bad):
    with pytest.raises(TraceError):
        analyse(bad, pid=7, steps=1, holds=HOLDS)


def test_the_table_fits_and_hides_nothing_that_moves_a_terminal():
    long = event("evil\x1b[2J" + "x" * 300, "cpu_op", 0, 10)
    text = profile_text(analyse(trace(long), pid=7, steps=1, holds=HOLDS))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100
