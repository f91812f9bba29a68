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
from hook_runs import Net, Rows, loader, train
from torch import nn
from torch.optim import optimizer as optim
from torch.utils.data import DataLoader

import aitop.hook
from aitop.hook import optimizer as optimizer_module
from aitop.hook import sampling as sampling_module
from aitop.hook import session as session_module
from aitop.hook.phases import wrap_forward
from aitop.protocol import events as at
from aitop.protocol import ring
from aitop.protocol.training import FORWARDS_WITHOUT_BACKWARD


def test_every_step_is_there_once_and_most_are_not_timed(fast):
    fast.until_it_counts()
    fast.steps(4000)
    records = fast.after()
    assert records[-1].index + 1 == fast.made == fast.journal.steps, "where the first began was not seen"
    assert [record.index for record in records] == list(range(1, fast.made))
    assert all(abs(one.end - (two.end - two.seconds)) < 1e-8 for one, two in pairwise(records))
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


def stall_batch(fast):
    fast.rows.stall = 0.2
    fast.steps(1)


def stall_model(fast):
    fast.net.pause = 0.2
    fast.steps(1)
    fast.net.pause = 0.0


def stall_outside(fast):
    time.sleep(0.2)
    fast.steps(1)


def evaluate(fast):
    with torch.no_grad():
        for _ in range(40):
            fast.net.pause = 0.005
            fast.net(torch.ones(4, 8))
        fast.net.pause = 0.0
    fast.steps(1)


@pytest.mark.parametrize(
    "stall, phase",
    [(stall_batch, "data_wait"), (stall_model, "forward"), (stall_outside, "prepare"), (evaluate, "evaluation")],
)
def test_of_the_first_long_step_among_counted_ones_the_length_is_known_and_of_the_next_the_phase(fast, stall, phase):
    fast.until_it_counts()
    began = time.monotonic()
    stall(fast)
    took = time.monotonic() - began
    first = max(fast.after(), key=lambda record: record.seconds)
    assert first.seconds == pytest.approx(took, abs=0.05) and first.estimated and first.index == fast.made - 6
    fast.steps(50)
    assert not fast.journal.counting, "steps are timed for a while after it"
    stall(fast)
    second = fast.after()[-6]
    assert second.seconds > 0.19 and not second.estimated and getattr(second, phase) > 0.19


def test_a_save(fast, tmp_path):
    fast.until_it_counts()
    torch.save([torch.zeros(500_000)], tmp_path / "model.pt")
    fast.steps(1)
    [saved] = [record for record in fast.after() if record.save]
    assert saved.index == fast.made - 6 and saved.estimated, "what came before it in its step was not seen"


def test_an_evaluation_of_a_loader(fast):
    fast.until_it_counts()
    fast.net.pause = 0.005
    with torch.no_grad():
        for rows, _ in loader(160):
            fast.net(rows)
    fast.net.pause = 0.0
    fast.steps(1)
    [evaluated] = [record for record in fast.after() if record.evaluation]
    assert evaluated.index == fast.made - 6
    assert evaluated.evaluation >= 40 * 0.005 > evaluated.forward, "forty forwards, and one"


def test_a_teacher_without_gradient_ends_no_counting(fast):
    teacher = Net()
    for _ in range(20000):
        rows, labels = next(fast.batches)
        with torch.no_grad():
            teacher(rows)
        fast.step(rows, labels)
        if fast.sampling.counted > 500:
            break
    assert fast.sampling.counted > 500


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
    assert not fast.watched.session.journal.counting
    left = hook_runs.patched_attributes()
    assert all(getattr(left[name], "__module__", "").split(".")[0] != "aitop" for name in ("next", "backward", "save"))
    assert left["net"] is None and left != with_hook and not left["pre"] and not left["post"]


def test_a_hook_that_nobody_wants_leaves_while_steps_are_counted(fast):
    fast.until_it_counts()
    fast.watched.session.ring._words[ring.W_CONTROL] = ring.CONTROL_LEAVE
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


def test_somebody_else_wraps_our_wrapper_while_steps_are_counted(fast):
    fast.until_it_counts()
    ours, called = torch.autograd._engine_run_backward, []

    def theirs(*args, **kwargs):
        called.append(1)
        return ours(*args, **kwargs)

    torch.autograd._engine_run_backward = theirs
    try:
        fast.sampling.over()
        records = fast.after(50)
        assert all(record.backward > 0 for record in records[-5:]) and len(called) == 50
        assert aitop.hook.remove() == "removed"
        assert torch.autograd._engine_run_backward is theirs
        fast.net(torch.ones(4, 8)).sum().backward()
        assert len(called) == 51
    finally:
        torch.autograd._engine_run_backward = ours.__wrapped__


def test_counting_replaces_nothing(fast):
    fast.steps(100)
    fast.watched.session.look(time.monotonic_ns())
    before = hook_runs.patched_attributes()
    for _ in range(3):
        fast.until_it_counts()
        assert hook_runs.patched_attributes() == before
        fast.sampling.over()
        assert hook_runs.patched_attributes() == before
    assert aitop.hook.remove() == "removed" and not optim._global_optimizer_pre_hooks


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


def test_another_threads_last_batch_does_not_end_it(fast):
    fast.until_it_counts()
    fast.journal.count_until += 10**12
    thread = threading.Thread(target=lambda: list(DataLoader(Stalling(4), batch_size=4)))
    thread.start()
    thread.join()
    assert fast.journal.counting
    fast.sampling.over()


def test_a_run_that_takes_no_step_any_more_is_looked_at_again(fast):
    fast.until_it_counts()
    until = time.monotonic() + 60
    with torch.no_grad():
        while fast.journal.counting and time.monotonic() < until:
            fast.net(torch.ones(4, 8))
    assert not fast.journal.counting


def test_a_run_that_becomes_slow_is_looked_after_at_once(fast):
    fast.until_it_counts()
    fast.read()
    fast.watched.ring.ask_to_leave()
    fast.net.pause = 0.15
    fast.steps(4)
    assert fast.watched.session.gone, "the first ends the counting, and the time that follows is over after the third"


class Serving:
    """A run of forwards only, with gradient or without; `records` are all of them so far."""

    def __init__(self, watched, monkeypatch, grad=False) -> None:
        monkeypatch.setattr(sampling_module, "FAST_TICKS", 2)
        self.watched, self.grad = watched, grad
        self.journal, self.sampling = watched.session.journal, watched.session.sampling
        self.net, self.rows = Net(), torch.ones(4, 8)
        self.made = 0
        self.records: list = []

    def forwards(self, count: int) -> None:
        with torch.set_grad_enabled(self.grad):
            for _ in range(count):
                self.net(self.rows)
                self.made += 1
                if self.made % 10000 == 1:
                    self.records += self.watched.ring.read(time.monotonic()).steps

    def until_it_counts(self) -> None:
        for _ in range(200_000):
            self.forwards(1)
            if self.journal.counting and self.journal.count_until - time.monotonic_ns() > 30_000_000:
                return
        raise AssertionError("it never counts")

    def after(self):
        self.records += self.watched.records()
        return self.records


@pytest.mark.parametrize("grad", [False, True])
def test_short_forwards_of_a_run_that_trains_nothing_are_mostly_counted_and_each_is_there(watched, monkeypatch, grad):
    serving = Serving(watched, monkeypatch, grad)
    serving.until_it_counts()
    assert serving.journal.counting == (at.FORWARD if grad else at.FORWARD_ALONE)
    # On a full machine a forward is often long, which ends the counting.
    until = time.monotonic() + 60
    while serving.sampling.forwards < 2000 and time.monotonic() < until:
        serving.forwards(100)
    serving.sampling.over()
    records = serving.after()
    unseen_first = FORWARDS_WITHOUT_BACKWARD + 1 if grad else 1
    assert records[-1].index == serving.made - unseen_first and {record.kind for record in records} == {"infer"}
    assert serving.sampling.forwards >= 2000
    counted = [record for record in records if record.estimated]
    assert counted and {record.samples for record in records[3:]} == {4} and all(record.forward for record in counted)
    assert watched.ring._header().steps == pytest.approx(serving.made, abs=20)


def test_a_long_forward_among_counted_ones_is_timed(watched, monkeypatch):
    serving = Serving(watched, monkeypatch)
    serving.until_it_counts()
    serving.net.pause = 0.2
    serving.forwards(1)
    serving.net.pause = 0.0
    assert not serving.journal.counting
    serving.forwards(20)
    long = max(serving.after(), key=lambda record: record.seconds)
    assert long.forward > 0.19 and not long.estimated


def test_a_long_wait_between_counted_forwards_is_none_of_theirs(watched, monkeypatch):
    serving = Serving(watched, monkeypatch)
    serving.until_it_counts()
    time.sleep(0.2)
    serving.forwards(20)
    long = max(serving.after(), key=lambda record: record.seconds)
    assert long.prepare > 0.19 and long.forward < 0.19 and not long.estimated


def test_a_batch_that_counted_forwards_wait_for_is_seen(watched, monkeypatch):
    serving = Serving(watched, monkeypatch)
    serving.until_it_counts()
    list(DataLoader(Rows(4, pause=0.05), batch_size=4))
    serving.forwards(20)
    long = max(serving.after(), key=lambda record: record.seconds)
    assert long.data_wait > 0.19 and long.forward < 0.19 and not long.estimated


def test_a_training_step_ends_the_counting_of_forwards(watched, monkeypatch):
    serving = Serving(watched, monkeypatch)
    serving.until_it_counts()
    optimizer = torch.optim.SGD(serving.net.parameters(), 1e-3)
    for _ in range(5):
        serving.net(serving.rows).sum().backward()
        optimizer.step()
        assert not serving.journal.counting
    trained = [record for record in serving.after() if record.kind == "train"]
    assert len(trained) == 4 and all(record.forward and record.backward and record.optimizer for record in trained)


def test_forwards_within_a_counted_one_are_none(watched, monkeypatch):
    serving = Serving(watched, monkeypatch)
    inner = serving.net

    class Outer(Net):
        def forward(self, rows):
            return super().forward(inner(rows)[:, :1].expand(4, 8))

    serving.net = Outer()
    serving.until_it_counts()
    before = serving.journal.forwards
    serving.forwards(10)
    assert not serving.journal.counting or serving.journal.forwards == before + 10


def test_forwards_whose_requests_are_measured_are_all_timed(watched, monkeypatch):
    serving = Serving(watched, monkeypatch)
    watched.session.journal.computed = lambda *args: None
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        serving.forwards(100)
    assert serving.journal.fast and not serving.sampling.forwards


def test_a_hook_that_nobody_wants_leaves_while_forwards_are_counted(watched, monkeypatch):
    serving = Serving(watched, monkeypatch)
    serving.until_it_counts()
    watched.ring.ask_to_leave()
    until = time.monotonic() + 60
    with torch.no_grad():
        while not watched.session.gone and time.monotonic() < until:
            serving.net(serving.rows)
    assert watched.session.gone and hook_runs.patched_attributes()["net"] is None


def test_counting_changes_no_result_of_a_forward(watched, monkeypatch):
    serving = Serving(watched, monkeypatch)
    with torch.no_grad():
        before = serving.net(serving.rows)
        serving.until_it_counts()
        assert torch.equal(serving.net(serving.rows), before)
