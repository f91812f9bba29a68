"""What else looks at torch's functions while the hook is in: tracers, interrupts, captures, threads, curious people."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import pickle
import signal
import threading
import time
import warnings
import weakref

import pytest
import torch
from hook_runs import Net, Rows, Watched, loader, train
from torch import fx, nn
from torch.utils.data import DataLoader

import aitop.hook
from aitop.hook import session as session_module
from aitop.hook.errors import raise_if_of_program
from aitop.hook.phases import leading


class Own(Net):
    """Calls itself, as those do who want their types checked."""

    def __call__(self, rows):
        return super().__call__(rows)


class Heir(Own):
    pass


def run_a_little(model=None):
    model = model or Net()
    train(model, loader(), torch.optim.SGD(model.parameters(), 0.1))


def test_stand_ins_look_like_what_they_stand_for(unhooked):
    originals = {name: inspect.signature(function) for name, function in (("save", torch.save),)}
    aitop.hook.install("attach")
    run_a_little()
    assert inspect.signature(torch.save) == originals["save"]
    assert torch.save.__name__ == "save" and torch.save.__doc__
    assert inspect.unwrap(vars(Net)["__call__"]) is inspect.unwrap(nn.Module.__call__)
    assert "def save" in inspect.getsource(torch.save)


def test_a_wrapper_in_the_class_of_a_root_is_found_by_its_name_so_that_cloudpickle_can_refer_to_it(unhooked):
    class Other(Net):
        pass

    original = nn.Module.__call__
    aitop.hook.install("attach")
    for model in (Net(), Other(), nn.Linear(8, 4)):
        run_a_little(model)
        roots = [root for root in (Net, Other, nn.Linear) if "__call__" in vars(root)]
        assert roots
        for root in roots:
            wrapper = vars(root)["__call__"]
            assert wrapper is not original
            assert pickle.loads(pickle.dumps(wrapper)) is wrapper
            assert inspect.unwrap(wrapper) is inspect.unwrap(original)
    aitop.hook.remove()
    # What another process would find.
    assert pickle.loads(pickle.dumps(original)) is original
    assert "__call__" not in vars(Net)


def test_a_root_with_a_call_of_its_own_whose_heir_is_met_first(unhooked):
    aitop.hook.install("attach")
    heir, own = Heir(), Own()
    for model in (heir, own):
        model(torch.zeros(4, 8))
    run_a_little(own)
    assert inspect.unwrap(vars(Own)["__call__"]) is not vars(Own)["__call__"], "it is wrapped"
    for model in (heir, own):
        assert model(torch.zeros(4, 8)).shape == (4, 4)


def test_a_class_that_is_pickled_by_value_keeps_a_call_of_its_own(unhooked):
    """Such as one of the main script, or of a function: cloudpickle would meet our wrapper, and all that it holds."""

    class Local(Net):
        def __call__(self, rows):
            return super().__call__(rows)

    own = vars(Local)["__call__"]
    aitop.hook.install("attach")
    for _ in range(3):
        run_a_little(Local())
    assert vars(Local)["__call__"] is own


def test_of_a_batch_of_numbers_not_all_are_looked_at():
    rows = torch.zeros(4, 8)
    assert leading(([0] * 10 + [rows],), None, torch.Tensor) == 4
    assert leading(([0] * 10_000 + [rows],), None, torch.Tensor) == -1
    assert leading((*[0] * 100, rows), {}, torch.Tensor) == 4, "arguments are few, whatever their order"


def test_a_tracer_of_fx_sees_modules_of_a_roots_class(unhooked):
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, rows):
            return self.layer(rows)

    def traced():
        return [(node.op, str(node.target)) for node in fx.symbolic_trace(Outer()).graph.nodes]

    before = traced()
    watched = Watched()
    layer = nn.Linear(8, 4)
    train(layer, loader(), torch.optim.SGD(layer.parameters(), 0.1))
    assert "__call__" in vars(nn.Linear), "the root is of a class that tracers take for a leaf"
    assert traced() == before
    watched.session.journal.skip = 100
    assert traced() == before, "in a fast run too"
    watched.session.sampling.begin(time.monotonic_ns(), 0)
    assert traced() == before and watched.session.journal.counting
    watched.ring.close()


def test_forwards_are_seen_of_a_run_that_was_being_traced_when_the_hook_came_in(unhooked):
    class Outer(nn.Module):
        def forward(self, rows):
            seen.append(Watched())
            return rows + 1

    seen: list[Watched] = []
    fx.symbolic_trace(Outer())
    (watched,) = seen
    run_a_little()
    assert any(record.forwards for record in watched.records())
    watched.ring.close()


def test_a_trace_of_jit_while_roots_are_looked_for_records_nothing_of_ours(unhooked):
    model = Net()
    own = str(torch.jit.trace(model, torch.zeros(4, 8)).inlined_graph).count("aten::")
    watched = Watched()
    assert watched.session._roots.watching
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.simplefilter("error", torch.jit.TracerWarning)
        graph = str(torch.jit.trace(model, torch.zeros(4, 8)).inlined_graph)
    assert graph.count("aten::") == own
    run_a_little(model)
    assert not watched.session.gone and any(record.forwards for record in watched.records())
    watched.ring.close()


def test_a_trace_of_jit_records_nothing_of_ours(watched):
    model = Net()
    run_a_little(model)
    watched.session.journal.skip = 0
    graph = str(torch.jit.trace(model, torch.zeros(4, 8)).inlined_graph)
    aitop.hook.remove()
    assert graph.count("aten::") == str(torch.jit.trace(model, torch.zeros(4, 8)).inlined_graph).count("aten::")


@pytest.mark.parametrize("place", ["forward", "next", "backward"])
def test_an_interrupt_leaves_nothing_behind(watched, place):
    class Interrupted(Net):
        at = -1

        def forward(self, rows):
            self.at += 1
            if place == "forward" and self.at == 2:
                raise KeyboardInterrupt
            out = super().forward(rows)
            if place == "backward" and self.at == 2:
                out.register_hook(lambda grad: (_ for _ in ()).throw(KeyboardInterrupt()))
            return out

    class Rows(torch.utils.data.Dataset):
        asked = 0

        def __len__(self):
            return 32

        def __getitem__(self, index):
            Rows.asked += 1
            if place == "next" and Rows.asked == 10:
                raise KeyboardInterrupt
            return torch.zeros(8), 0

    model = Interrupted()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(KeyboardInterrupt):
        train(model, torch.utils.data.DataLoader(Rows(), batch_size=4), optimizer)
    assert not watched.session.journal.busy
    train(model, loader(), optimizer)
    assert all(record.forwards for record in watched.records()[-7:])


def test_iterators_are_forgotten_when_they_are_gone(watched):
    iterator = iter(loader())
    next(iterator)
    known = watched.session.iterators
    assert id(iterator) in known
    del iterator
    gc.collect()
    assert not known
    optimizer = torch.optim.SGD(Net().parameters(), 0.1)
    optimizer.step()
    del optimizer
    gc.collect()
    assert not watched.session.optimizers


def test_the_cuda_of_a_thread_that_captures_is_left_alone(watched, monkeypatch):
    class Event:
        asked = 0

        def __init__(self, enable_timing):
            pass

        def record(self):
            Event.asked += 1

        def query(self):
            Event.asked += 1
            return False

    class Graph:
        def capture_begin(self, fails=False):
            if fails:
                raise RuntimeError("no capture")

        def capture_end(self):
            pass

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr("aitop.hook.measures.device.allocators", lambda torch: [])
    monkeypatch.setattr("aitop.hook.measures.device.ALWAYS_ABOVE_NS", 0)
    watched.session.look(time.monotonic_ns())
    graph = Graph()
    elsewhere = threading.Thread(target=graph.capture_begin)
    elsewhere.start()
    elsewhere.join()
    before = Event.asked
    run_a_little()
    watched.records()
    assert Event.asked == before
    graph.capture_end()
    with pytest.raises(RuntimeError):
        graph.capture_begin(fails=True)
    run_a_little()
    assert Event.asked > before


def test_a_removal_in_the_midst_of_coming_in(unhooked, monkeypatch):
    from hook_runs import patched_attributes

    run_a_little()
    before, callbacks = patched_attributes(), list(gc.callbacks)
    original = session_module.phases.wrap_save

    def removed_meanwhile(*args):
        assert aitop.hook.remove() == "removed"
        return original(*args)

    monkeypatch.setattr(session_module.phases, "wrap_save", removed_meanwhile)
    assert aitop.hook.install("attach") == "busy"
    assert patched_attributes() == before
    assert list(gc.callbacks) == callbacks
    monkeypatch.undo()
    assert aitop.hook.install("attach") == "installed"


def test_what_a_signal_handler_raises_within_the_hook_goes_on_to_the_program(watched, monkeypatch):
    class Late(Exception):
        pass

    def ring(number, frame):
        raise Late

    def disturbed(now):
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        monkeypatch.setattr(watched.session, "_send", disturbed)
        with pytest.raises(Late):
            watched.session.tick(time.monotonic_ns())
        assert watched.session._errors.number == 0
        monkeypatch.setattr(watched.session, "_send", lambda now: 1 / 0)
        watched.session.tick(time.monotonic_ns())
        assert watched.session._errors.number == 1, "an error of the hook's own does not"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_a_signal_handler_raises_while_the_hook_leaves_goes_on_to_the_program(watched, monkeypatch):
    class Late(Exception):
        pass

    def ring(number, frame):
        raise Late

    measure = watched.session.measures[-1]
    monkeypatch.setattr(measure, "over", lambda: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        watched.session.leave_soon()
        with pytest.raises(Late):
            run_a_little()
        assert watched.ring.state == "removed", "the rest is undone"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_only_one_thread_ticks_at_a_time(watched, monkeypatch):
    session, entered, goes_on, ticks = watched.session, threading.Event(), threading.Event(), []

    def send(now):
        ticks.append(now)
        if now == 2:
            entered.set()
            goes_on.wait(10)

    other = threading.Thread(target=lambda: session.tick(2))

    def traced():
        # Threads switch at calls: here the other one begins to tick.
        if threading.current_thread() is not other:
            other.start()
            entered.wait(10)

    monkeypatch.setattr(session, "_send", send)
    monkeypatch.setattr(session, "traced", traced)
    session.tick(1)
    goes_on.set()
    other.join()
    assert ticks == [2]


def test_the_arguments_of_a_trace_of_jit_in_another_thread_are_not_looked_at(watched, monkeypatch):
    run_a_little()
    watched.session.trains_until, looked_at = 0, []
    monkeypatch.setattr(session_module.phases, "leading", lambda *args: looked_at.append(args) or -1)

    def in_thread(call):
        thread = threading.Thread(target=torch.no_grad()(call))
        thread.start()
        thread.join()

    model = Net()
    in_thread(lambda: torch.jit.trace(model, torch.zeros(4, 8), check_trace=False))
    assert not looked_at
    in_thread(lambda: model(torch.zeros(4, 8)))
    assert len(looked_at) == 1


@pytest.mark.parametrize("kind", ["partial", "object", "method"])
def test_every_kind_of_signal_handler_is_one_and_its_error_keeps_nothing_alive(kind):
    class Late(Exception):
        pass

    class Rings:
        def __call__(self, number, frame):
            raise Late

        def ring(self, number, frame):
            raise Late

    class Held:
        pass

    handlers = {"partial": functools.partial(Rings.ring, None), "object": Rings(), "method": Rings().ring}
    before = signal.signal(signal.SIGUSR1, handlers[kind])
    gc.disable()
    try:
        held = Held()
        alive = weakref.ref(held)

        def hooked(held):
            try:
                signal.raise_signal(signal.SIGUSR1)
            except Exception:
                raise_if_of_program()
            return held

        with contextlib.suppress(Late):
            hooked(held)
            pytest.fail("it was taken for the hook's own")
        del held
        assert alive() is None, "no cycle keeps the frames of the error"
    finally:
        gc.enable()
        signal.signal(signal.SIGUSR1, before)


def test_exceptions_pass_untouched(watched):
    class Broken(Net):
        def forward(self, rows):
            raise LookupError("the user's own")

    class BrokenRows(Rows):
        def __getitem__(self, index):
            raise OverflowError("also the user's")

    with pytest.raises(LookupError, match="the user's own"):
        Broken()(torch.zeros(1, 8))
    with pytest.raises(OverflowError):
        next(iter(DataLoader(BrokenRows())))
    with pytest.raises(RuntimeError):
        torch.zeros(1).backward()
    with pytest.raises(StopIteration):
        next(iter(loader(count=0)))
    model = Net()
    train(model, loader(), torch.optim.SGD(model.parameters(), 0.1))
    assert len(watched.records()) == 7
    assert aitop.hook._session._errors.number == 0


class Deep(nn.Module):
    """Calls more modules than a watch for roots has to see; `between(number)` is called ahead of each."""

    def __init__(self, between):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(8, 8) for _ in range(12)])
        self.between = between

    def forward(self, rows):
        for number, part in enumerate(self.parts):
            self.between(number)
            rows = part(rows)
        return rows


class Holding(nn.Module):
    """Has no parameters, and calls a model that it does not register."""

    def __init__(self, model):
        super().__init__()
        self.models = [model]

    def forward(self, rows):
        return self.models[0](rows)


@pytest.mark.parametrize("called_in", ["this thread", "another thread"])
def test_parts_of_a_model_that_is_called_already_are_no_roots(unhooked, called_in):
    """The hook may come in at any moment, and as likely as not a server computes."""

    def come_in(number):
        if number == 2 and aitop.hook._session is None:
            if called_in == "this thread":
                aitop.hook.install("attach")
            else:
                thread = threading.Thread(target=aitop.hook.install, args=("attach",))
                thread.start()
                thread.join()

    model = Deep(come_in)
    with torch.no_grad():
        for _ in range(5):
            model(torch.zeros(1, 8))
    session = aitop.hook._session
    session.look(time.monotonic_ns())
    assert session._roots._classes == [Deep]


@pytest.mark.parametrize("owned", [True, False], ids=["the stepping thread", "a thread beside it"])
def test_parts_of_a_model_that_is_called_for_an_earlier_hook_are_no_roots(unhooked, owned):
    """Its wrappers have the same code."""
    changes = [2]

    def change(number):
        if number in changes:
            changes.remove(number)
            aitop.hook.remove()
            come_in()

    def come_in():
        aitop.hook.install("attach")
        if not owned:
            aitop.hook._session.journal.owner = 1

    model = Deep(change)
    come_in()
    with torch.no_grad():
        for _ in range(5):
            model(torch.zeros(1, 8))
    aitop.hook._session.look(time.monotonic_ns())
    assert aitop.hook._session._roots._classes == [Deep]


def test_a_model_within_a_module_without_parameters_is_a_root_at_once(unhooked):
    aitop.hook.install("attach")
    holding = Holding(Net())
    with torch.no_grad():
        for _ in range(3):
            holding(torch.zeros(4, 8))
    assert aitop.hook._session._roots._classes == [Net]
