"""Calls that wait for the device: values read from tensors on it, shapes that depend on values, synchronisations.

None of this synchronises by itself: the calls do what they did, between two looks at the host's clock.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from .calls import Watch, put_method
from .patches import Patches
from .stand_in import keep_from_compiling

# Methods of Tensor that wait for their result on the host. `numpy` wants its tensor on the host already.
VALUES = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__", "is_nonzero", "equal")
SHAPES = ("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive")
NAMES = {"__bool__": "bool", "__int__": "int", "__float__": "float", "__index__": "index", "__complex__": "complex"}

_now = time.monotonic_ns
_ident = _thread.get_ident


def put_in(torch: Any, patches: Patches, watch: Watch) -> None:
    """Watch the calls from now on."""
    for name in VALUES + SHAPES:
        put_method(patches, torch.Tensor, name, partial(wrap_wait, name=NAMES.get(name, name), watch=watch))
    put_method(patches, torch.Tensor, "__repr__", partial(wrap_print, watch=watch))
    for owner, name, shown in _synchronisations(torch):
        patches.put(owner, name, partial(wrap_synchronize, name=shown, watch=watch))


def _synchronisations(torch: Any) -> list[tuple[Any, str, str]]:
    """Where a program may wait for all of a device, a stream or an event; `torch.cuda.synchronize` by what it calls, as
    others may have imported it by name.
    """
    found = [(torch._C, f"_{kind}_synchronize", f"{kind}.synchronize") for kind in ("cuda", "xpu")]
    for kind in ("cuda", "xpu"):
        module = sys.modules.get(f"torch.{kind}")
        for name in ("Stream", "Event"):
            found.append((getattr(module, name, None), "synchronize", f"{name}.synchronize"))
    return [(owner, name, shown) for owner, name, shown in found if owner is not None and name in vars(owner)]


def wrap_wait(original: Callable[..., Any], name: str, watch: Watch) -> Callable[..., Any]:
    """A method of a tensor, which waits if that is on a device."""
    compiling, journal, plain, far = watch.compiling, watch.journal, watch.plain, watch.far

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or type(self) not in plain or not far(self) or _ident() != journal.owner or watch.nested:
            return original(self, *args, **kwargs)
        start = _now()
        result = original(self, *args, **kwargs)
        watch.waited(name, start)
        return result

    return wait


def wrap_print(original: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    """`Tensor.__repr__`, which reads the tensor in many small calls: they are one here."""
    compiling, journal, plain, far = watch.compiling, watch.journal, watch.plain, watch.far

    def __repr__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if compiling() or type(self) not in plain or not far(self) or _ident() != journal.owner or watch.nested:
            return original(self, *args, **kwargs)
        start = _now()
        try:
            watch.nested = True
            return original(self, *args, **kwargs)
        finally:
            watch.nested = False
            watch.waited("print", start)

    return __repr__


def wrap_synchronize(original: Callable[..., Any], name: str, watch: Watch) -> Callable[..., Any]:
    """A function or method that waits for a device, a stream or an event."""
    compiling, journal = watch.compiling, watch.journal

    def synchronize(*args: Any, **kwargs: Any) -> Any:
        if compiling() or _ident() != journal.owner or watch.nested:
            return original(*args, **kwargs)
        start = _now()
        result = original(*args, **kwargs)
        watch.waited(name, start)
        return result

    keep_from_compiling(synchronize.__code__)
    return synchronize
