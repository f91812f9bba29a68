"""A row of model.phases is all that a phase with an event of its own needs, from the ring to the screen."""

from __future__ import annotations

import importlib
from typing import get_args

import pytest
from snapshot_builder import line, snapshot, step, steps
from stack_maker import stack, window

from aitop.diagnosis.causes import host
from aitop.model.phases import APART, MEASURED, MeasuredPhase, Phase
from aitop.model.snapshot import Phases
from aitop.model.steps import StepRecord
from aitop.outputs.html.page import to_html
from aitop.outputs.report import report_of
from aitop.outputs.text import to_text
from aitop.protocol import events as at
from aitop.sources.ring.step_maker import StepMaker
from aitop.sources.ring.steps import BY_EVENT
from aitop.stacks import libraries
from aitop.stacks.view import StackView
from aitop.ui.panes.step import _column, phase_shares
from aitop.ui.theme import palette
from aitop.ui.theme.palette import OPTIMIZER, OUTSIDE, PHASES

EVENT = at.KINDS
CLIP = MeasuredPhase("clip", "optimizer", computes=True, event="CLIP")  # type: ignore[arg-type]
KIND = palette.in_hue_of_another(CLIP)
MS = 1_000_000


@pytest.fixture
def clip(monkeypatch):
    """A row for a phase that the hook times with an event of its own."""
    monkeypatch.setitem(BY_EVENT, EVENT, CLIP)
    for module, name in (
        ("diagnosis.ledger", "MEASURED"),
        ("diagnosis.ledger", "APART"),
        ("ui.panes.step", "APART"),
        ("diagnosis.causes.host", "TIMED_ALONE"),
        ("outputs.report", "TIMED_ALONE"),
        ("stacks.view", "TIMED_ALONE"),
    ):
        where = importlib.import_module(f"aitop.{module}")
        monkeypatch.setattr(where, name, (*getattr(where, name), CLIP))
    monkeypatch.setitem(palette._BY_KEY, "clip", KIND)
    monkeypatch.setattr(importlib.import_module("aitop.ui.panes.step"), "PHASES", (*PHASES[:-1], KIND, OUTSIDE))
    return CLIP


def test_every_row_has_a_name_a_hue_and_a_length():
    kinds = {kind.key for kind in PHASES}
    assert len({phase.key for phase in MEASURED}) == len(MEASURED)
    for phase in MEASURED:
        assert phase.key in get_args(Phase) and phase.hue in kinds
        assert set(phase.fields) <= set(StepRecord.__struct_fields__)
        assert bool(phase.fields) != (phase.event is not None)
        assert phase.event is None or getattr(at, phase.event) in {*range(at.KINDS)} - {*at.PHASES}
        assert phase in APART or phase.event is None


def events(rounds, optimizers=1):
    """Rounds of 10 ms, of which 2 ms are the phase's; so many optimizers, each with its loader, take turns."""
    now = 10**12
    for number in range(rounds):
        turn = number % optimizers
        for kind, length, a, b in (
            (at.NEXT, MS, 5 + turn, -1),
            (at.FORWARD, 2 * MS, 8, -1),
            (at.BACKWARD, 4 * MS, 1, 0),
            (EVENT, 2 * MS, 0, 0),
            (at.OPTIMIZER_ENDS, MS, 1 + turn, -1),
        ):
            yield kind, now, now + length, a, b
            now += length


def test_the_reader_sums_it_up_and_repeats_it_in_counted_steps(clip):
    maker = StepMaker()
    made = list(events(4))
    records = maker.read(made)
    assert [record.others for record in records] == [{"clip": pytest.approx(0.002)}] * 3
    end = made[-1][2]
    counted = [(at.COUNTING_BEGINS, end, end, 100 * MS, 0), (at.COUNTED, end, end + 20 * MS, 4, 0)]
    records = maker.read(counted)
    assert [record.estimated for record in records] == [True] * 4
    assert [record.others["clip"] for record in records] == pytest.approx([0.001] * 4)


def test_several_optimizers_of_a_step_add_it_up(clip):
    assert StepMaker().read(list(events(12, optimizers=2)))[-1].others == {"clip": pytest.approx(0.004)}


def test_the_ledger_gives_it_the_length_that_was_measured(clip):
    lines = [
        line("main", 0.6, phase="forward", activity="native", number=12),
        line("main", 0.1, phase="clip", activity="native", number=14),
        line("main", 0.3, number=16, activity="python"),
    ]
    seen = snapshot(steps(seconds=0.1, forward=0.05, others={"clip": 0.02}), lines=lines)
    (entry,) = [entry for entry in seen.ledgers[0].entries if entry.phase == "clip"]
    assert (entry.share, entry.basis, entry.line) == (pytest.approx(0.2), "measured", 14)
    host = sum(entry.share for entry in seen.ledgers[0].entries if entry.phase == "host")
    assert host == pytest.approx(0.3)


def test_the_ledger_leaves_its_samples_alone_where_nothing_times_it(clip):
    lines = [line("main", 0.6, phase="forward", activity="native"), line("main", 0.4, phase="clip", activity="native")]
    seen = snapshot(steps(seconds=0.1, forward=0.06), lines=lines)
    assert sum(entry.share for entry in seen.ledgers[0].entries if entry.phase == "clip") == pytest.approx(0.4)


def test_where_no_cause_asks_for_it_its_line_is_named(clip):
    lines = [
        line("main", 0.6, phase="forward", activity="native", number=12),
        line("main", 0.4, phase="clip", activity="native", work="tensor", number=14),
    ]
    verdict = host.judge(snapshot(steps(seconds=0.1, forward=0.06, others={"clip": 0.04}), lines=lines)).verdict
    assert (verdict.where[0].line, verdict.share) == (14, pytest.approx(0.4))


def test_the_step_pane_draws_it_by_its_name_in_its_hue(clip):
    records = [step(index, 0.1, forward=0.05, optimizer=0.01, others={"clip": 0.02}) for index in range(5)]
    seconds = dict(_column(records))
    assert (seconds[OPTIMIZER], seconds[KIND], seconds[OUTSIDE]) == pytest.approx((0.01, 0.02, 0.02))
    shares = dict(phase_shares(snapshot(records).steps))
    known = snapshot(records).steps.phases
    assert (shares[OPTIMIZER], shares[KIND]) == pytest.approx((known.optimizer or 0.0, 0.2))
    assert shares[OUTSIDE] == pytest.approx((known.outside or 0.0) - 0.2)
    assert (KIND.name, KIND.ink) == ("clip", OPTIMIZER.ink)


def test_the_report_gives_its_share_and_takes_it_out_of_what_is_outside(clip):
    seen = snapshot(steps(seconds=0.1, forward=0.05, others={"clip": 0.02}))
    shares = report_of(seen)["step"]["phases"]
    assert (shares["forward"], shares["clip"], shares["outside"]) == pytest.approx((0.5, 0.2, 0.3))
    assert sum(share for share in shares.values() if share is not None) == pytest.approx(1.0)
    assert "\n  clip             20 %" in to_text(seen)
    assert " clip 20 %</span>" in to_html(seen)
    assert report_of(snapshot(steps(forward=0.05)))["step"]["phases"]["clip"] is None
    assert list(report_of(snapshot())["step"]["phases"])[-2:] == ["clip", "outside"]


def test_a_phase_on_the_hosts_clock_takes_no_more_than_the_devices_clock_leaves(clip):
    records = steps(seconds=0.1, device_forward=0.06, device_backward=0.03, others={"clip": 0.05})
    shares = snapshot(records).steps.phases.shares()
    assert (shares["clip"], shares["outside"]) == pytest.approx((0.1, 0.0))


@pytest.fixture
def clip_frames(clip, monkeypatch):
    """Frames of a library that stand for that phase."""
    row = libraries._row(r"/torch/nn/utils/clip_grad\.py$", "clip_grad_norm_", phase="clip")  # type: ignore[arg-type]
    caches = libraries._meaning, libraries._rows
    monkeypatch.setattr(libraries, "TABLE", (row, *libraries.TABLE))
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_stacks_give_its_share_without_the_hook(clip_frames):
    model = stack("user/train.py:2 main", "torch/nn/modules/module.py:1 Module._call_impl")
    clips = stack("user/train.py:3 main", "torch/nn/utils/clip_grad.py:9 clip_grad_norm_")
    samples = [(1, "MainThread", True, frames, count) for frames, count in ((model, 60), (clips, 40))]
    (process,) = StackView().view([window(2.0, *samples)], {1: "rank"}, 0.0).processes
    assert process.phases == Phases(
        data_wait=0.0, forward=0.6, backward=0.0, optimizer=0.0, outside=0.4, others={"clip": 0.4}
    )
    assert process.phases.shares()["outside"] == 0.0
