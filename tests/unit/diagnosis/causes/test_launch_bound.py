"""launch-bound: a device that waits for the calls of many small operations."""

import msgspec
import pytest
from device_runs import LAUNCHES
from judgements import fired, level
from msgspec.structs import replace
from snapshot_builder import facts, line, on_gpu, steps

from aitop.diagnosis.causes import launch_bound
from aitop.model.gpu import GpuDevice
from aitop.model.snapshot import Phases
from aitop.model.stacks import Frame
from aitop.model.steps import AllocatorSample
from aitop.model.verdict import Setting

MODEL = line("forward", 0.36, phase="forward", activity="native", number=12, text="x = self.block(x)")


def test_a_device_starved_by_launches():
    known = facts(cuda=True, ops=1500, foreach=False, parameter_tensors=400, root="Net")
    verdict = fired(launch_bound.judge(on_gpu(steps(**LAUNCHES), busy=0.3, facts=known, lines=[MODEL])))
    assert verdict.severity == "critical" and verdict.share == pytest.approx(0.66, abs=0.01)
    assert "1,500 operations a step, launched at 12 µs each" in verdict.evidence
    assert "Net replays its 1,500 launches as CUDA graphs" in verdict.fixes[0].text
    assert any(fix.text.startswith("batch 32 → 128") for fix in verdict.fixes)
    assert any(fix.setting == Setting(name="batch_size", to=128, current=32) for fix in verdict.fixes)
    assert any("400 tensors" in fix.text for fix in verdict.fixes)


def test_operations_and_samples_are_those_of_a_batch_where_gradients_are_added_up():
    launches = [msgspec.structs.replace(record, backwards=4) for record in steps(**LAUNCHES)]
    verdict = fired(launch_bound.judge(on_gpu(launches, busy=0.3, facts=facts(cuda=True, ops=1500), lines=[MODEL])))
    assert "6,000 operations a step, launched at 3 µs each" in verdict.evidence
    assert any(fix.setting == Setting(name="batch_size", to=32, current=8) for fix in verdict.fixes)


def test_launches_that_take_long_starve_a_device_as_well():
    # Of an H100: nn.Linear with a bias takes 160 microseconds of the host where the library looks for an algorithm.
    verdict = fired(
        launch_bound.judge(on_gpu(steps(**LAUNCHES), busy=0.08, facts=facts(cuda=True, ops=120), lines=[MODEL]))
    )
    assert verdict.severity == "critical" and "120 operations a step, launched at 150 µs each" in verdict.evidence


def test_no_larger_batch_is_advised_where_memory_is_nearly_full():
    full = AllocatorSample(
        device=0, gpu=0, allocated=70 << 30, reserved=72 << 30, peak_allocated=75 << 30, capacity=79 << 30
    )
    seen = on_gpu(steps(**LAUNCHES), busy=0.3, facts=facts(cuda=True, ops=1500), lines=[MODEL], allocators=(full,))
    assert not any("batch" in fix.text for fix in fired(launch_bound.judge(seen)).fixes)


def test_no_larger_batch_is_advised_where_other_processes_hold_the_memory():
    own = AllocatorSample(
        device=0, gpu=0, allocated=8 << 30, reserved=12 << 30, peak_allocated=10 << 30, capacity=80 << 30
    )

    def fixes(used):
        card = GpuDevice(index=0, mine=True, memory_total=80 << 30, memory_used=used << 30)
        seen = on_gpu(
            steps(**LAUNCHES), busy=0.3, facts=facts(cuda=True, ops=1500), lines=[MODEL], device=card, allocators=(own,)
        )
        return [fix.text for fix in fired(launch_bound.judge(seen)).fixes]

    assert any("batch 32 → 128" in text for text in fixes(used=14))
    assert not any("batch" in text for text in fixes(used=76))


def test_a_verdict_says_what_the_call_at_its_line_comes_to():
    slow = Frame("sdpa_attention_forward", "/lib/site-packages/transformers/sdpa_attention.py", 158)
    calls = replace(MODEL, below=((slow, 0.75),))
    verdict = fired(
        launch_bound.judge(on_gpu(steps(**LAUNCHES), busy=0.3, facts=facts(cuda=True, ops=1500), lines=[calls]))
    )
    assert verdict.evidence[-1] == "below that line: 75 % sdpa_attention_forward (sdpa_attention.py:158)"
    hardly = replace(MODEL, below=((slow, 0.25),))
    verdict = fired(
        launch_bound.judge(on_gpu(steps(**LAUNCHES), busy=0.3, facts=facts(cuda=True, ops=1500), lines=[hardly]))
    )
    assert not any("below" in words for words in verdict.evidence)


@pytest.mark.parametrize(
    ("durations", "busy", "ops"),
    [
        (LAUNCHES, 0.96, 1500),
        ({"seconds": 0.05, "data_wait": 0.035, "forward": 0.005, "backward": 0.007, "optimizer": 0.002}, 0.25, None),
        ({"seconds": 0.05, "forward": 0.03, "backward": 0.015, "optimizer": 0.004, "blocking": 0.04}, 0.3, None),
    ],
    ids=["ahead of a busy device", "the device waits for data", "waits inside of the phases"],
)
def test_a_device_that_launches_do_not_starve(durations, busy, ops):
    seen = on_gpu(steps(**durations), busy=busy, facts=facts(cuda=True, ops=ops))
    assert level(launch_bound.judge(seen)) < launch_bound.judge.leave


def test_launches_without_the_hook():
    shares = Phases(data_wait=0.0, forward=0.4, backward=0.45, optimizer=0.12, outside=0.03)
    verdict = fired(launch_bound.judge(on_gpu(phases=shares, busy=0.3, lines=[MODEL])))
    assert verdict.share == pytest.approx(0.67, abs=0.01) and verdict.where[0].line == 12
    assert verdict.confidence < 0.7
