"""The facts of a hook's measures as their reader takes them: hostile until they make sense."""

import json

import pytest

from aitop.hook.compiler import LONGEST_REASON, MOST_REASONS
from aitop.hook.facts import LONGEST_NAME, MOST_CALLS, MOST_LOADERS
from aitop.hook.measures.callsites import LONGEST_FILE
from aitop.model.steps import CallSite, PaddingInfo
from aitop.protocol.ring import JSON_ROOM
from aitop.sources.ring.reader import decode_facts

SITE = {
    "kind": "blocking",
    "name": "item",
    "file": "/x/train.py",
    "line": 7,
    "function": "main",
    "calls": 3,
    "seconds": 0.5,
    "bytes": None,
    "pageable_bytes": None,
}
WHOLE = {
    "way": "attach",
    "python": "3.12",
    "torch": "2.9",
    "calls": [SITE],
    "flops_per_backward": 1.5e12,
    "flops_basis": "shapes in the autograd graph",
    "flops_dtype": "tf32",
    "unused_gradients": 0.8,
    "input_dtypes": ["int64"],
    "autocast": "bfloat16",
    "matmul_precision": "high",
    "compiles": 4,
    "recompiles": 2,
    "graph_breaks": 1,
    "recompile_reasons": ["f (a.py:7): size mismatch"],
    "scaler_skips": 2,
    "padding": {"looks": 3, "width": 192.0, "longest": 52.5, "mean": 32.1},
    "watches": ["tokens"],
}


def decoded(facts):
    return decode_facts(json.dumps({"facts": facts}).encode())


def test_facts_of_a_hook_are_decoded():
    answer = decoded(WHOLE)
    facts, _ = answer
    assert facts.calls == (CallSite(**SITE),)
    for name in WHOLE.keys() - {"calls", "input_dtypes", "recompile_reasons", "watches", "padding"}:
        assert getattr(facts, name) == WHOLE[name]
    assert facts.padding == PaddingInfo(looks=3, width=192.0, longest=52.5, mean=32.1)
    assert facts.recompile_reasons == ("f (a.py:7): size mismatch",)
    assert (facts.input_dtypes, facts.watches) == (("int64",), ("tokens",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("calls", [SITE | {"kind": "kernel"}]),
        ("calls", [SITE | {"line": -1}]),
        ("calls", [SITE | {"seconds": -0.1}]),
        ("calls", [SITE | {"calls": 10**30}]),
        ("calls", [SITE | {"file": "x" * 2000}]),
        ("calls", [SITE] * 1025),
        ("calls", 7),
        ("flops_per_backward", -1.0),
        ("flops_per_backward", 1e300),
        ("flops_dtype", 32),
        ("unused_gradients", -0.1),
        ("input_dtypes", ["int64"] * 1025),
        ("recompiles", -1),
        ("padding", {"looks": 3, "width": -1.0, "longest": 52.5, "mean": 32.1}),
        ("padding", {"looks": 3}),
        ("scaler_skips", "many"),
    ],
)
def test_facts_that_no_hook_sends_are_refused(name, value):
    assert decoded(WHOLE | {name: value}) is None


def test_the_most_that_measures_say_has_room():
    """A text without room would not be written at all."""
    names = {"file": "x" * LONGEST_FILE, "function": "f" * LONGEST_NAME, "name": "torch.cuda.synchronize"}
    site = SITE | names | {"bytes": 10**15, "pageable_bytes": 10**15}
    facts = WHOLE | {"calls": [site] * MOST_CALLS, "recompile_reasons": ["r" * LONGEST_REASON] * MOST_REASONS}
    loader = {"workers": 64, "dataset": "d" * LONGEST_NAME}
    text = json.dumps({"facts": facts | {"loaders": [loader] * MOST_LOADERS}, "allocators": []})
    assert len(text) < JSON_ROOM
