"""A hook in this very process, taken out after each test."""

from __future__ import annotations

import sys

import hook_runs
import pytest
from fast_run import Fast

import aitop.hook
from aitop.hook import sampling as sampling_module

# The import puts it in.
aitop.hook.remove()


def forget_compiling():
    """The hook is another one in a program that has compiled something, which other tests do."""
    if "torch._dynamo.utils" in sys.modules:
        sys.modules["torch._dynamo.utils"].counters.clear()


@pytest.fixture
def watched():
    aitop.hook.remove()
    forget_compiling()
    hook = hook_runs.Watched()
    yield hook
    hook.ring.close()
    aitop.hook.remove()


@pytest.fixture
def unhooked():
    """A process without the hook, before and after."""
    aitop.hook.remove()
    forget_compiling()
    yield
    aitop.hook.remove()


@pytest.fixture
def fast(watched, monkeypatch):
    monkeypatch.setattr(sampling_module, "FAST_TICKS", 2)
    return Fast(watched)
