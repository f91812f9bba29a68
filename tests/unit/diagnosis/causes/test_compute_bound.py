"""compute-bound: a step that computes all the time, and what of it need not be computed."""

import random

import msgspec
import pytest
from judgements import fired
from msgspec.structs import replace
from snapshot_builder import (
    facts,
    host,
    line,
    snapshot,
    step,
    steps,
)

from aitop.diagnosis.causes import (
    computing,
)
from aitop.diagnosis.causes.computing import compute_bound
from aitop.model.host import MachineSample
from aitop.model.serving import Serving
from aitop.model.snapshot import Phases
from aitop.model.steps import PaddingInfo


def decoding(length, until=400, samples=2, every=17):
    """Calls of a decoder that are given `length(number)` tokens a sequence; the hook looks at every `every`th."""
    made, seen = [], None
    for number in range(until):
        tokens = samples * length(number)
        seen = tokens if number % every == 0 else seen
        seconds = 0.001 + 0.00005 * tokens
        made.append(step(number, seconds, forward=0.9 * seconds, samples=samples, tokens=seen))
    return made


def answering(records, **fields):
    lines = [line("attend", 0.9, phase="forward", activity="native", number=49, via=(("write", 98, ""),), callers=1)]
    return snapshot(records, lines=lines, **{"kind": "inference", **fields})


@pytest.mark.parametrize(
    ("no_grad", "phase", "told"),
    [(0.05, "forward", True), (0.01, "forward", False), (0.05, "environment", False)],
    ids=["a teacher", "a small one", "a policy that acts"],
)
def test_a_model_that_is_not_trained_may_be_computed_once(no_grad, phase, told):
    made = steps(seconds=0.1, forward=0.06, backward=0.03, no_grad=no_grad, no_grad_forwards=1)
    verdict = fired(compute_bound(snapshot(made, lines=[line("act", 0.3, phase=phase)])))
    assert verdict.severity == "info"
    assert [fix.speedup for fix in verdict.fixes] == ([pytest.approx(2.0)] if told else [])
    assert ("50 % of it without gradients" in verdict.title) is told


def padded(longest, mean, looks=4, **figures):
    known = facts(padding=PaddingInfo(looks=looks, width=192.0, longest=longest, mean=mean), **figures)
    return fired(compute_bound(snapshot(steps(seconds=0.1, forward=0.05, backward=0.045), facts=known)))


def test_rows_that_are_longer_than_any_sequence_compute_padding():
    """Fine-tuning on texts padded to 192 tokens took a third of the time with batches as long as their longest one."""
    verdict = padded(52.0, 32.0, ops=2_000)
    assert (verdict.id, verdict.subtype, verdict.severity) == ("compute-bound", "padding", "warning")
    assert verdict.evidence[0] == "batches are 192 tokens wide, their longest sequences have 52 on average"
    assert verdict.speedup == pytest.approx(2.2, abs=0.1), "what calling operations takes does not get shorter"
    assert [fix.speedup for fix in verdict.fixes] == [pytest.approx(2.2, abs=0.1)]
    assert padded(52.0, 32.0).speedup == pytest.approx(3.3, abs=0.1)
    assert len(padded(140.0, 60.0).fixes) == 2, "nor are sequences of one batch of like length"


@pytest.mark.parametrize(
    ("longest", "mean", "looks"),
    [(180.0, 140.0, 4), (52.0, 32.0, 1), (0.0, 0.0, 4), (200.0, 32.0, 4)],
    ids=["nearly as long as the longest", "a single batch", "masks of nothing", "longer than its row"],
)
def test_batches_in_random_order_and_masks_that_say_little_are_no_fault(longest, mean, looks):
    assert padded(longest, mean, looks=looks).subtype is None


def test_short_sequences_that_are_batched_with_long_ones_compute_padding():
    """Fine-tuning on tickets of 75 tokens, 4 % of them four times as long, was 2.9 times as fast in batches of like
    length.
    """
    verdict = padded(190.0, 70.0)
    assert (verdict.subtype, verdict.severity, verdict.share) == ("padding", "warning", pytest.approx(0.6, abs=0.01))
    (only,) = verdict.fixes
    assert "like length" in only.text and only.speedup == pytest.approx(2.5, abs=0.1)


@pytest.mark.parametrize(("part", "subtype"), [(0.8, "gradients"), (0.1, None), (0.0, None), (None, None)])
def test_gradients_that_no_optimizer_uses(part, subtype):
    made = steps(seconds=0.1, forward=0.035, backward=0.06)
    lines = [line("loss", 0.3, phase="forward", activity="native", number=17)]
    verdict = fired(compute_bound(snapshot(made, lines=lines, facts=facts(unused_gradients=part))))
    assert verdict.subtype == subtype
    if subtype:
        assert (verdict.severity, verdict.share) == ("warning", pytest.approx(0.48, abs=0.01))
        assert verdict.where[0].line == 17 and verdict.fixes[0].speedup == pytest.approx(1.92, abs=0.02)


@pytest.mark.parametrize(("available", "severity"), [(12, "warning"), (4, "info")])
def test_activations_that_are_computed_again_though_memory_is_free(available, severity):
    lines = [
        line("loss", 0.3, phase="forward", activity="native", number=17),
        line("back", 0.4, phase="backward", activity="native", number=18, work="tensor"),
        line("attend", 0.3, phase="backward", activity="native", number=40, work="recompute"),
    ]
    machine = MachineSample(cores=2, memory_available=available * 2**30, memory_total=16 * 2**30)
    seen = snapshot(steps(seconds=0.1, forward=0.03, backward=0.07), lines=lines, host=replace(host(), machine=machine))
    verdict = fired(compute_bound(seen))
    assert (verdict.subtype, verdict.severity, verdict.where[0].line) == ("recompute", severity, 40)
    assert verdict.fixes[0].speedup == pytest.approx(1.43, abs=0.02)


def test_a_decoder_without_a_cache_computes_its_prefix_again():
    verdict = fired(compute_bound(answering(decoding(lambda number: 20 + number % 90))))
    assert (verdict.subtype, verdict.severity, verdict.where[0].line) == ("prefix", "warning", 98)
    # A call takes 1 ms and 0.05 ms for each of the 130 tokens of two sequences, with a cache for the newest two.
    assert verdict.speedup == pytest.approx((1 + 0.05 * 130) / (1 + 0.05 * 130 - 0.9 * 0.05 * 128), rel=0.1)
    assert "use_cache=True" in verdict.fixes[0].text


@pytest.mark.parametrize("turns", [2, 3])
def test_sequences_that_take_turns_compute_their_prefixes_again(turns):
    lengths = (30, 75, 140)
    made = decoding(lambda number: lengths[number % turns] + number // turns % 60)
    verdict = fired(compute_bound(answering(made)))
    assert verdict.subtype == "prefix" and verdict.speedup is not None
    assert f"({turns} are made at once)" in verdict.evidence[0]


def test_sequences_that_come_and_go_and_take_no_turns_compute_their_prefixes_again():
    """One to three texts are made at once; which of them gets its next token is chance."""
    chance, texts, lengths = random.Random(3), [[50, 90]], []
    for _ in range(400):
        if len(texts) < 3 and chance.random() < 0.05:
            begin = chance.randrange(20, 200)
            texts.append([begin, begin + chance.randrange(20, 60)])
        text = chance.choice(texts)
        lengths.append(text[0])
        text[0] += 1
        if text[0] > text[1] and len(texts) > 1:
            texts.remove(text)
    verdict = fired(compute_bound(answering(decoding(lambda number: lengths[number], every=1))))
    assert verdict.subtype == "prefix" and verdict.speedup is not None
    assert "(3 are made at once)" in verdict.evidence[0]


def test_short_texts_of_any_length_are_no_prefix():
    """Among eight texts of 4 to 12 tokens there is nearly always one with a token less than the next one."""
    chance = random.Random(4)
    verdict = fired(compute_bound(answering(decoding(lambda number: chance.randrange(4, 13), every=1))))
    assert (verdict.subtype, verdict.severity) == (None, "info")


def test_texts_in_order_of_their_length_are_no_prefix():
    verdict = fired(compute_bound(answering(decoding(lambda number: 20 + number // 3, every=1))))
    assert (verdict.subtype, verdict.severity) == (None, "info")


def test_lengths_that_hardly_differ_tell_where_calls_follow_them_closely():
    """From 200 to 259 tokens, with which a call gets longer."""
    verdict = fired(compute_bound(answering(decoding(lambda number: 200 + number % 60))))
    assert verdict.subtype == "prefix" and verdict.speedup is not None


@pytest.mark.parametrize("varied", [True, False], ids=["prompts of many lengths", "of one length"])
def test_generate_that_is_told_to_keep_no_cache_computes_its_prefix_again(varied):
    """A call takes 2 ms and 0.05 ms a token; a text has 40 tokens and a prompt of 60 to 340."""
    made = []
    for number in range(12):
        length = (60 + 40 * (number % 8) if varied else 200) + 20
        seconds = 40 * (0.002 + 0.00005 * length)
        made.append(step(number, seconds, forward=seconds, kind="generate", tokens=40, tokens_again=40 * length))
    verdict = fired(compute_bound(answering(made)))
    assert (verdict.subtype, verdict.severity, verdict.where[0].line) == ("prefix", "warning", 98)
    assert "use_cache=True" in verdict.fixes[0].text
    assert verdict.speedup == (pytest.approx(12.1 / 2.05, rel=0.15) if varied else None)
    assert ("not known" in verdict.evidence[1]) is not varied
    cached = [replace(each, tokens_again=None) for each in made]
    assert fired(compute_bound(answering(cached))).subtype is None


@pytest.mark.parametrize(
    ("length", "kind"),
    [
        (lambda number: 1, "inference"),
        (lambda number: 20 + number * number % 97, "inference"),
        (lambda number: 20 + 2 * (number % 90), "inference"),
        (lambda number: 20 + number % 90, "training"),
    ],
    ids=["with a cache", "texts of any length", "not by one token", "lessons that get longer"],
)
def test_other_lengths_of_sequences_are_no_prefix(length, kind):
    verdict = fired(compute_bound(answering(decoding(length), kind=kind)))
    assert (verdict.subtype, verdict.severity) == (None, "info")


def test_what_computes_and_what_passes_between_the_phases_are_no_more_than_all_of_it():
    """The phases of stacks may count as outside what the ledger knows to be the model."""
    lines = [
        line("decode", 0.56, phase="forward", activity="native", work="tensor", number=12),
        line("pick", 0.44, activity="python", number=13),
    ]
    seen = snapshot(phases=Phases(outside=0.56), lines=lines, kind="inference", serving=Serving(basis="stacks"))
    assert fired(computing.compute_bound(seen)).title == "56 % of the time computes, 44 % passes between the phases"


def test_a_closure_counts_once_in_what_computes():
    lines = [
        line("main", 0.4, phase="optimizer", activity="native", number=10),
        line("physics", 0.35, activity="native", number=20, position="within", work="tensor", closure=True),
        line("main", 0.2, phase="forward", activity="native", number=30),
        line("log", 0.05, activity="wait-disk", number=40),
    ]
    seen = snapshot(steps(seconds=0.1, forward=0.02, optimizer=0.075), lines=lines)
    verdict = fired(computing.compute_bound(seen))
    assert verdict.share == pytest.approx(0.95, abs=0.02)
    assert verdict.evidence[0] == "forward 20 %, optimizer 40 %, between them 35 %"


def test_what_a_computing_step_achieves_is_told_where_it_is_known():
    seen = snapshot(steps(seconds=0.1, forward=0.04, backward=0.05))
    assert not any("FLOP" in sentence for sentence in fired(computing.compute_bound(seen)).evidence)
    assert fired(computing.compute_bound(seen)).evidence[0] == "forward 40 %, backward 50 %", "there is no optimizer"
    achieving = msgspec.structs.replace(
        seen,
        steps=msgspec.structs.replace(seen.steps, flops_per_second=41e9, mfu=0.43),
        facts=facts(flops_dtype="bfloat16"),
    )
    verdict = fired(computing.compute_bound(achieving))
    assert verdict.evidence[-1] == "41 GFLOP/s achieved in bfloat16: 43 % of what the GPU can do (MFU)"
    assert verdict.fixes == ()
