"""What goes in, what is generated, what a scaler leaves out, what torch.compile counts."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
from collections import UserDict
from types import ModuleType, SimpleNamespace

import hook_runs
import pytest
import torch
from hook_runs import Net
from torch import nn
from torch.utils.data import DataLoader

import aitop.hook
from aitop.hook import compiler
from aitop.hook.measures import generation
from aitop.hook.measures.denormals import Denormals
from aitop.hook.measures.inputs import autocast_dtype, matmul_precision
from aitop.hook.measures.padding import LONGEST_ROW, Padding
from aitop.hook.measures.scaler import Scaler
from aitop.hook.roots import STEPS_TO_SEARCH


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, input_ids=None, mask=None, labels=None, attention_mask=None):
        return self.out(self.table(labels if input_ids is None else input_ids))


def train(call, times=8, **options):
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(times):
        call(model).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


IDS = torch.ones(3, 7, dtype=torch.int64)


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model(IDS),
        lambda model: model(mask=torch.ones(3, 9, dtype=torch.int64), input_ids=IDS),
        lambda model: model(IDS, torch.ones(3, 9)),
        lambda model: model(IDS, attention_mask=torch.ones(3, 9, dtype=torch.int64)),
        lambda model: model(attention_mask=torch.ones(3, 9, dtype=torch.int64), labels=IDS),
    ],
)
def test_tokens_are_the_ids_that_go_in(watched, call):
    train(call)
    assert {record.tokens for record in watched.records()} == {21}
    found = watched.facts()
    assert "int64" in found.input_dtypes and "tokens" in found.watches


def test_the_lines_that_call_and_update_the_model_are_told_with_those_that_called_them(watched):
    train(lambda model: model(IDS))
    called = {(caller.file, caller.function) for caller in watched.facts().callers}
    inner = "test_the_lines_that_call_and_update_the_model_are_told_with_those_that_called_them.<locals>.<lambda>"
    assert {(__file__, "train"), (__file__, inner if sys.version_info >= (3, 11) else "<lambda>")} <= called
    with open(__file__, encoding="utf-8") as source:
        text = source.read().splitlines()
    lines = {caller.phase: text[caller.line - 1] for caller in watched.facts().callers if caller.function == "train"}
    assert lines.keys() == {"forward", "backward", "optimizer"}
    assert "call(model).sum().backward()" in lines["forward"] and lines["backward"] == lines["forward"]
    assert "optimizer.step()" in lines["optimizer"]
    assert not any("/torch/" in file or "/aitop/" in file for file, _ in called)


def test_no_tokens_without_ids(watched):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(8):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    assert {record.tokens for record in watched.records()} == {None}
    found = watched.facts()
    assert (found.input_dtypes, found.autocast, found.matmul_precision) == (("float32",), None, "highest")


def test_autocast_and_precision(watched, monkeypatch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        train(lambda model: model(IDS))
    assert watched.facts().autocast == "bfloat16"
    assert autocast_dtype(torch) is None

    def mixed():
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    monkeypatch.setattr(torch._C, "_get_fp32_precision_getter", lambda *asked: "tf32", raising=False)
    assert matmul_precision(torch) == "high"


def scaled(times, bad=()):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for number in range(times):
        loss = model(torch.randn(4, 8)).square().mean()
        scaler.scale(loss * float("inf") if number in bad else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


def scaler_of(session) -> Scaler:
    return next(measure for measure in session.measures if isinstance(measure, Scaler))


LOOKS = itertools.count(1)


def denormals_of(session):
    """The share after a look, each long after the one before."""
    measure = next(measure for measure in session.measures if isinstance(measure, Denormals))
    measure.look(time.monotonic_ns() + next(LOOKS) * 10**12)
    return measure.facts().get("denormals")


def test_denormal_numbers_in_the_state_of_an_optimizer_are_counted(watched):
    model = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    assert denormals_of(watched.session) is None, "no state yet"
    for _ in range(8):
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()
    assert denormals_of(watched.session) == 0.0
    for state in optimizer.state.values():
        state["exp_avg"].flatten()[::8] = 1e-40
        state["exp_avg_sq"].zero_()
    assert denormals_of(watched.session) == 1.0, "one number slows its whole register"
    optimizer.state[model.weight]["exp_avg"][32:] = 0.0
    assert denormals_of(watched.session) == pytest.approx(0.5, abs=0.05)
    assert watched.facts().own_optimizer is False


@pytest.mark.parametrize(
    "state",
    [
        torch.full((64,), 1e-40, dtype=torch.float64),
        torch.full((64,), 1e-40)[::2],
        torch.full((64,), 1e-40, device="meta"),
        torch.full((8, 8), 1e-40).to_sparse(),
        nn.Parameter(torch.full((64,), 1e-40)),
        torch.full((3,), 1e-40),
        "a word",
    ],
    ids=["double", "strided", "meta", "sparse", "subclass", "few", "no tensor"],
)
def test_only_plain_numbers_in_memory_are_looked_at(watched, state):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(4):
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()
    optimizer.state[model.weight]["mine"] = state
    assert denormals_of(watched.session) is None


def test_a_tensor_whose_memory_is_gone_is_not_looked_at(watched):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(4):
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()
    freed = torch.full((4096,), 1e-40)
    freed.untyped_storage().resize_(0)
    optimizer.state[model.weight]["mine"] = freed
    assert denormals_of(watched.session) is None


WIDE = torch.ones(4, 16, dtype=torch.int64)
MASK = torch.zeros(4, 16, dtype=torch.int64)
for row, tokens in enumerate((2, 4, 6, 8)):
    MASK[row, :tokens] = 1


class Encoding(UserDict):
    """Made as transformers' BatchEncoding is."""


def padding_of(session, *batches):
    """What is told after a loader has given these batches, each long after the one before."""
    measure = next(measure for measure in session.measures if isinstance(measure, Padding))
    for batch in batches:
        measure.look(time.monotonic_ns() + next(LOOKS) * 10**12)
        assert next(iter(DataLoader([0], collate_fn=lambda _, batch=batch: batch))) is batch
    return measure.facts().get("padding")


@pytest.mark.parametrize(
    "make",
    [
        lambda mask: {"input_ids": mask, "attention_mask": mask},
        lambda mask: Encoding(attention_mask=mask),
        lambda mask: ({"attention_mask": mask}, torch.ones(4)),
        lambda mask: (["a", "b"], Encoding(attention_mask=mask)),
        lambda mask: {"attention_mask": mask.bool()},
    ],
    ids=["a dict", "an encoding", "with labels", "after names", "booleans"],
)
def test_how_much_of_a_batch_is_padding_is_counted_by_its_mask(watched, make):
    assert padding_of(watched.session, make(MASK)) == {"looks": 1, "width": 16.0, "longest": 8.0, "mean": 5.0}
    assert padding_of(watched.session, make(MASK[:2])) == {"looks": 2, "width": 16.0, "longest": 6.0, "mean": 4.0}


def test_only_one_batch_in_three_seconds_is_looked_at(watched):
    batch = {"attention_mask": MASK}
    assert padding_of(watched.session, batch)["looks"] == 1
    for _ in DataLoader([0] * 5, collate_fn=lambda _: batch):
        pass
    assert next(each for each in watched.session.measures if isinstance(each, Padding)).facts()["padding"]["looks"] == 1


def test_of_large_masks_a_bounded_part_is_read(watched, monkeypatch):
    read, string_at = [], ctypes.string_at
    monkeypatch.setattr(ctypes, "string_at", lambda at, size: read.append(size) or string_at(at, size))
    mask = torch.zeros(64, LONGEST_ROW, dtype=torch.int64)
    mask[:, :5000] = 1
    told = padding_of(watched.session, {"attention_mask": mask})
    assert told == {"looks": 1, "width": LONGEST_ROW, "longest": 5000.0, "mean": 5000.0}
    assert sum(read) <= 2**19


def padding_of_calls(session, *calls):
    """What is told after the model was called in these ways, each long after the one before."""
    measure = next(measure for measure in session.measures if isinstance(measure, Padding))
    for call in calls:
        measure.look(time.monotonic_ns() + next(LOOKS) * 10**12)
        session.journal.arguments_came(*call)
    return measure.facts().get("padding")


@pytest.mark.parametrize(
    "call",
    [
        ((), {"input_ids": WIDE, "attention_mask": MASK}),
        (({"input_ids": WIDE, "attention_mask": MASK},), {}),
        ((WIDE, MASK.bool()), {}),
        ((WIDE,), {"src_key_padding_mask": ~MASK.bool()}),
    ],
    ids=["by name", "in a dict", "booleans", "of the padding"],
)
def test_padding_is_also_known_from_what_the_model_is_called_with(watched, call):
    assert padding_of_calls(watched.session, call) == {"looks": 1, "width": 16.0, "longest": 8.0, "mean": 5.0}
    assert watched.session.journal.arguments_came is None, "until it is due again"


def test_padding_at_the_left_is_told_by_a_row_without_any(watched):
    mask = MASK.flip(1).bool()
    mask[3] = True
    told = padding_of_calls(watched.session, ((torch.ones(4, 16, 3), mask), {}))
    assert told == {"looks": 1, "width": 16.0, "longest": 16.0, "mean": 7.0}


@pytest.mark.parametrize(
    "call",
    [
        ((WIDE[:, :1],), {"attention_mask": MASK}),
        ((WIDE,), {"token_type_ids": MASK}),
        ((WIDE, MASK.bool().roll(3, 1)), {}),
        ((torch.ones(16, 16), torch.ones(16, 16).tril().bool()), {}),
        ((WIDE,), {}),
    ],
    ids=["with a KV cache", "two sentences", "in the middle", "of what a token may look at", "without"],
)
def test_what_is_no_mask_of_padding_is_not_counted(watched, call):
    assert padding_of_calls(watched.session, call) is None
    assert watched.session._errors.number == 0


def freed(mask):
    mask.untyped_storage().resize_(0)
    return mask


@pytest.mark.parametrize(
    "mask",
    [
        MASK * 3,
        MASK.float(),
        MASK.t(),
        MASK[0],
        MASK.to("meta"),
        MASK.to_sparse(),
        nn.Parameter(MASK, requires_grad=False),
        freed(MASK.clone()),
        torch.zeros(0, 16, dtype=torch.int64),
        torch.ones(2, 9000, dtype=torch.int64),
        "a word",
        None,
    ],
    ids=["other numbers", "added to scores", "strided", "one row", "meta", "sparse", "subclass", "freed", "empty",
         "too long", "no tensor", "none"],
)  # fmt: skip
def test_what_is_no_plain_mask_in_memory_is_not_counted(watched, mask):
    assert padding_of(watched.session, {"attention_mask": mask}, {"ids": MASK}, MASK, [], object()) is None
    assert watched.session._errors.number == 0


with_scaler = pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="torch 2.2 has none for the CPU")


@with_scaler
def test_steps_that_a_scaler_leaves_out(unhooked):
    original = vars(torch.amp.GradScaler)["_maybe_opt_step"]
    plain = scaled(10, bad=(4, 7))
    assert aitop.hook.install("run") == "installed"
    session = aitop.hook._session
    assert scaler_of(session).facts() == {}
    for one, other in zip(plain, scaled(10, bad=(4, 7)), strict=True):
        assert torch.equal(one, other)
    assert scaler_of(session).facts() == {"scaler_skips": 2}
    aitop.hook.remove()
    assert vars(torch.amp.GradScaler)["_maybe_opt_step"] is original


@with_scaler
def test_a_step_left_out_is_a_step(watched):
    scaled(10, bad=(4, 7))
    records = watched.records()
    assert len(records) == 9
    assert watched.facts().scaler_skips == 2


# Generation.


def test_a_real_model_generates_the_same(unhooked):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=60, bos_token_id=1, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    owner = sys.modules[generation.MODULE].GenerationMixin
    before = dict(vars(owner))

    def texts():
        torch.manual_seed(5)
        options = [{"do_sample": False}, {"do_sample": True}, {"num_beams": 2}]
        return [model.generate(IDS, max_new_tokens=9, **option) for option in options]

    plain = texts()
    watched = hook_runs.Watched()
    for one, other in zip(plain, texts(), strict=True):
        assert torch.equal(one, other)
    records = watched.records()
    watched.ring.close()
    aitop.hook.remove()
    assert len(records) >= 2
    for record in records:
        assert (record.kind, record.tokens, record.forwards, record.tokens_again) == ("generate", 27, 1, None)
    assert dict(vars(owner)) == before


def test_a_real_model_that_keeps_no_cache(unhooked):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=60, bos_token_id=1, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    without = transformers.GenerationConfig(max_new_tokens=9, use_cache=False)
    watched = hook_runs.Watched()
    lengths = []
    model.register_forward_pre_hook(lambda _, __, kwargs: lengths.append(kwargs["input_ids"].numel()), with_kwargs=True)
    model.generate(IDS, max_new_tokens=9)
    computed = []
    for call in (
        lambda: model.generate(IDS, max_new_tokens=9, use_cache=False),
        lambda: model.generate(IDS, generation_config=without),
        lambda: model.generate(input_ids=IDS, generation_config=without, num_return_sequences=2, do_sample=True),
        lambda: model.generate(IDS, max_new_tokens=9),
    ):
        lengths.clear()
        call()
        computed.append(sum(lengths))
    model.generation_config.use_cache = False
    lengths.clear()
    model.generate(IDS, max_new_tokens=9)
    computed.append(sum(lengths))
    records = watched.records()
    watched.ring.close()
    aitop.hook.remove()
    computed[3] = None
    assert [record.tokens_again for record in records] == computed


# A loop like that of transformers, with a first token that takes its time.


class GenerationMixin:
    def _has_unfinished_sequences(self, finished):
        return not finished

    def generate(self, input_ids=None, count=4):
        made, first = input_ids, True
        while self._has_unfinished_sequences(made.shape[1] >= input_ids.shape[1] + count):
            if first:
                time.sleep(0.02)
            first = False
            with torch.no_grad():
                made = torch.cat([made, self(made)[:, -1:].argmax(-1)], dim=1)
        return made


class Speaker(GenerationMixin, Words):
    pass


@pytest.fixture
def speaking(monkeypatch):
    module = ModuleType(generation.MODULE)
    module.GenerationMixin = GenerationMixin
    monkeypatch.setitem(sys.modules, generation.MODULE, module)


def test_a_call_of_generate_is_a_step(speaking, watched):
    original = Speaker()
    for _ in range(3):
        original.generate(IDS)
        original.generate(input_ids=IDS, count=1)
    records = watched.records()
    assert [(record.kind, record.tokens) for record in records] == [("generate", 12), ("generate", 3)] * 3 or [
        (record.kind, record.tokens) for record in records
    ] == [("generate", 3), *[("generate", 12), ("generate", 3)] * 2]
    assert all(record.seconds >= 0.02 for record in records)


def test_generate_in_threads_of_a_server(speaking, watched):
    """One thread for each text, as streaming wants it: the forwards inside are no steps there either."""
    model, results = Speaker(), []
    for _ in range(4):
        thread = threading.Thread(target=lambda: results.append(model.generate(IDS)))
        thread.start()
        thread.join()
    records = watched.records()
    assert {(record.kind, record.tokens) for record in records} == {("generate", 12)}
    assert 3 <= len(records) <= 4
    assert all(torch.equal(result, results[0]) for result in results)


def test_the_search_for_roots_ends_where_calls_of_generate_are_the_steps(speaking, watched):
    model, session = Speaker(), watched.session
    for _ in range(STEPS_TO_SEARCH + 2):
        model.generate(IDS, count=1)
    assert not session._roots.watching
    # The cost of a step is known where there are steps.
    assert session.ticks


def test_generation_comes_in_late_and_goes(unhooked, speaking, monkeypatch):
    module = sys.modules.pop(generation.MODULE)
    before = dict(vars(GenerationMixin))
    assert aitop.hook.install("run") == "installed"
    session = aitop.hook._session
    session.look(time.monotonic_ns())
    assert dict(vars(GenerationMixin)) == before
    monkeypatch.setitem(sys.modules, generation.MODULE, module)
    session.look(time.monotonic_ns())
    assert vars(GenerationMixin)["generate"] is not before["generate"]
    aitop.hook.remove()
    assert dict(vars(GenerationMixin)) == before


def test_what_came_out_by_kind_of_model():
    measure = generation.Generation.__new__(generation.Generation)
    measure.tensor = torch.Tensor
    out, plain = torch.ones(2, 9, dtype=torch.int64), SimpleNamespace()
    translating = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=True))
    assert measure._lengths(plain, (out[:, :4],), {}, out) == (2, 4, 5)
    assert measure._lengths(plain, (), {"input_ids": out[:, :4]}, SimpleNamespace(sequences=out)) == (2, 4, 5)
    assert measure._lengths(plain, (), {"inputs_embeds": out}, out) == (2, 0, 9)
    assert measure._lengths(plain, (), {}, out) == (2, 1, 8)
    assert measure._lengths(translating, (), {"input_ids": out[:, :4]}, out) == (2, 1, 8)
    assert measure._lengths(plain, (), {}, "text") is None


# torch.compile's counters, which are only read where it was imported by somebody else.


def test_counters_of_torch_compile(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", None)
    assert compiler.compiler_facts() == {}
    metrics = [
        SimpleNamespace(recompile_reason=None, co_name="a", co_filename="/x/a.py", co_firstlineno=1),
        SimpleNamespace(recompile_reason="0/0: size mismatch", co_name="f", co_filename="/x/a.py", co_firstlineno=7),
        SimpleNamespace(recompile_reason="0/0: size mismatch", co_name="f", co_filename="/x/a.py", co_firstlineno=7),
    ]
    utils = SimpleNamespace(counters={"graph_break": {"one": 2, "two": 1}}, _compilation_metrics=metrics)
    convert = SimpleNamespace(FRAME_COMPILE_COUNTER={0: 3, 1: 1})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", convert)
    assert compiler.compiler_facts() == {
        "compiles": 4,
        "recompiles": 2,
        "graph_breaks": 3,
        "recompile_reasons": ["f (a.py:7): 0/0: size mismatch"],
    }
    convert.FRAME_COMPILE_COUNTER.clear()
    assert compiler.compiler_facts() == {}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace())
    assert compiler.compiler_facts() == {}
