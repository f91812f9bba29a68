"""Calls of the user's that move data to a device or wait for it: what the wrappers around them share.

Only calls of the thread that steps count, of plain tensors, and only once a device is in use: a run on the CPU has
none of this in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from .callsites import Sites
from .journal import BLOCKING, TRANSFER, Journal
from .patches import Patches
from .stand_in import StandIn, keep_from_compiling
from .wrappers import Keeper

_now = time.monotonic_ns


def device_in_use(torch: Any) -> Callable[[Any], bool] | None:
    """The test for a tensor on the kind of device that this process has initialised; None without one."""
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and getattr(module, "is_initialized", bool)():
            return attrgetter(f"is_{kind}")
    return None


class Watch:
    """What the wrappers look at and where they note. `far` tells a tensor on a device; `nested` is set inside a call
    that is counted as a whole.
    """

    def __init__(self, torch: Any, keeper: Keeper, far: Callable[[Any], bool]) -> None:
        self.keeper = keeper
        self.journal: Journal = keeper.journal
        self.compiling = keeper.compiling
        self.far = far
        self.plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self.nested = False
        self.transfers = Sites("transfer", torch)
        self.waits = Sites("blocking", torch)

    def waited(self, name: str, start: int) -> None:
        """A call that waits for the device ends now."""
        try:
            end = _now()
            self.journal.note(BLOCKING, start, end, -1, 0)
            if self.waits.wants_next():
                self.waits.add(name, end - start)
        except Exception:
            self.keeper.failed()

    def moved(self, name: str, start: int, source: Any) -> None:
        """A copy from the tensor `source` in host memory to a device ends now, as far as the host is concerned."""
        try:
            end = _now()
            if self.keeper.traced():
                # A trace of torch.jit would record that we ask.
                return
            size = source.numel() * source.element_size()
            self.journal.note(TRANSFER, start, end, size, -1)
            if self.transfers.wants_next():
                self.transfers.add(name, end - start, size, 0 if source.is_pinned() else size)
        except Exception:
            self.keeper.failed()


keep_from_compiling(Watch.waited.__code__, Watch.moved.__code__, inner=True)


def is_async(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a copy was asked not to block. Arguments may be tensors, which must not be compared."""
    if kwargs and kwargs.get("non_blocking") is True:
        return True
    return len(args) > 1 and args[-1] is True


def put_method(patches: Patches, owner: Any, name: str, wrap: Callable[[Any], Callable[..., Any]]) -> None:
    """Let `wrap(original)` stand in for a method that `owner` has or inherits; nothing where it has none."""
    if not hasattr(owner, name):
        return

    def stand_in(original: Any) -> Any:
        call: Any = wrap(original)
        keep_from_compiling(call.__code__)
        call.__name__, call.__qualname__ = name, f"Tensor.{name}"
        return StandIn(call, original, (owner, name))

    patches.put(owner, name, stand_in)
