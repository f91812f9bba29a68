"""sync-stall: reading results from the device, where it idles behind them."""

import pytest
from device_runs import ITEM, READS, reading
from judgements import fired, level
from msgspec.structs import replace
from snapshot_builder import facts, line, on_gpu, steps

from aitop.diagnosis.causes import sync_stall
from aitop.model.snapshot import Phases


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
