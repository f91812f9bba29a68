"""Parts of the hook that need no torch: what stays after an interrupted removal, what grows, what sizes are."""

from __future__ import annotations

import threading

import pytest

from aitop.hook import errors as errors_module
from aitop.hook.errors import MOST_ERRORS, WITHIN_NS, Errors
from aitop.hook.journal import GONE, MOST_WORDS, Journal
from aitop.hook.patches import Patches
from aitop.hook.phases import gc_callback, leading, wrap_forward
from aitop.protocol.ring import EVENT_WORDS


class Parent:
    def __call__(self) -> int:
        return 1


class Child(Parent):
    pass


def forwarding(original):
    return lambda self: original(self)


def test_errors_are_too_many_only_within_a_minute(monkeypatch):
    errors = Errors()

    def too_many(now):
        monkeypatch.setattr(errors_module.time, "monotonic_ns", lambda: now)
        return errors.too_many()

    rarely = [too_many(number * (WITHIN_NS + 1) + 10**15) for number in range(3 * MOST_ERRORS)]
    assert not any(rarely)
    often = [too_many(10**16 + number) for number in range(MOST_ERRORS)]
    assert often == [False] * (MOST_ERRORS - 1) + [True]


class TestPatches:
    def test_a_patch_after_the_end_does_not_stay(self):
        original, patches = Parent.__call__, Patches()
        patches.put(Parent, "__call__", forwarding)
        patches.take_all_back()
        patches.put(Parent, "__call__", forwarding)
        patches.put(Child, "__call__", forwarding)
        assert vars(Parent)["__call__"] is original
        assert "__call__" not in vars(Child)

    def test_an_end_in_the_midst_of_a_patch(self):
        original, patches = Parent.__call__, Patches()

        def interrupted(call):
            patches.take_all_back()
            return forwarding(call)

        patches.put(Parent, "__call__", interrupted)
        assert vars(Parent)["__call__"] is original

    def test_a_class_that_refuses_to_be_restored_keeps_no_other_from_it(self):
        class Refusing(type):
            closed = False

            def __setattr__(cls, name, value):
                if Refusing.closed:
                    raise TypeError(name)
                super().__setattr__(name, value)

        closed = Refusing("Closed", (Parent,), {"__call__": lambda self: 2})
        original, patches = Parent.__call__, Patches()
        for owner in (Parent, closed):
            patches.put(owner, "__call__", forwarding)
        Refusing.closed = True
        patches.take_all_back()
        assert vars(Parent)["__call__"] is original and closed()() == 2

    def test_one_patched_twice_is_the_original_again(self):
        original, patches = Parent.__call__, Patches()
        patches.put(Parent, "__call__", forwarding)
        patches.put(Parent, "__call__", forwarding)
        patches.take_back(Parent, "__call__")
        assert vars(Parent)["__call__"] is original


class Tensor:
    """As much of a tensor as the hook asks."""

    def __init__(self, *shape, floating=False):
        self._shape = shape
        self._floating = floating

    def is_floating_point(self):
        return self._floating

    def dim(self):
        return len(self._shape)

    def size(self, index):
        return self._shape[index]


class Symbol:
    def __ge__(self, other):
        raise AssertionError("a symbol was compared")


@pytest.mark.parametrize(
    ("arguments", "keywords", "samples"),
    [
        ((Tensor(8, 3),), {}, 8),
        ((None, [Tensor(4)]), {}, 4),
        ((), {"x": {"ids": Tensor(2, 2)}}, 2),
        # The features of one sample are one sample.
        ((Tensor(8, floating=True),), {}, 1),
        ((Tensor(8, 3, floating=True),), {}, 8),
        # A scalar says nothing, and a symbol is left alone.
        ((Tensor(), Tensor(8, 3)), {}, 8),
        ((Tensor(),), {}, -1),
        ((Tensor(Symbol()),), {}, -1),
        (([Tensor(Symbol())],), {}, -1),
    ],
)
def test_the_first_dimension_is_the_number_of_samples(arguments, keywords, samples):
    assert leading(arguments, keywords, Tensor) == samples


class Session:
    def __init__(self):
        self.journal = Journal(lambda now: None)
        self.compiling = lambda: False
        self.grad_enabled = lambda: True
        self.traced = lambda: None
        self.tensor = Tensor
        self.errors = 0

    def failed(self):
        self.errors += 1

    def not_owner(self, training=False):
        self.journal.owner = threading.get_ident()
        return False


def test_a_model_called_with_a_scalar_is_no_error():
    session = Session()
    session.journal.due = 1 << 62
    call = wrap_forward(lambda self, *args: args, session)
    first, second = Tensor(), Tensor(8, 3)
    assert call(None, first, second) == (first, second)
    assert session.errors == 0
    assert session.journal.words[3] == 8


def test_collections_that_nobody_reads_do_not_pile_up():
    session = Session()
    collected = gc_callback(session)
    for _ in range(2 * MOST_WORDS // EVENT_WORDS):
        collected("start", {"generation": 2})
        collected("stop", {"generation": 2})
    assert len(session.journal.words) == MOST_WORDS
    session.journal.take()
    session.journal.owner = GONE
    collected("stop", {"generation": 2})
    assert not session.journal.words
