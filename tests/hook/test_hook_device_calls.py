"""Copies to a device and waits for it. There is none here: float64 stands for being on it, so what moves and what is
asked is real, and only the place is not.
"""

from __future__ import annotations

import inspect
import threading
import time
from functools import partial
from operator import attrgetter
from types import SimpleNamespace

import pytest
import torch
from hook_runs import Net

import aitop.hook
from aitop.hook.measures import callsites, device_calls
from aitop.hook.session import Session

METHODS = tuple(name for name in (*device_calls.COPIES, *device_calls.WAITS) if name != "__repr__")


def own_methods() -> set[str]:
    return {name for name in METHODS if name in vars(torch.Tensor)}


OWN_BEFORE = own_methods()
REPR_BEFORE = vars(torch.Tensor)["__repr__"]


def measure_of(session) -> device_calls.DeviceCalls:
    return next(measure for measure in session.measures if isinstance(measure, device_calls.DeviceCalls))


@pytest.fixture
def far(monkeypatch, unhooked):
    monkeypatch.setattr(device_calls, "device_in_use", lambda torch: lambda tensor: tensor.dtype is torch.float64)


@pytest.fixture
def hooked(far, watched):
    return watched


def step(model, optimizer, rows):
    moved = rows.to(torch.float64)
    model(moved.to(torch.float32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return moved.sum().item()


def run(times=6):
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return [step(model, optimizer, torch.randn(4, 8)) for _ in range(times)]


def line_of(text, function=step):
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def by_name(facts, kind):
    return {call.name: call for call in facts.calls if call.kind == kind}


def test_copies_and_waits_with_their_lines(hooked):
    run()
    facts = hooked.facts()
    moved = by_name(facts, "transfer")["to"]
    assert (moved.file, moved.line, moved.function) == (__file__, line_of("rows.to"), "step")
    # The first came before anything that tells which thread steps.
    assert (moved.calls, moved.bytes, moved.pageable_bytes) == (5, 5 * 4 * 8 * 4, 5 * 4 * 8 * 4)
    assert moved.seconds > 0
    waits = by_name(facts, "blocking")
    assert (waits["to"].line, waits["to"].calls) == (line_of("moved.to"), 5)
    assert (waits["item"].line, waits["item"].calls) == (line_of(".item()"), 6)
    assert set(facts.watches) >= {"transfer", "blocking"}


def test_a_copy_that_a_mode_calls_from_within_is_one_copy(hooked):
    with torch.device("cpu"):  # as set_default_device does
        run()
    facts = hooked.facts()
    assert by_name(facts, "transfer")["to"].calls == 5
    assert by_name(facts, "blocking")["to"].calls == 5


def test_steps_carry_what_they_moved_and_waited(hooked):
    run()
    hooked.facts()
    run()
    steps = hooked.records()[-5:]
    assert [record.transfer_bytes for record in steps] == [4 * 8 * 4] * 5
    assert all(record.blockings == 2 and 0 < record.blocking < record.seconds for record in steps)


def test_a_run_on_the_cpu_is_not_touched(watched):
    run()
    watched.session.look(time.monotonic_ns())
    assert own_methods() == OWN_BEFORE
    assert vars(torch.Tensor)["__repr__"] is REPR_BEFORE
    facts = watched.facts()
    assert facts.calls == ()
    assert not {"transfer", "blocking"} & set(facts.watches)


def test_a_device_is_noticed_when_it_comes_into_use(monkeypatch, watched):
    assert own_methods() == OWN_BEFORE
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    measure_of(watched.session).look(0)
    assert own_methods() >= {"to", "item", "copy_"}


def test_everything_is_put_back(far):
    assert aitop.hook.install("run") == "installed"
    assert own_methods() >= {"to", "item", "__bool__", "nonzero"}
    assert aitop.hook.remove() == "removed"
    assert own_methods() == OWN_BEFORE
    assert vars(torch.Tensor)["__repr__"] is REPR_BEFORE
    assert bool(torch.ones(1)) and int(torch.tensor(3.0)) == 3
    assert type(torch.Tensor.item).__name__ == "method_descriptor"


def test_results_are_the_same(far):
    plain = run(20)
    assert aitop.hook.install("run") == "installed"
    assert run(20) == plain


def test_a_print_is_one_wait(hooked):
    model = Net()
    model(torch.ones(1, 8))
    text = repr(torch.arange(3, dtype=torch.float64))
    assert text == "tensor([0., 1., 2.], dtype=torch.float64)"
    waits = by_name(hooked.facts(), "blocking")
    assert {name: call.calls for name, call in waits.items()} == {"print": 1}


def test_values_shapes_and_copies(hooked):
    Net()(torch.ones(1, 8))
    there, here = torch.arange(4, dtype=torch.float64), torch.zeros(4)
    assert bool(there[1]) and float(there[2]) == 2.0 and int(there[3]) == 3 and [0, 1][there[1].long()] == 1
    assert there.tolist() == [0, 1, 2, 3] and there.nonzero().shape == (3, 1) and there.equal(there)
    here.copy_(there)
    there.copy_(here)
    there.to("cpu", torch.float32, non_blocking=True)
    facts = hooked.facts()
    waits = by_name(facts, "blocking")
    assert set(waits) == {"bool", "float", "int", "tolist", "nonzero", "equal", "copy_"}
    assert by_name(facts, "transfer")["copy_"].bytes == 16


def test_errors_of_the_users_stay_as_they_are(hooked):
    Net()(torch.ones(1, 8))
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        torch.zeros(2, dtype=torch.float64).item()
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(torch.zeros(2, dtype=torch.float64))
    assert hooked.session._errors.number == 0


def test_other_threads_do_not_count(hooked):
    Net()(torch.ones(1, 8))
    thread = threading.Thread(target=lambda: torch.ones(1, dtype=torch.float64).item())
    thread.start()
    thread.join()
    assert hooked.facts().calls == ()


def test_synchronisations(monkeypatch, far):
    waited = []
    monkeypatch.setattr(torch._C, "_cuda_synchronize", lambda: waited.append("device"), raising=False)
    original = torch._C._cuda_synchronize
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda self: waited.append("event"))
    assert aitop.hook.install("run") == "installed"
    session = aitop.hook._session
    Net()(torch.ones(1, 8))
    torch._C._cuda_synchronize()
    torch.cuda.Event.synchronize(None)
    names = {call["name"] for call in measure_of(session).facts()["calls"]}
    assert names == {"cuda.synchronize", "Event.synchronize"} and waited == ["device", "event"]
    aitop.hook.remove()
    assert torch._C._cuda_synchronize is original


class Handled(torch.Tensor):
    """As torchvision's tensors do, it looks up in a set what to do."""

    table = frozenset({torch.Tensor.to, torch.Tensor.item})
    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in cls.table:
            cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_find_their_handlers(hooked):
    Net()(torch.ones(1, 8))
    tensor = torch.ones(1).as_subclass(Handled)
    Handled.seen.clear()
    assert type(tensor.to(torch.float64)) is Handled
    assert tensor.item() == 1.0
    assert Handled.seen == ["to", "item"]
    assert torch.Tensor.to in {torch.Tensor.to: 1} and torch.Tensor.to(torch.ones(1), torch.int64).dtype == torch.int64
    assert hooked.facts().calls == ()


def _moves(x):
    y = x.to(torch.float64) * 2
    return torch.zeros(3).copy_(y).sum() + torch.Tensor.to(y, torch.float16).sum()


def _reads(x):
    return x * x.sum().item()


def _asks(x):
    return x * 2 if x.sum() > 0 else x * 3


def _finds(x):
    return x.nonzero()


FUNCTIONS = (_moves, _reads, _asks, _finds)


def dynamo_counts(function) -> dict[str, dict]:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(function, backend="eager")
    for _ in range(3):
        compiled(torch.ones(3, dtype=torch.float64))
    return {name: dict(counters[name]) for name in ("stats", "graph_break", "unimplemented", "recompiles")}


@pytest.mark.filterwarnings("ignore")
def test_no_graph_breaks_and_no_recompiles(monkeypatch, unhooked):
    """Compiled before, with the hook in, and run on across its coming and going. Here every tensor is on a device, as
    told by a function in C like the real one.
    """
    from torch._dynamo import convert_frame

    monkeypatch.setattr(device_calls, "device_in_use", lambda torch: attrgetter("is_cpu"))
    plain = [dynamo_counts(function) for function in FUNCTIONS]
    aitop.hook.install("run")
    assert [dynamo_counts(function) for function in FUNCTIONS] == plain
    aitop.hook.remove()
    compiled = [torch.compile(function, backend="eager") for function in FUNCTIONS]
    torch._dynamo.reset()
    argument = torch.ones(3, dtype=torch.float64)

    def go():
        for function in compiled:
            function(argument)
        return sum(convert_frame.FRAME_COMPILE_COUNTER.values())

    compilations = go()
    aitop.hook.install("run")
    Net()(torch.ones(1, 8))
    assert go() == compilations
    names = {call["name"] for call in measure_of(aitop.hook._session).facts()["calls"]}
    assert names >= {"item", "bool", "nonzero"}
    aitop.hook.remove()
    assert go() == compilations


# The table of lines.


def test_many_calls_are_sampled_and_stand_for_all():
    sites = callsites.Sites("blocking", torch)
    for _ in range(5000):
        sites.wants_next()
    sites.tick()
    looked = 0
    for number in range(8000):
        if sites.wants_next():
            looked += 1
            # Eight lines in a fixed pattern, one of them dear.
            (first if number % 8 else second)(sites)
    assert 8000 / 100 < looked < 8000 / 50
    by_function = {call["function"]: call for call in sites.facts()}
    assert by_function["first"]["calls"] == pytest.approx(7000, rel=0.3)
    assert by_function["second"]["calls"] == pytest.approx(1000, rel=0.6)
    assert by_function["second"]["seconds"] == pytest.approx(by_function["second"]["calls"] * 5e-6, rel=0.01)


def first(sites):
    sites.add("item", 1000)


def second(sites):
    sites.add("item", 5000)


def test_the_table_of_lines_is_bounded():
    sites = callsites.Sites("transfer", torch)
    for number in range(3 * callsites.MOST_SITES):
        text = "\n" * number + "add('to', 10 * LINE, 8, 8)"
        exec(compile(text, "/home/me/train.py", "exec"), {"add": sites.add, "LINE": number + 1})
    assert len(sites._sites) <= callsites.MOST_SITES
    facts = sites.facts()
    assert len(facts) == callsites.SHOWN
    assert facts[0]["line"] == 3 * callsites.MOST_SITES


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/home/me/train.py", callsites.USER),
        ("<stdin>", callsites.USER),
        ("<ipython-input-3-a>", callsites.USER),
        ("<python-input-3>", callsites.USER),
        ("<console>", callsites.USER),
        ("<string>", callsites.NOBODYS),
        ("<aitop hook>/measures/device_calls.py", callsites.NOBODYS),
        (device_calls.__file__, callsites.NOBODYS),
        (torch.nn.__file__, callsites.NOBODYS),
        (threading.__file__, callsites.NOBODYS),
        ("/x/.venv/lib/python3.11/site-packages/accelerate/a.py", callsites.LIBRARY),
        ("/tmp/torchinductor_me/ab/cab.py", callsites.NOBODYS),
    ],
)
def test_whose_file_it_is(file, owner):
    assert callsites.Owners(torch).of(file) == owner


def test_a_library_of_others_stands_for_a_missing_user():
    sites = callsites.Sites("blocking", torch)
    file = "/x/site-packages/server/loop.py"
    # The test itself is nobody's.
    sites._owners._own = __file__
    exec(compile("add('item', 1)", file, "exec"), {"add": partial(add_from_here, sites)})
    assert [call["file"] for call in sites.facts()] == [file]


def add_from_here(sites, name, length):
    sites.add(name, length)


@pytest.mark.parametrize(("public", "called"), [({"is_dynamo_compiling": "public"}, "public"), ({}, "private")])
def test_what_tells_that_dynamo_traces_is_found_in_each_release_of_torch(monkeypatch, public, called):
    monkeypatch.setattr(torch, "compiler", SimpleNamespace(**public))
    monkeypatch.setattr(torch._utils, "is_compiling", "private", raising=False)
    # One that waits for a step has no ring yet, which the tests after this one would take for theirs.
    assert Session(torch, "import", None, waits_for_a_step=True).compiling == called
