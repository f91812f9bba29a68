"""Copies between host and device: `Tensor.to`, `.cuda`, `.cpu` and `.copy_`.

A copy to the device is a transfer. One back to the host blocks, unless it was asked not to.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from .calls import Watch, is_async, put_method
from .patches import Patches

RETURNING = ("to", "cuda", "cpu")

_now = time.monotonic_ns
_ident = _thread.get_ident


def put_in(torch: Any, patches: Patches, watch: Watch) -> None:
    """Watch the copies from now on."""
    for name in RETURNING:
        put_method(patches, torch.Tensor, name, partial(wrap_move, name=name, watch=watch))
    put_method(patches, torch.Tensor, "copy_", partial(wrap_copy, watch=watch))


def wrap_move(original: Callable[..., Any], name: str, watch: Watch) -> Callable[..., Any]:
    """A method that returns the tensor in another place, or itself if it is there already."""
    compiling, journal, plain, far = watch.compiling, watch.journal, watch.plain, watch.far

    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or type(self) not in plain or _ident() != journal.owner or watch.nested:
            return original(self, *args, **kwargs)
        start = _now()
        moved = original(self, *args, **kwargs)
        # Anything else came from a class or a mode of the user's that overrides torch's functions.
        if moved is not self and type(moved) in plain:
            was_far = far(self)
            if was_far is not far(moved):
                if not was_far:
                    watch.moved(name, start, self)
                elif not is_async(args, kwargs):
                    watch.waited(name, start)
        return moved

    return move


def wrap_copy(original: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    """`Tensor.copy_`, which fills `self` from another tensor."""
    compiling, journal, plain, far = watch.compiling, watch.journal, watch.plain, watch.far

    def copy_(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or type(self) not in plain or _ident() != journal.owner or watch.nested:
            return original(self, *args, **kwargs)
        start = _now()
        result = original(self, *args, **kwargs)
        source = args[0] if args else kwargs.get("other", kwargs.get("src"))
        if type(source) in plain:
            was_far = far(source)
            if was_far is not far(self):
                if not was_far:
                    watch.moved("copy_", start, source)
                elif not is_async(args, kwargs):
                    watch.waited("copy_", start)
        return result

    return copy_
