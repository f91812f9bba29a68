"""What stands in for a method of a C type without being told apart from it: neither by a table of handlers that tensor
subclasses keep, nor by torch.compile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, MethodType
from typing import Any


class StandIn:
    """A method that runs `call`; equal to the `original` and of the same hash, as libraries look up what to do for a
    subclass of Tensor in sets and dictionaries of its methods. `place` is the class and the name it is found by.
    """

    __slots__ = ("call", "original", "place")

    def __init__(self, call: Callable[..., Any], original: Any, place: tuple[Any, str]) -> None:
        self.call = call
        self.original = original
        self.place = place

    def __get__(self, instance: Any, owner: Any = None, bound: Any = MethodType) -> Any:
        return self if instance is None else bound(self.call, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        mine = self.original
        return other is self or other is mine or (isinstance(other, StandIn) and other.original is mine)

    def __hash__(self) -> int:
        return hash(self.original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __reduce__(self) -> tuple[Any, tuple[Any, str]]:
        """Pickled and copied by name: where it is read there may be no hook."""
        return getattr, self.place

    def __repr__(self) -> str:
        return repr(self.original)


def keep_from_compiling(*codes: CodeType, inner: bool = False) -> None:
    """Make dynamo pass these functions over where it looks at frames as they are entered (after a graph break),
    with `inner` also what they call. A call within code that it traces is not affected. It is not imported for this.
    """
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    try:
        if hasattr(frames, "set_code_exec_strategy"):
            action = frames._FrameAction
            strategy = frames._FrameExecStrategy(action.SKIP, action.SKIP if inner else action.DEFAULT)
            for code in codes:
                frames.set_code_exec_strategy(code, strategy)
        elif hasattr(frames, "skip_code"):
            for code in codes:
                frames.skip_code(code)
    except (AttributeError, TypeError):
        # Another torch: dynamo may count a frame of ours, which does no harm.
        pass


keep_from_compiling(StandIn.__get__.__code__)
keep_from_compiling(StandIn.__eq__.__code__, StandIn.__hash__.__code__, StandIn.__getattr__.__code__, inner=True)
