"""Rules about a device that waits for its host, or for its own memory: fires, does not fire, not enough evidence."""

import msgspec
import pytest
from judgements import fired, level, unjudged
from msgspec.structs import replace
from snapshot_builder import facts, line, on_gpu, snapshot, steps

from aitop.diagnosis.causes import bandwidth, launch_bound, sync_stall, transfer_bound
from aitop.model.gpu import GpuDevice
from aitop.model.snapshot import Phases
from aitop.model.stacks import Frame
from aitop.model.steps import AllocatorSample, CallSite, LoaderInfo
from aitop.model.verdict import Setting

ALL = (sync_stall.judge, transfer_bound.judge, launch_bound.judge, bandwidth.judge)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.id)
def test_too_little_evidence_is_said(rule):
    assert "needed" in unjudged(rule(on_gpu(steps(3), busy=0.2, main_samples=0)))


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.id)
def test_without_a_device_nothing_is_said_of_one(rule):
    copying = line("main", 0.3, phase="transfer", activity="native", work="copy", text="x = x.to(device)")
    reading = line("main", 0.4, activity="wait-device", text="total += loss.item()")
    host_steps = steps(seconds=0.1, forward=0.05, backward=0.04, blocking=0.04, transfer=0.02)
    assert rule(snapshot(host_steps, lines=[copying, reading])) is None


# sync-stall -------------------------------------------------------------------------------------------------------

ITEM = CallSite(kind="blocking", name="item", file="/x/train.py", line=88, function="main", calls=80, seconds=1.6)
READS = line("main", 0.4, activity="wait-device", number=88, text="total += loss.item()")


def reading(busy, **fields):
    return on_gpu(
        steps(seconds=0.1, forward=0.02, backward=0.02, blocking=0.04, blockings=2),
        busy=busy, facts=facts(cuda=True, calls=(ITEM,)), lines=[READS], **fields,
    )  # fmt: skip


def test_a_device_that_idles_behind_item():
    verdict = fired(sync_stall.judge(reading(0.55)))
    assert (verdict.id, verdict.severity, verdict.where[0].line) == ("sync-stall", "critical", 88)
    assert verdict.share == pytest.approx(0.4) and verdict.speedup == pytest.approx(1 / 0.6, rel=0.01)
    assert "item at train.py:88: 2.0 calls a step, 20 ms each" in verdict.evidence
    assert "train.py:88" in verdict.fixes[0].text and "every 50 steps" in verdict.fixes[0].text


def test_results_that_somebody_waits_for_are_not_read_more_rarely():
    fix = fired(sync_stall.judge(reading(0.55, kind="inference"))).fixes[0]
    assert "every" not in fix.text and "train.py:88" in fix.text and fix.speedup == pytest.approx(1.67)


def test_only_the_idle_time_of_the_device_is_lost():
    assert fired(sync_stall.judge(reading(0.8))).share == pytest.approx(0.2)
    assert level(sync_stall.judge(reading(0.97))) < sync_stall.judge.leave


def test_gaps_on_the_device_clock_show_the_loss_too():
    timed = steps(
        seconds=0.1, forward=0.02, blocking=0.05,
        device_forward=0.02, device_backward=0.02, device_optimizer=0.01, device_idle=0.03,
    )  # fmt: skip
    verdict = fired(sync_stall.judge(on_gpu(timed, lines=[READS])))
    assert verdict.share == pytest.approx(0.3)


def test_stacks_alone_find_the_line_that_waits():
    seen = on_gpu(phases=Phases(forward=0.2, backward=0.2, optimizer=0.1, outside=0.5), busy=0.5, lines=[READS])
    verdict = fired(sync_stall.judge(seen))
    assert verdict.where[0].line == 88 and verdict.severity == "warning" and verdict.confidence < 0.7


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cuda.synchronize", "CUDA events"),
        ("print", "print the tensor"),
        ("bool", "decide on the device"),
        ("cpu", "non_blocking=True into pinned memory"),
        ("float", "keep the value"),
        (None, "every 50 steps only, or copy results"),
    ],
)
def test_the_fix_fits_the_call_that_was_measured_whatever_its_line_looks_like(name, told):
    waits = line("main", 0.4, activity="wait-device", number=88, text="print(float(if_nonzero.synchronize()))")
    calls = (replace(ITEM, name=name),) if name else ()
    phases = Phases(forward=0.3, backward=0.3, outside=0.4)
    seen = on_gpu(phases=phases, busy=0.5, facts=facts(cuda=True, calls=calls), lines=[waits])
    fix = fired(sync_stall.judge(seen)).fixes[0].text
    assert told in fix and "train.py:88" in fix


def test_waits_of_saving_and_evaluating_are_theirs():
    saving = line("save", 0.4, phase="save", activity="wait-device", text="state = model.cpu()")
    assert sync_stall.judge(on_gpu(phases=Phases(forward=0.5, outside=0.5), busy=0.3, lines=[saving])) is None


# transfer-bound ---------------------------------------------------------------------------------------------------

TO = CallSite(
    kind="transfer", name="to", file="/x/train.py", line=40, function="main", calls=40, seconds=1.6,
    bytes=40 * 80 * 2**20, pageable_bytes=40 * 80 * 2**20,
)  # fmt: skip
COPY = line("main", 0.4, phase="transfer", activity="native", work="copy", number=40, text="x = x.to(device)")
COPYING = {
    "seconds": 0.1,
    "forward": 0.02,
    "backward": 0.02,
    "transfer": 0.04,
    "transfer_apart": 0.04,
    "transfer_bytes": 80 * 2**20,
}


def test_pageable_copies_that_hold_up_the_device():
    known = facts(cuda=True, calls=(TO,), loaders=(LoaderInfo(workers=2),))
    verdict = fired(transfer_bound.judge(on_gpu(steps(**COPYING), busy=0.5, facts=known, lines=[COPY])))
    assert (verdict.severity, verdict.where[0].line, verdict.share) == ("critical", 40, pytest.approx(0.4))
    assert "80 MB a step at 2.0 GB/s" in verdict.evidence
    assert "100 % of it from memory that is not pinned" in verdict.evidence
    assert verdict.fixes[0].text == "pin_memory=True in the DataLoader, with non_blocking=True at train.py:40"
    assert any("uint8" in fix.text and fix.speedup < verdict.speedup for fix in verdict.fixes)


def test_the_fix_of_copies_that_are_pinned_or_many():
    pinned = replace(TO, bytes=40 * 2**20, pageable_bytes=0)
    seen = on_gpu(steps(**COPYING), busy=0.5, facts=facts(cuda=True, calls=(pinned,)), lines=[COPY])
    assert fired(transfer_bound.judge(seen)).fixes[0].text.startswith("non_blocking=True at train.py:40")
    small = replace(TO, calls=4000, bytes=4000 * 4096, pageable_bytes=None)
    records = steps(seconds=0.1, forward=0.02, backward=0.02, transfer=0.04, transfer_bytes=100 * 4096)
    verdict = fired(
        transfer_bound.judge(on_gpu(records, busy=0.5, facts=facts(cuda=True, calls=(small,)), lines=[COPY]))
    )
    assert verdict.fixes[0].text == "join the 100 copies a step at train.py:40 into one: stack on the host first"


def test_copies_under_a_busy_device_cost_nothing():
    assert level(transfer_bound.judge(on_gpu(steps(**COPYING), busy=0.97, lines=[COPY]))) < transfer_bound.judge.leave


def test_a_full_link_is_the_limit_however_copies_are_made():
    device = GpuDevice(index=0, mine=True, pcie_generation=4, pcie_width=16)
    records = steps(seconds=0.1, forward=0.01, backward=0.01, transfer=0.001, transfer_bytes=2 * 2**30)
    verdict = fired(transfer_bound.judge(on_gpu(records, busy=0.3, device=device, pcie_received=22e9)))
    assert verdict.share == pytest.approx(0.7)
    assert not any("non_blocking" in fix.text for fix in verdict.fixes)


def test_stacks_alone_find_the_copy():
    seen = on_gpu(phases=Phases(forward=0.3, backward=0.3, transfer=0.4, outside=0.0), busy=0.5, lines=[COPY])
    verdict = fired(transfer_bound.judge(seen))
    assert verdict.where[0].line == 40 and verdict.severity == "warning"


# launch-bound -----------------------------------------------------------------------------------------------------

LAUNCHES = {"seconds": 0.05, "forward": 0.018, "backward": 0.022, "optimizer": 0.008, "samples": 32}
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
    launches = [msgspec.structs.replace(one, backwards=4) for one in steps(**LAUNCHES)]
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


# memory-bandwidth-bound -------------------------------------------------------------------------------------------

COMPUTES = {"seconds": 0.05, "forward": 0.02, "backward": 0.02}


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


@pytest.mark.parametrize(
    ("rule", "seen", "why"),
    [
        (sync_stall, reading(None), "nothing tells how much the GPU idles"),
        (transfer_bound, on_gpu(steps(**COPYING), lines=[COPY]), "not measured"),
        (launch_bound, on_gpu(steps(**LAUNCHES), facts=facts(cuda=True, ops=1500)), "not measured"),
        (bandwidth, on_gpu(steps(**COMPUTES), busy=0.98), "GPM"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_the_device_does_not_tell_is_not_judged(rule, seen, why):
    assert why in unjudged(rule.judge(seen))
