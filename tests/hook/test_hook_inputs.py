"""What goes into the model, and in what precision it computes."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from hook_runs import IDS, Net, Words

from aitop.hook.measures.inputs import autocast_dtype, matmul_precision


def train(call, times=8, **options):
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(times):
        call(model).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


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
    facts = watched.facts()
    assert "int64" in facts.input_dtypes and "tokens" in facts.watches


def test_tokens_are_counted_in_all_threads_that_answer_requests(watched):
    model = Words().eval()

    def answer(length):
        with torch.no_grad():
            for more in range(4):
                model(torch.zeros(1, length + more, dtype=torch.int64))

    answer(5)
    thread = threading.Thread(target=answer, args=(50,))
    thread.start()
    thread.join()
    assert [record.tokens for record in watched.records()][-6:] == [7, 8, 50, 51, 52, 53]


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
    facts = watched.facts()
    assert (facts.input_dtypes, facts.autocast, facts.matmul_precision) == (("float32",), None, "highest")


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
