"""comm-bound: what the exchange costs once the last rank has come."""

import msgspec
import pytest
from judgements import fired
from ranks_maker import (
    LATE_BY_INPUT,
    PIDS,
    model,
    past_of_ranks,
    ranks_host,
    seen,
    with_calls,
    without_hook,
)

from aitop.diagnosis.causes.comm_bound import comm_bound
from aitop.diagnosis.causes.straggler import straggler
from aitop.engine.snapshot.aggregate import aggregate
from aitop.model.host import MachineSample
from aitop.model.snapshot import Tick
from aitop.model.steps import CallSite, DdpInfo, HookFacts
from aitop.model.verdict import Abstention


def test_the_exchange_is_what_even_the_last_rank_waits():
    ddp = DdpInfo(backward=0.02, backend="gloo", gradient_bytes=10**8, communication=0.05, overlap=0.01)
    facts = HookFacts(way="attach", python="3", torch="2", ddp=ddp)
    finding = comm_bound(seen(past_of_ranks((0.0, 0.06, 0.08), (0.0, 0.06, 0.08), ddp=ddp), facts=facts))
    assert (finding.verdict.subtype, finding.verdict.share) == ("volume", pytest.approx(0.5))
    assert finding.verdict.fixes[0].speedup == pytest.approx(1 / (1 - 0.375), abs=0.01)
    assert any(
        "overlaps with the backward" in sentence and sentence.startswith("20") for sentence in finding.verdict.evidence
    )
    late = past_of_ranks(*LATE_BY_INPUT)
    assert comm_bound(seen(late)).level < 0.02, "waiting for a late rank is no exchange"


def test_on_a_gpu_the_device_tells_how_long_a_backward_pass_waits_for_the_exchange():
    """The host launches it in 20 ms, and waits for all of it where it reads the loss."""
    past = past_of_ranks((0.0, 0.02, 0.55), (0.0, 0.02, 0.55), ddp=DdpInfo(backward=0.2))
    for hook in past.hooks.values():
        timed = [msgspec.structs.replace(record, device_backward=0.45) for record in hook.steps]
        hook.steps.clear()
        hook.steps.extend(timed)
    picture = seen(past)
    verdict = comm_bound(picture).verdict
    assert (verdict.id, verdict.share) == ("comm-bound", pytest.approx(0.25 / 0.55, abs=0.01))
    phases = picture.ranks.ranks[0].phases
    assert (phases.backward, phases.wait) == (pytest.approx(0.2), pytest.approx(0.25))
    assert sum(filter(None, msgspec.structs.astuple(phases))) == pytest.approx(0.55, abs=0.01)
    # Where the device timed some steps only, they are not compared with the others.
    first = past.hooks[PIDS[0]]
    first.steps[-1] = msgspec.structs.replace(first.steps[-1], device_backward=None)
    assert comm_bound(seen(past)).level < 0.12


def test_without_the_hook_exchange_is_what_even_the_rank_that_rests_least_rests():
    verdict = fired(comm_bound(without_hook(0.5, 0.4, lines=model(1.0, 1.0))))
    assert (verdict.share, verdict.severity) == (pytest.approx(0.5), "warning")
    assert verdict.confidence < 0.5, "a rank that is late now and then looks the same"
    assert comm_bound(without_hook(0.9, 0.9, lines=model(1.0, 1.0))).level < 0.12
    alone = without_hook(
        0.5, 0.4, lines=model(1.0, 1.0), library="/lib/python3.11/site-packages/torch/nn/functional.py"
    )
    assert isinstance(comm_bound(alone), Abstention), "two runs side by side"


def test_a_rank_whose_others_are_all_elsewhere_waits_for_them_or_for_the_exchange():
    alone = msgspec.structs.replace(ranks_host(1000.0), processes=ranks_host(1000.0).processes[:1])

    def seen(*steps):
        past = past_of_ranks(steps)
        past.add(alone)
        return aggregate(past, Tick(time=1000.0, wall=0.0))

    waits = seen(0.0, 0.07, 0.08)
    assert waits.steps.phases.communication == pytest.approx(0.05 / 0.08)
    verdict = comm_bound(waits).verdict
    assert (verdict.subtype, verdict.severity, verdict.share) == ("elsewhere", "warning", pytest.approx(0.625))
    assert "1 of 2 ranks are on other machines" in verdict.evidence[0]
    assert isinstance(straggler(waits), Abstention)
    assert comm_bound(seen(0.05, 0.02, 0.08)).level < 0.05


def test_now_one_rank_is_the_last_and_now_another_within_a_step():
    picture = seen(with_calls((0.04, 0.001), (0.001, 0.04)))
    assert picture.ranks.exchange == pytest.approx(0.002)
    assert comm_bound(picture).level < 0.06


def test_many_small_exchanges_name_their_lines():
    site = CallSite(kind="collective", name="barrier", file="/x/train.py", line=88, function="train", calls=40,
                    seconds=0.9, bytes=0)  # fmt: skip
    facts = HookFacts(way="attach", python="3", torch="2", ddp=DdpInfo(gradient_bytes=10**6), calls=(site,))
    past = with_calls((0.02, 0.03), (0.02, 0.03))
    verdict = comm_bound(seen(past, facts=facts, records=list(past.hooks[PIDS[0]].steps))).verdict
    assert (verdict.subtype, verdict.where[0].line) == ("latency", 88)
    assert "barrier at train.py:88" in verdict.fixes[0].text


def test_waiting_for_a_core_is_no_exchange():
    busy = with_calls((0.02,), (0.02,))
    for second in range(3):
        busy.add(ranks_host(1000.0 + second, run_delay=0.15))
    assert seen(busy).ranks.exchange == pytest.approx(0.005)


def test_cores_that_exchanging_takes_from_computing_are_part_of_what_it_costs():
    busy = with_calls((0.04,), (0.04,))
    for second in range(3):
        sample = ranks_host(1000.0 + second, run_delay=0.2, main_cpu=0.5, cpu=0.9)
        busy.add(msgspec.structs.replace(sample, machine=MachineSample(cores=2, core_busy=(0.9, 0.9))))
    picture = seen(busy)
    assert (picture.ranks.exchange, picture.ranks.apart) == (pytest.approx(0.04), pytest.approx(0.04))
    verdict = comm_bound(picture).verdict
    assert (verdict.share, verdict.speedup) == (pytest.approx(0.4), pytest.approx(2.5))
    assert any("without any exchange a step would take 40 ms" in sentence for sentence in verdict.evidence)


def test_steps_that_were_only_counted_are_not_compared():
    assert seen(with_calls((0.02,), (0.02,), estimated=True)).ranks.steps == 0
