"""Calls of generate: each is a step, with as many tokens as it makes."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import hook_runs
import pytest
import torch
from hook_runs import IDS, Words

import aitop.hook
from aitop.hook.measures import generation
from aitop.hook.roots import STEPS_TO_SEARCH


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
    for without, with_hook in zip(plain, texts(), strict=True):
        assert torch.equal(without, with_hook)
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
