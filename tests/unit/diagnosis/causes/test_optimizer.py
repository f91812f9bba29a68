"""optimizer-bound: updates that take longer than they need."""

from __future__ import annotations

import msgspec
import pytest
from judgements import fired, level
from snapshot_builder import (
    facts,
    line,
    snapshot,
    steps,
)

from aitop.diagnosis.causes import (
    optimizer,
)
from aitop.model.host import HostSample, MachineSample
from aitop.model.snapshot import Phases
from aitop.model.stacks import Frame


def adam(parameters, tensors, **fields):
    return facts(parameters=parameters, parameter_tensors=tensors, optimizers=("AdamW",), **fields)


def test_an_optimizer_with_many_parameters_may_take_long():
    many = adam(10_000_000, 40)
    assert level(optimizer.judge(snapshot(steps(seconds=0.1, optimizer=0.02), facts=many))) < 0.14
    fused = adam(10_000_000, 40, fused=True)
    assert level(optimizer.judge(snapshot(steps(seconds=0.1, optimizer=0.05), facts=fused))) == 0


def test_many_small_tensors_cost_something_even_when_batched():
    verdict = fired(optimizer.judge(snapshot(steps(seconds=0.04, optimizer=0.027), facts=adam(65_000, 1000))))
    assert verdict.speedup == pytest.approx(1.4, rel=0.07), "foreach takes 0.57 of the time of a loop, as measured"
    batched = fired(
        optimizer.judge(snapshot(steps(seconds=0.04, optimizer=0.027), facts=adam(65_000, 1000, foreach=True)))
    )
    assert "fused=True" in batched.fixes[0].text


def test_where_an_optimizer_can_fuse_its_update_that_is_recommended():
    offers = adam(65_000, 1000, foreach=False, fused=False)
    verdict = fired(optimizer.judge(snapshot(steps(seconds=0.04, optimizer=0.027), facts=offers)))
    fused, foreach = verdict.fixes
    assert "fused=True" in fused.text and fused.speedup == pytest.approx(2.2, rel=0.05)
    assert "foreach=True" in foreach.text and foreach.speedup == pytest.approx(1.4, rel=0.05)


def test_an_algorithm_of_torchs_that_cannot_be_batched_is_no_loss():
    for cuda in (False, True):
        lbfgs = adam(40_000, 6, own_optimizer=False, cuda=cuda)
        assert level(optimizer.judge(snapshot(steps(seconds=0.005, optimizer=0.0015), facts=lbfgs))) == 0


def test_in_how_many_operations_an_optimizer_of_the_users_own_updates_is_not_claimed():
    own = adam(60_000, 400, own_optimizer=True)
    verdict = fired(optimizer.judge(snapshot(steps(seconds=0.04, optimizer=0.027), facts=own)))
    assert "one by one" not in verdict.title
    assert "foreach=True" not in verdict.fixes[0].text and "_foreach_" in verdict.fixes[0].text


def update_seen(function, python):
    """Samples of the optimizer's line that end in this function of torch, a part of them in Python."""
    below = ((Frame(function=function, file="/x/site-packages/torch/optim/adam.py", line=544), 0.9),)
    lines = [
        line("main", 0.5 * part, phase="optimizer", activity=activity, below=below)
        for activity, part in (("python", python), ("native", 1.0 - python))
    ]
    return snapshot(phases=Phases(forward=0.2, backward=0.3, optimizer=0.5), lines=lines)


def test_without_the_hook_stacks_tell_how_an_update_is_made_and_what_a_fused_one_saves():
    small = fired(optimizer.judge(update_seen("_single_tensor_adam", 0.37)))
    large = fired(optimizer.judge(update_seen("_single_tensor_adam", 0.01)))
    assert 0.2 < large.share < 0.35 < small.share < 0.5, "where calls of operations are all of its time, most is lost"
    assert small.speedup_range[0] == pytest.approx(large.speedup_range[0], rel=0.1)
    fused, foreach = small.fixes
    assert "fused=True" in fused.text and fused.speedup > foreach.speedup and "foreach=True" in foreach.text
    batched = fired(optimizer.judge(update_seen("_multi_tensor_sgd", 0.2)))
    assert "many operations" in batched.title and "foreach=True" not in batched.fixes[1].text


def test_without_the_hook_a_fused_update_is_no_loss():
    assert level(optimizer.judge(update_seen("_fused_adam", 0.1))) == 0


def test_without_the_hook_an_update_that_cannot_be_fused_saves_what_foreach_does():
    batched = fired(optimizer.judge(update_seen("_single_tensor_rmsprop", 0.37)))
    fused = fired(optimizer.judge(update_seen("_single_tensor_adam", 0.37)))
    assert 0.1 < batched.share < fused.share and "foreach=True" in batched.fixes[0].text


def test_rows_of_embeddings_that_no_step_uses_need_no_update():
    slow = steps(seconds=0.02, optimizer=0.0106)
    known = adam(1_700_000, 11, foreach=False, fused=False, looked_up_parameters=1_680_000)
    first, *_ = fired(optimizer.judge(snapshot(slow, facts=known))).fixes
    assert "sparse=True" in first.text and first.speedup == pytest.approx(2.1, abs=0.05)
    for fields in ({"optimizers": ("SparseAdam", "Adam")}, {"looked_up_parameters": 400_000}):
        other = msgspec.structs.replace(known, **fields)
        fixes = fired(optimizer.judge(snapshot(slow, facts=other))).fixes
        assert not any("sparse" in fix.text for fix in fixes)


def test_denormal_numbers_are_why_an_update_takes_too_long():
    slow = steps(seconds=0.0078, optimizer=0.0046)
    verdict = fired(optimizer.judge(snapshot(slow, facts=adam(431_425, 6, foreach=False, fused=False, denormals=0.55))))
    assert verdict.subtype == "denormal" and "55 %" in " ".join(verdict.evidence)
    [flush] = verdict.fixes
    assert "set_flush_denormal" in flush.text
    assert flush.speedup == pytest.approx(1.71, rel=0.05), "measured by running fingerprints with it"


def test_denormal_numbers_slow_nothing_down_on_a_processor_that_takes_them_well():
    facts = adam(431_425, 6, foreach=False, fused=False, denormals=0.55)
    seen = snapshot(steps(seconds=0.0078, optimizer=0.0046), facts=facts)
    for slow, subtype in ((None, "denormal"), (True, "denormal"), (False, None)):
        machine = MachineSample(cores=2, slow_denormals=slow)
        host = HostSample(time=1.0, processes=(), machine=machine)
        assert fired(optimizer.judge(msgspec.structs.replace(seen, host=host))).subtype == subtype


def test_a_quick_update_is_not_slowed_by_the_denormal_numbers_in_its_state():
    quick = steps(seconds=0.0078, optimizer=0.0012)
    facts = adam(431_425, 6, foreach=False, fused=False, denormals=0.3)
    assert level(optimizer.judge(snapshot(quick, facts=facts))) < optimizer.judge.leave


def test_an_uncounted_optimizer_may_take_a_usual_share():
    usual = Phases(data_wait=0.0, forward=0.3, backward=0.4, optimizer=0.28, outside=0.02)
    assert level(optimizer.judge(snapshot(phases=usual))) < optimizer.judge.leave


def test_without_a_count_of_parameters_nothing_is_said_of_their_need():
    verdict = fired(optimizer.judge(snapshot(phases=Phases(forward=0.3, backward=0.3, optimizer=0.4))))
    assert "need" not in verdict.title


def test_what_a_crowded_machine_adds_to_an_update_is_not_the_optimizers():
    stock = adam(1_100_000, 6, foreach=False)
    assert level(optimizer.judge(snapshot(steps(seconds=0.7, optimizer=0.2), facts=stock))) < optimizer.judge.enter
    own = adam(1_100_000, 6)
    assert level(optimizer.judge(snapshot(steps(seconds=0.7, optimizer=0.2), facts=own))) > optimizer.judge.enter
