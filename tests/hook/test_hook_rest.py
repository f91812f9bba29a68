"""Rests of the hook in runs with short steps: what is counted, what ends them, and what leaves no trace."""

from __future__ import annotations

import gc
import os
import threading
import time
import types
import weakref
from itertools import pairwise

import hook_runs
import pytest
import torch
from fast_run import Fast
from hook_runs import Net, Rows, loader, train
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils.data import DataLoader

import aitop.hook
from aitop.hook import backward as backward_module
from aitop.hook import optimizers as optimizers_module
from aitop.hook import rest as rest_module
from aitop.hook import session as session_module
from aitop.hook.optimizers import before_nothing
from aitop.hook.patches import Patches
from aitop.hook.wrappers import wrap_forward


def test_every_step_is_counted_once_and_most_are_not_timed(fast):
    fast.steps(5000)
    records = fast.after()
    assert records[-1].index + 1 == fast.made == 5005 == fast.journal.steps, "where the first began was not seen"
    assert [record.index for record in records] == list(range(1, 5005))
    assert all(abs(one.end - (two.end - two.seconds)) < 1e-8 for one, two in pairwise(records))
    counted = sum(record.estimated for record in records)
    assert counted >= fast.rest.steps > 0
    assert {record.samples for record in records[5:]} == {4}
    assert fast.watched.ring._header().steps == 5005


def test_slow_runs_are_never_left_alone(watched, monkeypatch):
    monkeypatch.setattr(rest_module, "FAST_TICKS", 2)
    monkeypatch.setattr(rest_module, "REST_NS", 10**12)
    net = Net(pause=0.006)
    train(net, loader(4 * 60), torch.optim.SGD(net.parameters(), 1e-3))
    assert not watched.session.journal.resting and watched.session.rest.steps == 0
    assert not any(record.estimated for record in watched.records())


def test_a_run_that_has_just_begun_is_timed(watched):
    assert rest_module.FAST_TICKS >= 10
    net = Net()
    train(net, loader(4 * 200), torch.optim.SGD(net.parameters(), 1e-3))
    assert watched.session.rest.steps == 0


def test_a_stall_outside_of_every_phase(fast):
    fast.until_it_rests()
    began = time.monotonic()
    time.sleep(0.2)
    fast.steps(1)
    took = time.monotonic() - began
    stalled = max(fast.after(), key=lambda record: record.seconds)
    assert stalled.seconds == pytest.approx(took, abs=0.05) and stalled.index == fast.made - 6
    assert stalled.prepare > 0.19 and stalled.data_wait + stalled.forward + stalled.backward < stalled.prepare


def test_a_slow_batch(fast):
    fast.until_it_rests()
    fast.rows.stall = 0.2
    began = time.monotonic()
    fast.steps(1)
    took = time.monotonic() - began
    slow = max(fast.after(), key=lambda record: record.seconds)
    assert slow.seconds == pytest.approx(took, abs=0.05) and slow.data_wait > 0.19 and not slow.estimated
    assert slow.seconds - slow.data_wait < slow.data_wait and slow.index == fast.made - 6


def test_a_stall_in_the_model(fast):
    fast.until_it_rests()
    fast.net.pause = 0.2
    began = time.monotonic()
    fast.steps(1)
    took = time.monotonic() - began
    fast.net.pause = 0.0
    slow = max(fast.after(), key=lambda record: record.seconds)
    assert slow.seconds == pytest.approx(took, abs=0.05) and slow.estimated
    assert slow.data_wait + slow.prepare < slow.seconds / 4 and slow.forward and slow.backward and slow.optimizer


def test_a_save(fast, tmp_path):
    fast.until_it_rests()
    torch.save([torch.zeros(500_000)], tmp_path / "model.pt")
    fast.steps(1)
    [saved] = [record for record in fast.after() if record.save]
    assert saved.index == fast.made - 6 and not saved.estimated


@pytest.mark.parametrize("batches", [None, [torch.ones(4, 8)] * 40])
def test_an_evaluation(fast, batches):
    fast.until_it_rests()
    with torch.no_grad():
        for rows in batches or (rows for rows, _ in loader(160)):
            fast.net(rows)
    fast.steps(1)
    [evaluated] = [record for record in fast.after() if record.evaluation]
    assert evaluated.index == fast.made - 6 and not evaluated.estimated
    assert evaluated.evaluation > 4 * evaluated.forward, "forty forwards, and one"


def test_evaluations_of_many_batches_make_no_teacher(fast):
    fast.until_it_rests()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        with torch.no_grad():
            for _ in range(10):
                fast.net(torch.ones(4, 8))
        fast.steps(5)
        assert not fast.journal.teaches
    assert len([record for record in fast.after() if record.evaluation]) > 5


def test_a_teacher_without_gradient_ends_no_rest(fast):
    teacher = Net()
    plain = fast.net.forward

    def taught(rows):
        return plain(rows)

    fast.net.forward = taught
    for _ in range(20000):
        rows, labels = next(fast.batches)
        with torch.no_grad():
            teacher(rows)
        fast.step(rows, labels)
        if fast.rest.steps > 50:
            break
    assert fast.rest.steps > 50 and fast.journal.teaches


def test_several_optimizers_are_never_left_alone(watched, monkeypatch):
    monkeypatch.setattr(rest_module, "FAST_TICKS", 2)
    first, second = Net(), Net()
    optimizers = [torch.optim.SGD(net.parameters(), 1e-3) for net in (first, second)]
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        for net, optimizer in zip((first, second), optimizers, strict=True):
            net(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    assert watched.session.journal.fast and watched.session.rest.steps == 0


def test_the_end_of_the_epochs_is_seen_and_ends_no_count(watched, monkeypatch):
    monkeypatch.setattr(rest_module, "FAST_TICKS", 2)
    net, records = Net(), []
    for _ in range(12):
        train(net, loader(4 * 150), torch.optim.SGD(net.parameters(), 1e-3))
        records += watched.records()
    assert watched.session.rest.steps > 0
    assert records[-1].index == 1799 == len(records)
    assert sum(record.loader_start > 0 for record in records) >= 11


def test_leaving_during_a_rest_takes_everything_back_and_tells_the_count(fast):
    with_hook = hook_runs.patched_attributes()
    fast.until_it_rests()
    fast.read()
    assert aitop.hook.remove() == "removed"
    fast.read()
    assert fast.records[-1].index + 1 == fast.made
    assert fast.watched.session.journal.resting is False
    left = hook_runs.patched_attributes()
    assert all(getattr(left[name], "__module__", "").split(".")[0] != "aitop" for name in ("next", "backward", "save"))
    assert left["net"] is None and left != with_hook and not left["pre"] and not left["post"]


def test_a_hook_that_nobody_wants_leaves_although_it_rests(fast):
    fast.until_it_rests()
    fast.watched.session._ring._words[aitop.hook.layout.W_CONTROL] = aitop.hook.layout.CONTROL_LEAVE
    until = time.monotonic() + 60
    while not fast.watched.session.gone and time.monotonic() < until:
        fast.steps(1)
    assert fast.watched.session.gone and hook_runs.patched_attributes()["net"] is None


def test_a_burst_is_taken_from_a_run_that_rests(fast):
    fast.until_it_rests()
    fast.watched.ring.ask_for_burst(7, 3)
    until = time.monotonic() + 60
    while not (fast.watched.session._burst._fd >= 0 and not fast.watched.session._burst.active):
        fast.steps(1)
        assert time.monotonic() < until
    assert fast.watched.session._burst._state == 3, "a trace was made"
    records = fast.after(300)
    assert records[-1].index + 1 == fast.made


def test_rests_change_no_result(fast, unhooked=None):
    fast.steps(1500)
    assert fast.rest.steps > 0
    with_rests = [parameter.clone() for parameter in fast.net.parameters()]
    assert aitop.hook.remove() == "removed"
    again = Fast(fast.watched)
    again.read = lambda: None
    again.steps(1500)
    assert all(torch.equal(one, other) for one, other in zip(with_rests, again.net.parameters(), strict=True))


def test_a_child_that_was_forked_in_a_rest_writes_nothing(fast):
    fast.until_it_rests()
    written = fast.watched.session._ring.written
    child = os.fork()
    if not child:
        try:
            until = time.monotonic() + 0.4
            while time.monotonic() < until:
                fast.net(torch.ones(4, 8)).sum().backward()
                fast.optimizer.step()
            os._exit(int(fast.watched.session._ring.written != written))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_somebody_else_wraps_what_a_rest_has_uncovered(fast):
    fast.until_it_rests()
    ours, called = torch.autograd._engine_run_backward, []

    def theirs(*args, **kwargs):
        called.append(1)
        return ours(*args, **kwargs)

    torch.autograd._engine_run_backward = theirs
    try:
        assert "aitop/hook" not in ours.__code__.co_filename, "in a rest it is the original"
        records = fast.after(50)
        assert all(record.backward > 0 for record in records[-5:]) and len(called) == 50
        assert aitop.hook.remove() == "removed"
        assert torch.autograd._engine_run_backward is theirs
    finally:
        torch.autograd._engine_run_backward = ours


def test_one_that_was_wrapped_around_before_a_rest_is_not_wrapped_again_after_it(fast):
    ours = torch.autograd._engine_run_backward
    torch.autograd._engine_run_backward = theirs = lambda *args, **kwargs: ours(*args, **kwargs)
    try:
        for _ in range(3):
            fast.until_it_rests()
            assert torch.autograd._engine_run_backward is theirs
            fast.watched.session.rest.over()
            assert torch.autograd._engine_run_backward is theirs
    finally:
        torch.autograd._engine_run_backward = ours


def test_an_attribute_that_others_wrap_and_unwrap_all_the_time_keeps_little_alive(unhooked):
    patches, place = Patches(), types.SimpleNamespace(call=len)
    patches.put(place, "call", lambda original: lambda *args: original(*args))
    theirs = []
    for _ in range(20):
        assert patches.lift(place, "call") or place.call is len
        place.call = lambda *args: len(*args)
        theirs.append(weakref.ref(place.call))
        patches.lower(place, "call", lambda original: lambda *args: original(*args))
        assert place.call([1]) == 1
        place.call = len
    gc.collect()
    assert sum(ref() is not None for ref in theirs) <= 4
    patches.take_all_back()
    assert place.call is len


def test_nothing_is_called_before_steps_that_are_only_counted(fast):
    hooks = _global_optimizer_pre_hooks
    (key,) = hooks
    before = hooks[key]
    fast.until_it_rests()
    assert hooks == {key: before_nothing} and before is not before_nothing
    fast.watched.session.rest.over()
    assert hooks == {key: before}
    fast.until_it_rests()
    assert hooks == {key: before_nothing}
    assert aitop.hook.remove() == "removed" and not hooks


def test_what_compiled_code_may_have_looked_at_stays_as_it_is_in_a_rest(fast, monkeypatch):
    hooks, backward = _global_optimizer_pre_hooks, torch.autograd._engine_run_backward
    before = dict(hooks)
    for module in (optimizers_module, backward_module):
        monkeypatch.setattr(module, "compiles", lambda: True)
    # Or it changes over to where optimizers are seen from in programs that compile.
    monkeypatch.setattr(fast.watched.session._optimizers, "look", lambda: None)
    fast.until_it_rests()
    assert hooks == before and torch.autograd._engine_run_backward is backward


def test_where_a_program_began_to_compile_in_a_rest_steps_are_seen_from_elsewhere_after_it(fast, monkeypatch):
    fast.until_it_rests()
    monkeypatch.setattr(optimizers_module, "compiles", lambda: True)
    fast.watched.session.rest.over()
    assert not _global_optimizer_pre_hooks, "ours put back and taken out later were two more reasons to compile again"
    assert all(record.optimizer > 0 for record in fast.after(20)[-5:])


def test_what_an_interrupt_kept_out_comes_back_in(fast, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    fast.until_it_rests()
    fast.read()
    wrapper = next(made.wrapper for made in fast.watched.session._patches._made if "backward" in made.name)
    with monkeypatch.context() as patch:
        patch.setattr(fast.watched.session._patches, "lower", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fast.watched.session.rest.over()
    assert torch.autograd._engine_run_backward is not wrapper
    fast.watched.session._look_due = 0
    fast.watched.session.tick(time.monotonic_ns())
    assert torch.autograd._engine_run_backward is wrapper
    assert fast.after()[-1].index + 1 == fast.made, "nor was the count lost"


def test_another_thread_trains_on_where_the_first_one_was_lost_in_a_rest(fast, monkeypatch):
    monkeypatch.setattr(session_module, "NEW_OWNER_AFTER_NS", 10_000_000)
    fast.until_it_rests()
    net, made = Net(), fast.journal.steps

    def on():
        optimizer = torch.optim.SGD(net.parameters(), 1e-3)
        until = time.monotonic() + 60
        while fast.journal.steps < made + 20 and time.monotonic() < until:
            net(torch.ones(4, 8)).sum().backward()
            optimizer.step()

    thread = threading.Thread(target=on)
    thread.start()
    thread.join()
    assert fast.journal.steps >= made + 20


def test_a_batch_or_a_forward_of_another_thread_leaves_no_mark_on_a_rest(fast):
    fast.until_it_rests()
    fast.journal.rests_until += 10**12
    seen = []

    class Telling(Net):
        def forward(self, rows):
            seen.append(fast.journal.busy)
            return super().forward(rows)

    class TellingRows(Rows):
        def __getitem__(self, index):
            seen.append(fast.journal.busy)
            return super().__getitem__(index)

    def aside():
        next(iter(DataLoader(TellingRows())))
        wrap_forward(Telling.__call__, fast.watched.session)(Telling(), torch.ones(4, 8))

    thread = threading.Thread(target=aside)
    thread.start()
    thread.join()
    assert seen and not any(seen)
    fast.watched.session.rest.over()


def test_a_run_that_becomes_slow_is_looked_after_at_once(fast):
    fast.until_it_rests()
    fast.read()
    fast.watched.ring.ask_to_leave()
    fast.net.pause = 0.15
    fast.steps(4)
    assert fast.watched.session.gone, "the first ends the rest, and the time of the rest is over after the third"
