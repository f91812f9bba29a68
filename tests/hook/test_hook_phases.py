"""Time that is spent in a known place lands in the right phase."""

from __future__ import annotations

import io
import itertools
import json
import random
import threading
import time
from statistics import median_high as median
from types import SimpleNamespace

import pytest
import torch
from hook_runs import Net, Rows, SlowSgd, loader, train
from torch import nn
from torch.utils.data import DataLoader

from aitop.hook import roots
from aitop.hook.facts import Facts
from aitop.hook.measures import cost
from aitop.protocol.events import OPTIMIZER_BEGINS
from aitop.protocol.ring import EVENT_WORDS, JSON_ROOM
from aitop.sources.ring.reader import decode_facts

PAUSE = 0.01
# A search for roots that goes on for longer never ends.
MOST_CALLS = 100_000


def shares_add_up(records):
    for record in records:
        inside = record.data_wait + record.loader_start + record.forward + record.backward + record.optimizer
        assert inside + record.save + record.evaluation <= record.seconds + 1e-6


def test_a_slow_dataset_is_data_wait(watched):
    model = Net()
    train(model, loader(pause=PAUSE / 4), torch.optim.SGD(model.parameters(), 0.1))
    records = watched.records()
    assert [record.index for record in records] == list(range(1, 8))
    assert all(record.data_wait >= PAUSE for record in records)
    assert all(record.kind == "train" and record.samples == 4 and record.forwards == 1 for record in records)
    assert median([record.data_wait / record.seconds for record in records]) > 0.7
    shares_add_up(records)


def test_slow_forward_backward_and_optimizer_are_told_apart(watched):
    class SlowGrad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, grad):
            time.sleep(2 * PAUSE)
            return grad

    model = Net(pause=PAUSE)
    optimizer = SlowSgd(model.parameters(), 0.1)
    optimizer.pause = 3 * PAUSE
    for rows, labels in loader():
        loss = SlowGrad.apply(nn.functional.cross_entropy(model(rows), labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    records = watched.records()
    assert len(records) == 7
    for record in records:
        assert record.forward >= PAUSE
        assert record.backward >= 2 * PAUSE
        assert record.optimizer >= 3 * PAUSE
    phases = ("data_wait", "outside", "forward", "backward", "optimizer")
    medians = [median([getattr(record, phase) for record in records]) for phase in phases]
    assert medians[2] < medians[3] < medians[4]
    assert max(medians[:2]) < medians[2]
    shares_add_up(records)


def test_phases_are_what_a_clock_of_the_runs_own_says(watched):
    """Around each call a clock that the hook knows nothing of: each phase by itself, none as the rest of a step."""

    class Late(torch.autograd.Function):
        pause = 0.0

        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, grad):
            time.sleep(Late.pause)
            return grad

    dice = random.Random(1)
    model = Net()
    optimizer = SlowSgd(model.parameters(), 0.1)
    rows = Rows(160)
    batches = iter(DataLoader(rows, batch_size=4))
    own = {name: [] for name in ("data_wait", "forward", "backward", "optimizer", "seconds")}
    step_began = time.perf_counter()
    for _ in range(30):
        # Other lengths at each step, so that the phases of another step, or another phase, would not do.
        rows.pause, model.pause, Late.pause, optimizer.pause = (dice.uniform(0, PAUSE) for _ in range(4))
        rows.pause /= 4
        began = time.perf_counter()
        data, labels = next(batches)
        loaded = time.perf_counter()
        loss = model(data)
        called = time.perf_counter()
        loss = Late.apply(nn.functional.cross_entropy(loss, labels))
        optimizer.zero_grad()
        ready = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        optimizer.step()
        updated = time.perf_counter()
        times = (loaded - began, called - loaded, backward - ready, updated - backward, updated - step_began)
        for name, seconds in zip(own, times, strict=True):
            own[name].append(seconds)
        step_began = updated
    records = watched.records()
    assert len(records) >= 25 and not any(record.estimated for record in records)
    for name, mine in own.items():
        off = [abs(getattr(record, name) - mine[record.index]) for record in records]
        # Where cores are busy some of them are late; another phase, or another step, is off by a third of a pause.
        assert median(off) < PAUSE / 10, (name, off)


def test_preparing_by_hand_without_a_loader_is_outside_of_the_phases(watched):
    model, optimizer = Net(), None
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(6):
        time.sleep(PAUSE)
        rows, labels = torch.randn(5, 8), torch.zeros(5, dtype=torch.long)
        loss = nn.functional.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    records = watched.records()
    assert len(records) == 5
    assert all(PAUSE <= record.outside <= record.seconds and record.data_wait == 0 for record in records)
    assert all(record.samples == 5 and record.queue_ready is None for record in records)


def test_accumulated_gradients_make_one_step(watched):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    for number, (rows, labels) in enumerate(loader(count=64)):
        nn.functional.cross_entropy(model(rows), labels).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    records = watched.records()
    assert [(record.forwards, record.backwards, record.samples) for record in records] == [(4, 4, 16)] * 3


@pytest.mark.parametrize("with_loader", [True, False])
def test_two_optimizers_an_iteration_make_one_step(watched, with_loader):
    maker, judge = Net(), Net()
    optimizers = torch.optim.SGD(maker.parameters(), 0.1), torch.optim.Adam(judge.parameters())
    batches = loader(count=40) if with_loader else [(torch.randn(4, 8), None)] * 10
    for rows, _ in batches:
        for model, optimizer in zip((judge, maker), reversed(optimizers), strict=True):
            loss = model(rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            time.sleep(0.001)
            optimizer.step()
    records = watched.records()
    # The second optimizer is not known before its first step; the last step may still go on.
    settled = records[2:]
    assert 7 <= len(settled) <= 8
    assert all((record.forwards, record.backwards) == (2, 2) and record.seconds >= 0.002 for record in settled)
    ends = [record.end for record in records]
    assert ends == sorted(ends)
    assert all(abs(later.end - later.seconds - earlier.end) < 1e-6 for earlier, later in itertools.pairwise(settled))


def test_validation_with_its_own_loader_is_evaluation(watched):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        train(model, loader(count=16), optimizer)
        with torch.no_grad():
            for rows, _ in loader(count=20, pause=PAUSE / 4):
                model(rows)
    train(model, loader(count=16), optimizer)
    records = watched.records()
    assert len(records) == 15
    long = [record for record in records if record.evaluation > 0]
    assert len(long) == 3
    for record in long:
        assert record.evaluation >= 5 * PAUSE
        assert record.data_wait < record.evaluation
        assert record.forwards == 1
    shares_add_up(records)


def test_a_teacher_in_every_step_is_no_evaluation(watched):
    teacher, model = Net(pause=PAUSE / 2), Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for rows, _ in loader():
        with torch.no_grad():
            wanted = teacher(rows)
        loss = (model(rows) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    records = watched.records()
    assert len(records) == 7
    assert all(record.evaluation == 0 and record.forward >= PAUSE / 2 for record in records[2:])
    assert all(PAUSE / 2 <= record.no_grad <= record.forward for record in records[2:])


def acts_on_each(policy, rows):
    with torch.no_grad():
        for row in rows:
            policy(row[None])


def test_a_policy_that_acts_has_calls_and_samples_of_its_own(watched):
    policy = Net()
    optimizer = torch.optim.SGD(policy.parameters(), 0.1)
    for rows, labels in loader():
        acts_on_each(policy, rows)
        train(policy, [(rows, labels)], optimizer)
    # In the first steps it is not known yet that such calls come in every one.
    records = watched.records()[4:]
    assert all((record.forwards, record.samples) == (1, 4) for record in records)
    assert all((record.no_grad_forwards, record.no_grad_samples) == (4, 4) for record in records)


def test_a_policy_that_acts_once_for_several_updates_has_calls_too(watched):
    policy = Net()
    optimizer = torch.optim.SGD(policy.parameters(), 0.1)
    for rows, labels in loader():
        acts_on_each(policy, rows)
        for _ in range(3):
            train(policy, [(rows, labels)], optimizer)
    acts = [record for record in watched.records()[4:] if record.evaluation_forwards]
    assert len(acts) >= 6
    assert all((one.evaluation_forwards, one.evaluation_samples) == (4, 4) and one.evaluation > 0 for one in acts)


def test_the_model_of_a_server_is_the_one_that_its_threads_call(watched):
    """The first thread was in the midst of it when the hook came in, so its outermost module is only a layer."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)).eval()

    def answer():
        with torch.no_grad():
            net(torch.zeros(1, 8))

    with torch.no_grad():
        net[1](torch.zeros(1, 16))
    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()
    facts = watched.facts()
    assert (facts.root, facts.parameter_tensors) == ("Sequential", 4)


def test_saving_is_told_apart(watched):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    class SlowFile(io.BytesIO):
        def write(self, data):
            time.sleep(PAUSE / 10)
            return super().write(data)

    for number, (rows, labels) in enumerate(loader()):
        train(model, [(rows, labels)], optimizer)
        if number == 3:
            torch.save(model.state_dict(), SlowFile())
    records = watched.records()
    saving = [record for record in records if record.save > 0]
    assert len(saving) == 1
    assert saving[0].save >= PAUSE


def test_collections_are_counted(watched):
    import gc

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for rows, labels in loader():
        train(model, [(rows, labels)], optimizer)
        gc.collect()
    records = watched.records()
    assert all(0 < record.gc <= record.seconds for record in records)


def test_inference_is_a_step_per_forward(watched):
    model = Net(pause=PAUSE / 2).eval()
    with torch.inference_mode():
        for rows, _ in loader(pause=PAUSE / 4):
            model(rows)
    records = watched.records()
    assert len(records) == 7
    for record in records:
        assert record.kind == "infer"
        assert record.forward >= PAUSE / 2
        assert record.data_wait >= PAUSE
        assert record.samples == 4
    shares_add_up(records)


def test_the_search_for_further_roots_ends_where_forwards_are_the_steps(watched):
    """A known root's class is wrapped itself, so none of its calls is met by the search: each would be looked at."""
    model, session = Net().eval(), watched.session
    with torch.no_grad():
        for _ in range(MOST_CALLS):
            if not session._roots.watching:
                break
            model(torch.randn(3, 8))
        assert not session._roots.watching
        watches = session._roots._watches
        session._roots._again_after = session._look_due = session.journal.due = 0
        model(torch.randn(3, 8))
        assert session._roots.watching and session._roots._watches == watches + 1
        session._roots._again_after = roots.LONGEST_AGAIN_NS
        for _ in range(2 * roots.STEPS_TO_SEARCH):
            model(torch.randn(3, 8))
    assert not session._roots.watching


def test_inference_that_forgot_no_grad(watched):
    model = Net()
    for _ in range(20):
        model(torch.randn(3, 8))
    records = watched.records()
    assert len(records) >= 10
    assert {record.kind for record in records} == {"infer"}


def test_requests_served_by_threads(watched):
    model = Net(pause=0.002)

    def serve():
        with torch.no_grad():
            for _ in range(5):
                model(torch.randn(2, 8))

    serve()
    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = watched.records()
    assert len(records) == 14
    assert all(record.forward >= 0.002 and record.seconds >= record.forward for record in records)


def test_a_model_that_is_no_module_lies_between_batch_and_backward(watched):
    weight = torch.zeros(8, 4, requires_grad=True)

    def forward(rows):
        time.sleep(PAUSE)
        return rows @ weight

    train(forward, loader(), torch.optim.SGD([weight], 0.1))
    records = watched.records()
    assert len(records) == 7
    assert all(record.forward >= PAUSE and record.forwards == 0 for record in records)


def test_modules_called_one_after_the_other_are_one_batch(watched):
    encode, decode = nn.Linear(8, 16), nn.Linear(16, 4)
    optimizer = torch.optim.SGD([*encode.parameters(), *decode.parameters()], 0.1)
    train(lambda rows: decode(encode(rows)), loader(), optimizer)
    assert all((record.forwards, record.samples) == (2, 4) for record in watched.records())


def test_a_step_that_fails_is_no_step(watched):
    class Failing(torch.optim.SGD):
        fails = False

        def step(self, closure=None):
            if self.fails:
                raise ArithmeticError
            return super().step(closure)

    model = Net()
    optimizer = Failing(model.parameters(), 0.1)
    for number, (rows, labels) in enumerate(loader()):
        optimizer.fails = number in (2, 3)
        if optimizer.fails:
            with pytest.raises(ArithmeticError):
                train(model, [(rows, labels)], optimizer)
        else:
            train(model, [(rows, labels)], optimizer)
    assert [record.backwards for record in watched.records()] == [1, 3, 1, 1, 1]


def test_updates_without_an_optimizer_of_torch(watched):
    model = Net()
    for _ in range(100):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    records = watched.records()
    assert 25 <= len(records) <= 40
    assert all((record.forwards, record.backwards) == (1, 1) for record in records[2:])


def test_a_closure_is_counted_once(watched):
    model = Net(pause=0.001)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    rows = torch.randn(16, 8)

    def closure():
        optimizer.zero_grad()
        loss = model(rows).square().mean()
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    records = watched.records()
    assert len(records) == 4
    assert all(record.forwards >= 1 and record.optimizer >= 0 for record in records)
    shares_add_up(records)


def test_updates_within_the_backward_pass_are_a_part_of_it(watched, monkeypatch):
    """One optimizer per parameter, stepped as soon as its gradient is there: the backward pass is the step."""
    monkeypatch.setattr(SlowSgd, "pause", 0.001)
    model = Net(pause=0.001)
    optimizers = {parameter: SlowSgd([parameter], 0.01) for parameter in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for rows, labels in loader(count=400):
        nn.functional.cross_entropy(model(rows), labels).backward()
    records = watched.records()[3:]
    assert len(records) > 90, "each of them is a step from the start"
    assert all((record.forwards, record.backwards, record.optimizer) == (1, 1, 0.0) for record in records)
    assert median([record.backward for record in records]) >= len(optimizers) * SlowSgd.pause
    shares_add_up(records)


def test_backwards_that_only_accumulate_between_updates_within_others_end_no_step(watched):
    """Three backward passes accumulate; the fourth updates each parameter as its gradient comes."""
    model = Net()
    optimizers = {parameter: torch.optim.SGD([parameter], 0.01) for parameter in model.parameters()}
    last = False

    def update(parameter):
        if last:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for number, (rows, labels) in enumerate(loader(count=800)):
        last = number % 4 == 3
        nn.functional.cross_entropy(model(rows), labels).backward()
    records = watched.records()[3:]
    assert len(records) > 40
    assert {(record.forwards, record.backwards) for record in records} == {(4, 4)}
    assert watched.session._steps > 40, "they count as steps in the process as well"


@pytest.mark.parametrize("arguments", [(), (None,)])
def test_a_closure_that_is_none_is_no_closure(watched, arguments):
    """Accelerate always passes one."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for rows, labels in loader():
        nn.functional.cross_entropy(model(rows), labels).backward()
        optimizer.step(*arguments)
        assert OPTIMIZER_BEGINS not in watched.session.journal.words[::EVENT_WORDS]
    assert watched.records()


def test_a_model_that_is_no_module_is_known_by_what_is_updated(watched):
    weights = [torch.randn(6, 6, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    optimizer = torch.optim.SGD(weights, 1e-3)
    for _ in range(12):
        optimizer.zero_grad()
        sum((weight @ weight).sum() for weight in weights).backward()
        optimizer.step()
    watched.records()
    facts = watched.facts()
    assert (facts.root, facts.parameter_dtypes) == (None, ("float64",))
    assert (facts.parameters, facts.parameter_tensors) == (108, 3)


def test_the_parameters_of_embeddings_are_known_unless_the_output_layer_shares_them():
    class Words(nn.Module):
        def __init__(self, *, tied):
            super().__init__()
            self.embed, self.head = nn.Embedding(100, 4), nn.Linear(4, 100, bias=False)
            if tied:
                self.head.weight = self.embed.weight

    for tied, looked_up in ((False, 400), (True, 0)):
        facts = Facts(torch, "run")
        facts.met_root(Words(tied=tied))
        assert json.loads(facts.text(()))["facts"]["looked_up_parameters"] == looked_up


def test_the_parameters_of_a_root_are_walked_once():
    class Counting(Net):
        walks = 0

        def parameters(self, recurse=True):
            self.walks += 1
            return super().parameters(recurse)

    facts, model = Facts(torch, "run"), Counting()
    facts.met_root(model)
    walks = model.walks
    for _ in range(8):
        facts.met_root(model)
    assert model.walks == walks > 0


def test_a_lazy_module_is_known_once_it_has_its_parameters(watched):
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 4))
    for _ in range(4):
        model(torch.ones(4, 8)).sum().backward()
    assert watched.session._errors.number == 0
    assert watched.facts().parameters == 8 * 16 + 16 + 16 * 4 + 4


def test_facts_without_room_are_those_of_fewer_lines():
    lines = [{"phase": "forward", "file": "f" * 400, "line": line, "function": "g" * 120} for line in range(128)]
    text = Facts(torch, "run").text([SimpleNamespace(facts=lambda: {"callers": lines, "cost_us": 3.0}, watches=())])
    assert JSON_ROOM / 2 < len(text) <= JSON_ROOM
    facts, _ = decode_facts(text)
    assert facts.cost_us == 3.0 and 32 <= len(facts.callers) < 128


@pytest.mark.parametrize("size", [-1, 0, True, 10**12, "many"])
def test_a_batch_size_that_is_none_is_not_told(size):
    facts, batches = Facts(torch, "run"), loader(8)
    iterator = batches._get_iterator()
    iterator._index_sampler = SimpleNamespace(batch_size=size)
    facts.met_iterator(iterator)
    told, _ = decode_facts(facts.text(()))
    assert told.loaders[0].batch_size is None


def test_a_new_epoch_of_the_same_loader_is_no_news():
    facts, one, other = Facts(torch, "run"), loader(8), DataLoader(Rows(8), batch_size=2)
    for batches, news in ((one, True), (one, False), (other, True), (one, True), (one, False)):
        facts.changed = False
        facts.met_iterator(batches._get_iterator())
        assert facts.changed is news


def test_queue_depth_and_loader_facts(watched):
    model = Net()
    # Else it times itself only once the run has gone on for some time.
    watched.cost._due = 0
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for number, (rows, labels) in enumerate(loader(count=48, num_workers=2, prefetch_factor=3)):
        time.sleep(0.01 if number else 0.2)  # by then the workers are at work
        train(model, [(rows, labels)], optimizer)
    records = watched.records()
    depths = [record.queue_ready for record in records]
    assert all(depth is not None and 0 <= depth <= 6 for depth in depths)
    assert max(depths) >= 2
    facts = watched.facts()
    info = facts.loaders[-1]
    assert (info.workers, info.batch_size, info.prefetch) == (2, 4, 3)
    assert info.dataset == "Rows"
    assert facts.optimizers == ("AdamW",)
    assert facts.foreach is True
    assert facts.root == "Net"
    assert facts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert facts.parameter_dtypes == ("float32",)
    assert facts.threads == torch.get_num_threads()
    assert facts.ops is not None and 5 <= facts.ops <= 40
    assert facts.cost_us is not None and facts.cost_us > 0


def test_what_a_step_costs_is_not_known_where_nothing_makes_steps(watched):
    watched.cost._due = 0
    watched.cost.look(time.monotonic_ns())
    assert watched.cost._timed and watched.facts().cost_us is None


def test_where_no_optimizer_steps_only_a_forward_is_taken_for_a_unit(watched):
    measure = watched.cost
    called = []
    calls = [(called.append, (name,)) for name in ("next", "forward", "backward", "before", "after")]
    measure._step(calls)
    assert called == ["forward"]
    model = Net()
    train(model, loader(count=4), torch.optim.SGD(model.parameters(), lr=0.1))
    called.clear()
    measure._step(calls)
    assert called == ["next", "forward", "backward", "before", "after"]


def test_what_a_step_costs_does_not_change_as_the_run_gets_old(watched, monkeypatch):
    """A tick that falls due while the wrappers are tried out would make them slower."""
    session, ticks = watched.session, []
    with monkeypatch.context() as long_ago:
        long_ago.setattr(cost, "_now", lambda: time.monotonic_ns() - 2 * cost.NEVER_NS)
        old = cost.Cost(torch, session._patches, session)
    model = Net()
    train(model, loader(count=4), torch.optim.SGD(model.parameters(), lr=0.1))
    old._journal.tick = ticks.append
    old.look(time.monotonic_ns())
    assert old._timed and not ticks


def test_workers_of_a_loader_write_nothing(watched):
    class Predicting(Rows):
        def __getitem__(self, index):
            with torch.no_grad():
                helper(torch.zeros(1, 8))
            return super().__getitem__(index)

    helper, model = Net(), Net()
    data = DataLoader(Predicting(64), batch_size=4, num_workers=2, multiprocessing_context="fork")
    train(model, data, torch.optim.SGD(model.parameters(), 0.1))
    records = watched.records()
    assert len(records) == 15
    assert {record.kind for record in records} == {"train"}


def test_another_thread_does_not_disturb(watched):
    model, other = Net(), Net()
    stop = threading.Event()

    def evaluate():
        with torch.no_grad():
            while not stop.is_set():
                other(torch.randn(2, 8))

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, loader(), optimizer)
    thread = threading.Thread(target=evaluate)
    thread.start()
    try:
        train(model, loader(), optimizer, times=4)
    finally:
        stop.set()
        thread.join()
    records = watched.records()
    assert {(record.kind, record.forwards) for record in records} == {("train", 1)}
