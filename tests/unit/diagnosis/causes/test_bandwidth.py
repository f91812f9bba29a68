"""memory-bandwidth-bound: a device that waits for its own memory."""

import pytest
from device_runs import COMPUTES
from judgements import fired, level
from snapshot_builder import facts, on_gpu, steps

from aitop.diagnosis.causes import bandwidth


def test_memory_that_is_the_limit():
    known = facts(cuda=True, parameter_dtypes=("float32",))
    verdict = fired(bandwidth.judge(on_gpu(steps(**COMPUTES), busy=0.98, dram=0.8, tensor=0.05, sm=0.9, facts=known)))
    assert (verdict.id, verdict.severity) == ("memory-bandwidth-bound", "warning")
    assert verdict.evidence[0] == "memory busy 80 % of the time, tensor cores 5 %, SMs 90 %"
    assert verdict.fixes[0].text.startswith("autocast to bfloat16") and verdict.fixes[0].speedup == pytest.approx(1.67)


def test_half_precision_is_not_advised_twice():
    known = facts(cuda=True, parameter_dtypes=("float32",), autocast="bfloat16")
    verdict = fired(bandwidth.judge(on_gpu(steps(**COMPUTES), busy=0.98, dram=0.8, tensor=0.05, facts=known)))
    assert not any("autocast" in fix.text for fix in verdict.fixes) and verdict.speedup is None


@pytest.mark.parametrize(
    "figures",
    [{"dram": 0.2, "tensor": 0.1}, {"dram": 0.55, "tensor": 0.7}, {"dram": 0.6, "tensor": 0.05, "busy": 0.4}],
    ids=["quiet memory", "busy tensor cores", "idle device"],
)
def test_memory_that_is_not_the_limit(figures):
    assert level(bandwidth.judge(on_gpu(steps(**COMPUTES), **{"busy": 0.98, **figures}))) < bandwidth.judge.leave
