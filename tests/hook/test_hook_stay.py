"""Coming, staying and going: everything is put back, whoever ends it, and the run computes the same."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time

import pytest
import torch
import torch.utils.data.dataloader
from hook_runs import Net, Watched, loader, patched_attributes, train
from torch.optim.optimizer import register_optimizer_step_post_hook

import aitop.hook
from aitop.engine.hook_requests import take_out
from aitop.hook import patches as patches_module
from aitop.hook import session as session_module
from aitop.hook.measures import MEASURES
from aitop.sources.ring import reader as reader_module
from aitop.sources.ring.reader import HookRing, find_ring


def run_a_little():
    model = Net()
    train(model, loader(), torch.optim.SGD(model.parameters(), 0.1))


def is_open() -> bool:
    return any("aitop-hook" in link for link in links())


def links():
    for name in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue


@pytest.mark.usefixtures("unhooked")
class TestRemoval:
    def test_it_leaves_a_run_that_lives_in_the_closure_of_its_optimizer(self):
        before = patched_attributes()
        model = Net()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=20, tolerance_grad=0, tolerance_change=0)
        answers, asked = [], []

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(4, 8)).square().mean()
            loss.backward()
            asked.append(1)
            if len(asked) == 5:
                answers.append(aitop.hook.remove())
            return loss

        assert aitop.hook.install("attach") == "installed"
        optimizer.step(closure)
        assert answers == ["removed"] and len(asked) > 5
        assert patched_attributes() == before
        optimizer.step(closure)

    @pytest.mark.parametrize("registered_before", [True, False])
    def test_it_leaves_while_the_hooks_of_an_optimizer_run(self, registered_before):
        answers, later = [], []

        def register():
            register_here = register_optimizer_step_post_hook
            return [
                register_here(lambda *_: answers.append(aitop.hook.remove())),
                register_here(lambda *_: later.append(1)),
            ]

        before = patched_attributes()
        handles = register() if registered_before else []
        try:
            assert aitop.hook.install("attach") == "installed"
            handles = handles or register()
            run_a_little()
        finally:
            for handle in handles:
                handle.remove()
        assert answers[0] == "removed" and len(answers) == len(later) > 1, "the program's own hooks go on"
        run_a_little()
        assert len(answers) == len(later), "and are gone when it removes them"
        after = patched_attributes()
        assert all(after[name] is before[name] for name in before if registered_before or name != "post")
        sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks = before["post"]

    def test_everything_is_the_same_object_again(self):
        run_a_little()
        before, callbacks = patched_attributes(), list(gc.callbacks)
        for _ in range(3):
            assert aitop.hook.install("attach") == "installed"
            assert aitop.hook.install("attach") == "already"
            assert sys.modules["_aitop_hook"] is aitop.hook
            run_a_little()
            assert vars(Net).get("__call__") is not None
            assert aitop.hook.remove() == "removed"
            assert aitop.hook.remove() == "absent"
            after = patched_attributes()
            assert all(after[name] is before[name] for name in before) and list(gc.callbacks) == callbacks
            assert "_aitop_hook" not in sys.modules
            assert not is_open()
            assert find_ring(os.getpid()) is None

    def test_a_removal_that_was_interrupted_can_be_completed(self, monkeypatch):
        run_a_little()
        before = patched_attributes()
        aitop.hook.install("attach")
        run_a_little()
        restore = patches_module._restore

        def interrupted(patch):
            monkeypatch.setattr(patches_module, "_restore", restore)
            raise KeyboardInterrupt

        monkeypatch.setattr(patches_module, "_restore", interrupted)
        with pytest.raises(KeyboardInterrupt):
            aitop.hook.remove()
        assert patched_attributes() != before and not is_open()
        assert aitop.hook.remove() == "removed"
        assert patched_attributes() == before
        assert aitop.hook.remove() == "absent"

    def test_one_that_is_about_to_leave_makes_room_for_the_next(self):
        aitop.hook.install("attach")
        left = session_of()
        left.leave_soon()
        assert aitop.hook.install("attach") == "busy", "a new one brings its own code"
        assert left.gone and "_aitop_hook" not in sys.modules
        assert aitop.hook.install("attach") == "installed"

    def test_removed_before_anything_ran(self):
        before = patched_attributes()
        aitop.hook.install("attach")
        aitop.hook.remove()
        assert patched_attributes() == before

    def test_a_foreign_wrapper_stays_and_ours_only_forwards(self):
        run_a_little()
        aitop.hook.install("attach")
        ours, calls = torch.save, []

        def theirs(*args, **kwargs):
            calls.append(args)
            return ours(*args, **kwargs)

        saved = next(patch.original for patch in session_of()._patches._made if patch.name == "save")
        torch.save = theirs
        try:
            assert aitop.hook.remove() == "removed"
            assert torch.save is theirs
            import io

            buffer = io.BytesIO()
            torch.save(torch.zeros(2), buffer)
            assert calls and buffer.getvalue()
            assert aitop.hook.install("attach") == "installed"
            torch.save(torch.zeros(2), io.BytesIO())
            assert aitop.hook.remove() == "removed"
            assert torch.save is theirs
        finally:
            torch.save = saved

    def test_a_lease_that_ran_out_makes_the_hook_leave(self, monkeypatch):
        run_a_little()
        before = patched_attributes()
        monkeypatch.setattr(session_module, "LOOK_EVERY_NS", 0)
        monkeypatch.setattr(session_module, "TICK_EVERY_NS", 0)
        aitop.hook.install("attach")
        reader = HookRing(os.getpid())
        reader.renew()
        run_a_little()
        assert reader.state == "installed"
        monkeypatch.setattr(reader_module, "LEASE_SECONDS", 0.001)
        reader.renew()
        time.sleep(0.01)
        run_a_little()
        assert reader.state == "removed"
        assert patched_attributes() == before
        assert not [link for link in links() if "aitop-hook" in link][1:]  # only the reader's own
        reader.close()

    def test_the_last_monitor_out_ends_it(self, monkeypatch):
        monkeypatch.setattr(session_module, "LOOK_EVERY_NS", 0)
        monkeypatch.setattr(session_module, "TICK_EVERY_NS", 0)
        aitop.hook.install("attach")
        one, other = HookRing(os.getpid()), HookRing(os.getpid())
        with monkeypatch.context() as context:
            context.setattr(os, "getpid", lambda: 1)
            one.renew()
        other.renew()
        run_a_little()
        other.release()
        run_a_little()
        assert other.state == "installed"
        with monkeypatch.context() as context:
            context.setattr(os, "getpid", lambda: 1)
            one.release()
        run_a_little()
        assert one.state == "removed"
        one.close()
        other.close()

    def test_without_a_monitor_an_attached_hook_leaves_after_its_grace(self, monkeypatch):
        monkeypatch.setattr(session_module, "LOOK_EVERY_NS", 0)
        monkeypatch.setattr(session_module, "TICK_EVERY_NS", 0)
        aitop.hook.install("attach")
        run_a_little()
        assert not session_of().gone
        monkeypatch.setattr("aitop.hook.ring.GRACE_NS", 0)
        left = session_of()
        run_a_little()
        assert left.gone
        assert aitop.hook.remove() == "absent"

    def test_a_hook_that_came_with_the_program_stays_without_a_lease(self, monkeypatch):
        monkeypatch.setattr(session_module, "LOOK_EVERY_NS", 0)
        monkeypatch.setattr(session_module, "TICK_EVERY_NS", 0)
        monkeypatch.setattr("aitop.hook.ring.GRACE_NS", 0)
        aitop.hook.install("run")
        reader = HookRing(os.getpid())
        reader.renew()
        reader.release()
        run_a_little()
        assert reader.state == "installed"
        assert not take_out([os.getpid()]), "who asks is told that it stays"
        assert reader.state == "installed"
        assert aitop.hook.remove() == "removed"
        assert reader.state == "removed"
        reader.close()

    def test_asked_within_an_optimizer_step_it_leaves_at_once(self):
        class Asking(torch.optim.SGD):
            answer = None

            def step(self, closure=None):
                self.answer = self.answer or aitop.hook.remove()
                return super().step(closure)

        run_a_little()
        before = patched_attributes()
        aitop.hook.install("attach")
        left = session_of()
        model = Net()
        optimizer = Asking(model.parameters(), 0.1)
        train(model, loader(), optimizer)
        assert optimizer.answer == "removed"
        assert left.gone
        assert patched_attributes() == before

    def test_it_comes_into_a_run_that_lives_in_the_closure_of_its_optimizer(self):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=100, tolerance_grad=0, tolerance_change=0)
        watched, asked = [], []

        def closure():
            asked.append(1)
            if len(asked) == 5:
                watched.append(Watched())
            optimizer.zero_grad()
            loss = model(torch.ones(4, 8)).square().mean()
            loss.backward()
            return loss

        for _ in range(4):
            optimizer.step(closure)
        (watched,) = watched
        records = watched.records()
        assert [record.forwards for record in records[-2:]] == [len(asked) // 4] * 2
        assert watched.session._errors.number == 0
        watched.ring.close()

    def test_it_comes_in_while_the_hooks_of_an_optimizer_run(self):
        answers = []
        handle = register_optimizer_step_post_hook(lambda *_: answers.append(aitop.hook.install("attach")))
        try:
            run_a_little()
        finally:
            handle.remove()
        assert answers[0] == "installed" and set(answers[1:]) == {"already"}
        run_a_little()
        assert session_of()._errors.number == 0 and session_of()._steps

    def test_our_own_errors_do_not_reach_the_run(self, monkeypatch):
        watched = Watched()
        monkeypatch.setattr("aitop.hook.ring.Ring.write", lambda *args: 1 / 0)
        monkeypatch.setattr(session_module, "TICK_EVERY_NS", 0)
        left = watched.session
        run_a_little()
        assert left.gone
        watched.ring.close()


def session_of():
    return aitop.hook._session


def seeded_losses(disturb=None, optimizer_of=torch.optim.AdamW):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4))
    optimizer = optimizer_of(model.parameters(), 1e-2)
    losses = []
    for number, (rows, labels) in enumerate(loader(count=400, shuffle=True)):
        if disturb is not None:
            disturb(number)
        losses += train(model, [(rows / 400, labels)], optimizer)
    return losses


@pytest.mark.usefixtures("unhooked")
def test_losses_are_the_same_bit_for_bit():
    def come_and_go(number):
        if number % 3 == 0:
            assert aitop.hook.install("attach") == "installed"
        elif number % 3 == 2:
            assert aitop.hook.remove() == "removed"

    plain = seeded_losses()
    assert seeded_losses(come_and_go) == plain


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("kind", ["module", "in place", "function"])
def test_a_compiled_model_is_not_compiled_again(kind):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    called = model
    if kind == "module":
        called = torch.compile(model, backend="eager")
    elif kind == "in place":
        model.compile(backend="eager")
    else:
        called = torch.compile(lambda rows: model(rows), backend="eager")

    def counted():
        return (
            counters["stats"].get("unique_graphs", 0),
            counters["frames"].get("total", 0),
            sum(counters["graph_break"].values()),
        )

    train(called, loader(), optimizer)
    before = counted()
    assert before[0] >= 1
    watched = Watched()
    train(called, loader(), optimizer, times=2)
    records = watched.records()
    aitop.hook.remove()
    watched.ring.close()
    train(called, loader(), optimizer)
    assert counted() == before
    assert len(records) == 15
    if kind != "function":
        assert all(record.forwards == 1 for record in records)


@pytest.mark.usefixtures("unhooked")
def test_a_model_first_compiled_while_hooked():
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    watched = Watched()
    model = Net()
    compiled = torch.compile(model, backend="eager")
    train(compiled, loader(), torch.optim.SGD(model.parameters(), 0.1))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert all(record.forwards == 1 for record in watched.records())
    aitop.hook.remove()
    train(compiled, loader(), torch.optim.SGD(model.parameters(), 0.1))
    assert counters["stats"]["unique_graphs"] == 1
    watched.ring.close()


def test_the_measures_of_an_attached_hook_are_loaded_later(monkeypatch):
    aitop.hook.remove()
    monkeypatch.setattr(session_module, "TICK_EVERY_NS", 0)
    # Another test of this process may have imported a server.
    monkeypatch.setattr(session_module, "AT_ONCE", {})
    loaded = []

    def load(name):
        loaded.append(name)
        if name == "measures.flops":
            raise ImportError(name)
        return importlib.import_module(f"aitop.hook.{name}")

    assert aitop.hook.install("attach", load) == "installed"
    session = session_of()
    assert not loaded and not session.measures, "coming in is quick"
    run_a_little()
    assert loaded == [f"measures.{row.rpartition('.')[0]}" for row in MEASURES]
    assert len(session.measures) == len(MEASURES) - 1, "the hook goes on without one that fails"
    failing = next(measure for measure in session.measures if type(measure).__name__ == "Compiles")
    ended, over = [], failing.over
    monkeypatch.setattr(failing, "look", lambda now: 1 / 0)
    monkeypatch.setattr(failing, "over", lambda: ended.append(failing) or over())
    session.look(time.monotonic_ns())
    assert failing not in session.measures and ended == [failing], "what it did is undone"
    assert session._errors.number == 0, "a measure that fails takes nothing else along"
    assert aitop.hook.remove() == "removed" and ended == [failing]
