"""Runs with short steps, most of which are only counted: what is counted, what ends it, and what leaves no trace."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise

import hook_runs
import pytest
import torch
from fast_run import Fast, Stalling
from hook_runs import BACKWARD, Net, Rows, loader, train
from torch import nn
from torch.optim import optimizer as optim
from torch.utils.data import DataLoader

import aitop.hook
from aitop.hook import optimizer as optimizer_module
from aitop.hook import sampling as sampling_module
from aitop.hook import session as session_module
from aitop.hook.phases import wrap_forward


def test_every_step_is_there_once_and_most_are_not_timed(fast):
    fast.until_it_counts()
    fast.steps(4000)
    records = fast.after()
    assert records[-1].index + 1 == fast.made == fast.journal.steps, "where the first began was not seen"
    assert [record.index for record in records] == list(range(1, fast.made))
    assert all(abs(before.end - (after.end - after.seconds)) < 1e-8 for before, after in pairwise(records))
    counted = sum(record.estimated for record in records)
    assert counted >= fast.sampling.counted > 0
    assert {record.samples for record in records[5:]} == {4}
    assert fast.watched.ring._header().steps == fast.made


def test_slow_runs_are_never_left_alone(watched, monkeypatch):
    monkeypatch.setattr(sampling_module, "FAST_TICKS", 2)
    monkeypatch.setattr(sampling_module, "COUNT_NS", 10**12)
    net = Net(pause=0.006)
    train(net, loader(4 * 60), torch.optim.SGD(net.parameters(), 1e-3))
    assert not watched.session.journal.counting and watched.session.sampling.counted == 0
    assert not any(record.estimated for record in watched.records())


def test_a_run_that_has_just_begun_is_timed(watched):
    assert sampling_module.FAST_TICKS >= 10
    net = Net()
    train(net, loader(4 * 200), torch.optim.SGD(net.parameters(), 1e-3))
    assert watched.session.sampling.counted == 0


def test_a_stall_outside_of_every_phase(fast):
    fast.until_it_counts()
    began = time.monotonic()
    time.sleep(0.2)
    fast.steps(1)
    took = time.monotonic() - began
    stalled = max(fast.after(), key=lambda record: record.seconds)
    # A step lasts from the end of the one before, and where cores are busy its thread may be late to begin.
    assert 0.19 < stalled.seconds < 2 * took and stalled.index == fast.made - 6
    assert stalled.outside > 0.19 and stalled.data_wait + stalled.forward + stalled.backward < stalled.outside


def test_a_slow_batch(fast):
    fast.until_it_counts()
    fast.rows.stall = 0.2
    began = time.monotonic()
    fast.steps(1)
    took = time.monotonic() - began
    slow = max(fast.after(), key=lambda record: record.seconds)
    assert 0.19 < slow.seconds < 2 * took and slow.data_wait > 0.19 and not slow.estimated
    assert slow.seconds - slow.data_wait < slow.data_wait and slow.index == fast.made - 6


def test_a_stall_in_the_model(fast):
    fast.until_it_counts()
    fast.net.pause = 0.2
    began = time.monotonic()
    fast.steps(1)
    took = time.monotonic() - began
    fast.net.pause = 0.0
    slow = max(fast.after(), key=lambda record: record.seconds)
    assert 0.19 < slow.seconds < 2 * took
    assert slow.data_wait < slow.seconds / 4 and slow.forward and slow.backward and slow.optimizer


def test_a_save(fast, tmp_path):
    fast.until_it_counts()
    torch.save([torch.zeros(500_000)], tmp_path / "model.pt")
    fast.steps(1)
    [saved] = [record for record in fast.after() if record.save]
    assert saved.index == fast.made - 6 and not saved.estimated


@pytest.mark.parametrize("batches", [None, [torch.ones(4, 8)] * 40])
def test_an_evaluation(fast, batches):
    fast.until_it_counts()
    fast.net.pause = 0.005
    with torch.no_grad():
        for rows in batches or (rows for rows, _ in loader(160)):
            fast.net(rows)
    fast.net.pause = 0.0
    fast.steps(1)
    [evaluated] = [record for record in fast.after() if record.evaluation]
    assert evaluated.index == fast.made - 6 and not evaluated.estimated
    assert evaluated.evaluation >= 40 * 0.005 > evaluated.forward, "forty forwards, and one"


def test_evaluations_of_many_batches_make_no_teacher(fast):
    fast.until_it_counts()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        with torch.no_grad():
            for _ in range(10):
                fast.net(torch.ones(4, 8))
        fast.steps(5)
        assert not fast.journal.has_teacher
    assert len([record for record in fast.after() if record.evaluation]) > 5


def test_a_teacher_without_gradient_ends_no_counting(fast):
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
        if fast.sampling.counted > 50:
            break
    assert fast.sampling.counted > 50 and fast.journal.has_teacher


def test_several_optimizers_are_never_left_alone(watched, monkeypatch):
    monkeypatch.setattr(sampling_module, "FAST_TICKS", 2)
    first, second = Net(), Net()
    optimizers = [torch.optim.SGD(net.parameters(), 1e-3) for net in (first, second)]
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        for net, optimizer in zip((first, second), optimizers, strict=True):
            net(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    assert watched.session.journal.fast and watched.session.sampling.counted == 0


def test_the_end_of_the_epochs_is_seen_and_ends_no_count(watched, monkeypatch):
    monkeypatch.setattr(sampling_module, "FAST_TICKS", 2)
    net, records, epochs = Net(), [], 0
    # On a full machine it takes longer until steps are counted.
    while epochs < 12 or (not watched.session.sampling.counted and epochs < 100):
        train(net, loader(4 * 150), torch.optim.SGD(net.parameters(), 1e-3))
        records += watched.records()
        epochs += 1
    assert watched.session.sampling.counted > 0
    assert records[-1].index == 150 * epochs - 1 == len(records)
    assert sum(record.loader_start > 0 for record in records) >= epochs - 1


def test_leaving_while_steps_are_counted_takes_everything_back_and_tells_the_count(fast):
    with_hook = hook_runs.patched_attributes()
    fast.until_it_counts()
    fast.read()
    assert aitop.hook.remove() == "removed"
    fast.read()
    assert fast.records[-1].index + 1 == fast.made
    assert fast.watched.session.journal.counting is False
    left = hook_runs.patched_attributes()
    assert all(getattr(left[name], "__module__", "").split(".")[0] != "aitop" for name in ("next", "backward", "save"))
    assert left["net"] is None and left != with_hook and not left["pre"] and not left["post"]


def test_counting_does_not_begin_once_the_hook_is_about_to_leave(fast):
    fast.watched.session.leave_soon()
    fast.sampling.begin(time.monotonic_ns(), 1)
    assert not fast.journal.counting and not fast.journal.count_soon


def leave_without_lease(fast, monkeypatch):
    """Have the hook leave at its next look, as one that came by attach and has no lease."""
    monkeypatch.setattr("aitop.hook.ring.GRACE_NS", 0)
    fast.watched.session.stays = False


def test_a_hook_that_nobody_wants_leaves_while_steps_are_counted(fast, monkeypatch):
    fast.until_it_counts()
    leave_without_lease(fast, monkeypatch)
    until = time.monotonic() + 60
    while not fast.watched.session.gone and time.monotonic() < until:
        fast.steps(1)
    assert fast.watched.session.gone and hook_runs.patched_attributes()["net"] is None


def test_a_burst_is_taken_from_a_run_whose_steps_are_counted(fast):
    fast.until_it_counts()
    fast.watched.ring.ask_for_burst(7, 3)
    until = time.monotonic() + 60
    while not (fast.watched.session.burst._fd >= 0 and not fast.watched.session.burst.active):
        fast.steps(1)
        assert time.monotonic() < until
    assert fast.watched.session.burst._state == 3, "a trace was made"
    records = fast.after(300)
    assert records[-1].index + 1 == fast.made


def test_counting_changes_no_result(fast):
    fast.until_it_counts()
    fast.steps(100)
    with_counting = [parameter.clone() for parameter in fast.net.parameters()]
    assert aitop.hook.remove() == "removed"
    again = Fast(fast.watched)
    again.read = lambda: None
    again.steps(fast.made)
    assert all(torch.equal(one, other) for one, other in zip(with_counting, again.net.parameters(), strict=True))


def test_a_child_that_was_forked_while_steps_are_counted_writes_nothing(fast):
    fast.until_it_counts()
    written = fast.watched.session.ring.written
    child = os.fork()
    if not child:
        try:
            until = time.monotonic() + 0.4
            while time.monotonic() < until:
                fast.net(torch.ones(4, 8)).sum().backward()
                fast.optimizer.step()
            os._exit(int(fast.watched.session.ring.written != written))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("counting", [True, False])
def test_somebody_else_wraps_the_backward(fast, counting):
    torchs = getattr(torch.autograd, BACKWARD).__wrapped__
    if counting:
        fast.until_it_counts()
    wrapped, called = getattr(torch.autograd, BACKWARD), []

    def theirs(*args, **kwargs):
        called.append(1)
        return wrapped(*args, **kwargs)

    setattr(torch.autograd, BACKWARD, theirs)
    try:
        fast.sampling.over()
        records = fast.after(50)
        assert all(record.backward > 0 for record in records[-5:]) and len(called) == 50
        fast.until_it_counts()
        del called[50:]
        assert aitop.hook.remove() == "removed"
        assert getattr(torch.autograd, BACKWARD) is theirs
        fast.net(torch.ones(4, 8)).sum().backward()
        assert len(called) == 51
    finally:
        setattr(torch.autograd, BACKWARD, torchs)


def test_counting_takes_out_only_what_times_the_backward_and_the_optimizer(fast):
    fast.steps(100)
    fast.watched.session.look(time.monotonic_ns())
    fast.sampling.over()
    timing = hook_runs.patched_attributes()
    for _ in range(3):
        fast.until_it_counts()
        counting = hook_runs.patched_attributes()
        assert {name for name in timing if counting[name] is not timing[name]} == {"backward", "pre"}
        assert counting["backward"] is timing["backward"].__wrapped__ and not counting["pre"]
        fast.sampling.over()
        again = hook_runs.patched_attributes()
        assert again.pop("backward").__wrapped__ is counting["backward"]
        assert all(again[name] is timing[name] for name in again)
    assert aitop.hook.remove() == "removed" and not optim._global_optimizer_pre_hooks


def test_a_hook_of_the_programs_own_that_comes_while_steps_are_counted(fast):
    fast.until_it_counts()
    called = []
    handle = optim.register_optimizer_step_pre_hook(lambda *_: called.append(1))
    fast.sampling.over()
    assert all(record.optimizer > 0 for record in fast.after(20)[-5:])
    assert len(called) == 20
    assert aitop.hook.remove() == "removed"
    fast.steps(1)
    handle.remove()
    fast.steps(1)
    assert len(called) == 21 and not optim._global_optimizer_pre_hooks


def test_where_a_program_began_to_compile_meanwhile_steps_are_seen_from_elsewhere_after_it(fast, monkeypatch):
    fast.until_it_counts()
    monkeypatch.setattr(optimizer_module, "compiles", lambda: True)
    fast.sampling.over()
    fast.watched.session.look(time.monotonic_ns())
    assert not optim._global_optimizer_pre_hooks
    assert all(record.optimizer > 0 for record in fast.after(20)[-5:])


def test_a_new_epoch_ends_the_counting_and_it_begins_again(fast):
    fast.until_it_counts()
    fast.batches = iter(DataLoader(Stalling(4 * 10**6), batch_size=4))
    assert not fast.journal.counting
    [begun] = [record for record in fast.after() if record.loader_start][-1:]
    assert begun.index == fast.made - 5
    fast.until_it_counts()


def test_the_last_batch_ends_the_counting(fast):
    batches = iter(DataLoader(Stalling(8), batch_size=4))
    fast.until_it_counts()
    # However late this thread gets a core.
    fast.journal.longest = 10**12
    assert len([next(batches), next(batches)]) == 2 and fast.journal.counting
    with pytest.raises(StopIteration):
        next(batches)
    assert not fast.journal.counting


def test_counting_is_over_after_a_while_though_no_step_ends(fast):
    fast.until_it_counts()
    fast.journal.longest = 10**12
    until = time.monotonic() + 60
    while fast.journal.counting and time.monotonic() < until:
        next(fast.batches)
    assert not fast.journal.counting and time.monotonic_ns() >= fast.journal.count_until


class Frozen(nn.Module):
    """Calls parts of the root's class without gradient. `counting`: whether a call left the counting going on."""

    def __init__(self, journal) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU()))
        self.journal = journal
        self.counting: list[bool] = []

    def forward(self, rows):
        counting = self.journal.counting
        with torch.no_grad():
            for _ in range(3):
                rows = self.inner(rows)
        if counting:
            self.counting.append(self.journal.counting)
        return rows


def test_a_frozen_part_of_the_model_is_no_evaluation_and_ends_no_counting(fast):
    frozen = Frozen(fast.journal)
    fast.net = nn.Sequential(frozen, nn.Linear(8, 4))
    fast.optimizer = torch.optim.SGD(fast.net.parameters(), 1e-3)
    fast.until_it_counts()
    fast.journal.longest = 10**12
    fast.steps(20)
    assert len(frozen.counting) >= 20 and all(frozen.counting)
    records = fast.after()
    assert not any(record.evaluation for record in records)
    assert records[-1].index + 1 == fast.made


def test_another_thread_trains_on_where_the_first_one_was_lost_meanwhile(fast, monkeypatch):
    monkeypatch.setattr(session_module, "NEW_OWNER_AFTER_NS", 10_000_000)
    fast.until_it_counts()
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


def test_a_batch_or_a_forward_of_another_thread_leaves_no_mark(fast):
    fast.until_it_counts()
    fast.journal.count_until += 10**12
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
    fast.watched.session.sampling.over()


@pytest.fixture
def calm(fast):
    """A fast run in which nothing rare has happened for long: batches and forwards are passed on without a look."""
    for _ in range(50):
        fast.sampling._look_until = 0
        fast.until_it_counts()
        if fast.journal.passes:
            return fast
        # A step that the machine made long has it look again.
        fast.sampling.over()
    raise AssertionError("it is never calm")


def test_every_step_of_a_calm_run_is_there_once(calm):
    calm.steps(3000)
    records = calm.after()
    assert [record.index for record in records] == list(range(records[0].index, calm.made))
    assert all(abs(before.end - (after.end - after.seconds)) < 1e-8 for before, after in pairwise(records))


def test_of_a_slow_batch_in_a_calm_run_only_the_length_of_its_step_is_known_and_the_next_one_is_seen(calm):
    for known in (False, True):
        if known:
            calm.until_it_counts()
        calm.rows.stall = 0.2
        began = time.monotonic()
        calm.steps(1)
        took = time.monotonic() - began
        slow = max(calm.after()[-8:], key=lambda record: record.seconds)
        # A step lasts from the end of the one before, and where cores are busy its thread may be late to begin.
        assert 0.19 < slow.seconds < 2 * took
        assert (slow.data_wait > 0.19 and not slow.estimated) is known


def test_the_second_evaluation_of_a_calm_run_is_seen(calm):
    for known in (False, True):
        if known:
            calm.until_it_counts()
        with torch.no_grad():
            for rows, _ in loader(160):
                calm.net(rows)
        calm.steps(1)
        assert any(record.evaluation for record in calm.after()[-8:]) or not known


def test_the_last_batch_ends_the_counting_of_a_calm_run(calm):
    batches = iter(DataLoader(Stalling(8), batch_size=4))
    calm.until_it_counts()
    with pytest.raises(StopIteration):
        for _ in range(3):
            next(batches)
    assert not calm.journal.counting and not calm.journal.passes


def test_torch_is_asked_of_few_forwards_of_a_calm_run_and_of_no_optimizer(calm, monkeypatch):
    session, asked, optimizer = calm.watched.session, [], object()
    for name, answer in (("grad_enabled", True), ("compiling", False)):
        monkeypatch.setattr(session, name, lambda name=name, answer=answer: asked.append(name) or answer)
    forward = wrap_forward(lambda *args: None, session)
    before, _ = optimizer_module.optimizer_hooks(session)
    calm.journal.passes = 200
    for _ in range(100):
        forward(None)
    assert 10 < asked.count("grad_enabled") < 30
    asked.clear()
    before(optimizer, (optimizer,), {})
    assert not asked
    calm.sampling.over()


def test_another_threads_last_batch_does_not_end_it(calm):
    calm.journal.count_until += 10**12
    thread = threading.Thread(target=lambda: list(DataLoader(Stalling(4), batch_size=4)))
    thread.start()
    thread.join()
    assert calm.journal.counting
    calm.sampling.over()


def test_a_frozen_part_ends_the_calm_and_is_no_evaluation(calm):
    frozen = Frozen(calm.journal)
    calm.net = nn.Sequential(frozen, nn.Linear(8, 4))
    calm.optimizer = torch.optim.SGD(calm.net.parameters(), 1e-3)
    calm.until_it_counts()
    calm.steps(20)
    assert not calm.journal.passes
    records = calm.after()
    assert not any(record.evaluation for record in records)
    assert records[-1].index + 1 == calm.made


def test_a_calm_run_that_takes_no_step_any_more_is_looked_at_again(calm):
    until = time.monotonic() + 60
    while calm.journal.counting and time.monotonic() < until:
        next(calm.batches)
    assert not calm.journal.counting


def test_a_run_that_becomes_slow_is_looked_after_at_once(fast, monkeypatch):
    fast.until_it_counts()
    fast.read()
    leave_without_lease(fast, monkeypatch)
    fast.net.pause = 0.15
    fast.steps(4)
    assert fast.watched.session.gone, "the first ends the counting, and the time that follows is over after the third"
