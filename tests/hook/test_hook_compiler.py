"""What torch.compile counts, which is only read where somebody else has imported it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from aitop.hook import compiler


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
