"""Measures copies between host and device, and calls that wait for the device: values read from tensors on it, shapes
that depend on values, synchronisations.

Only calls of the thread that steps count, of plain tensors, and only once a device is in use: before, nothing is
patched. None of this synchronises by itself; the calls do what they did, between two readings of the host's clock.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ...protocol.events import BLOCKING, TRANSFER
from ..compiler import keep_from_compiling
from ..journal import Journal
from ..patches import Patches, put_method
from . import Measure
from .callsites import Sites

if TYPE_CHECKING:
    from ..session import Session

# Methods of Tensor that copy it.
COPIES = ("to", "cuda", "cpu")
# Methods of Tensor that wait for their result on the host. `numpy` wants its tensor on the host already.
VALUES = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__", "is_nonzero", "equal")
SHAPES = ("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive")
NAMES = {"__bool__": "bool", "__int__": "int", "__float__": "float", "__index__": "index", "__complex__": "complex"}

_now = time.monotonic_ns
_ident = _thread.get_ident


class DeviceCalls(Measure):
    """Puts its patches in as soon as the program uses a device."""

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self._torch = torch
        self._patches = patches
        self._session = session
        self._watch: Watch | None = None
        self.look(0)

    def look(self, now: int) -> None:
        watch = self._watch
        if watch is not None:
            watch.transfers.tick()
            watch.waits.tick()
            return
        far = device_in_use(self._torch)
        if far is not None:
            self._watch = watch = Watch(self._torch, self._session, far)
            put_in(self._torch, self._patches, watch)
            self.watches = ("transfer", "blocking")

    def facts(self) -> dict[str, Any]:
        watch = self._watch
        return {} if watch is None else {"calls": watch.transfers.facts() + watch.waits.facts()}


def device_in_use(torch: Any) -> Callable[[Any], bool] | None:
    """Return a test for tensors on the kind of device that this process has initialised; None without one."""
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and getattr(module, "is_initialized", bool)():
            return attrgetter(f"is_{kind}")
    return None


class Watch:
    """What the wrappers share. `far` tests for a tensor on a device; `nested` is set inside a call that is counted as
    a whole.
    """

    def __init__(self, torch: Any, session: Session, far: Callable[[Any], bool]) -> None:
        self.session = session
        self.journal: Journal = session.journal
        self.compiling = session.compiling
        self.far = far
        self.plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self.nested = False
        self.transfers = Sites("transfer", torch)
        self.waits = Sites("blocking", torch)

    def waited(self, name: str, start: int) -> None:
        """Note a call that waits for the device and ends now."""
        try:
            end = _now()
            self.journal.note(BLOCKING, start, end, -1, 0)
            if self.waits.wants_next():
                self.waits.add(name, end - start)
        except Exception:
            self.session.failed()

    def moved(self, name: str, start: int, source: Any) -> None:
        """Note a copy from the tensor `source` in host memory to a device, which ends now as far as the host sees."""
        try:
            end = _now()
            if self.session.traced():
                # A trace of torch.jit would record that we ask.
                return
            size = source.numel() * source.element_size()
            self.journal.note(TRANSFER, start, end, size, -1)
            if self.transfers.wants_next():
                self.transfers.add(name, end - start, size, 0 if source.is_pinned() else size)
        except Exception:
            self.session.failed()


keep_from_compiling(Watch.waited.__code__, Watch.moved.__code__, inner=True)


def put_in(torch: Any, patches: Patches, watch: Watch) -> None:
    """Wrap the copies and the calls that wait."""
    for name in COPIES:
        put_method(patches, torch.Tensor, name, partial(wrap_move, name=name, watch=watch))
    put_method(patches, torch.Tensor, "copy_", partial(wrap_copy, watch=watch))
    for name in VALUES + SHAPES:
        put_method(patches, torch.Tensor, name, partial(wrap_wait, name=NAMES.get(name, name), watch=watch))
    put_method(patches, torch.Tensor, "__repr__", partial(wrap_print, watch=watch))
    for owner, name, shown in _synchronisations(torch):
        patches.put(owner, name, partial(wrap_synchronize, name=shown, watch=watch))


def _synchronisations(torch: Any) -> list[tuple[Any, str, str]]:
    """Return where a program may wait for all of a device, a stream or an event: owner, attribute, name to show.

    For `torch.cuda.synchronize` it is what that calls, as others may have imported it by name.
    """
    places = [(torch._C, f"_{kind}_synchronize", f"{kind}.synchronize") for kind in ("cuda", "xpu")]
    for kind in ("cuda", "xpu"):
        module = sys.modules.get(f"torch.{kind}")
        for name in ("Stream", "Event"):
            places.append((getattr(module, name, None), "synchronize", f"{name}.synchronize"))
    return [(owner, name, shown) for owner, name, shown in places if owner is not None and name in vars(owner)]


def is_async(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a copy was asked not to block. Arguments may be tensors, which must not be compared."""
    if kwargs and kwargs.get("non_blocking") is True:
        return True
    return len(args) > 1 and args[-1] is True


def wrap_move(original: Callable[..., Any], name: str, watch: Watch) -> Callable[..., Any]:
    """Wrap a method that returns the tensor in another place, or the tensor itself if it is there already.

    A copy to the device is a transfer. A copy back to the host blocks, unless it was asked not to.
    """
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
    """Wrap `Tensor.copy_`, which fills `self` from another tensor."""
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


def wrap_wait(original: Callable[..., Any], name: str, watch: Watch) -> Callable[..., Any]:
    """Wrap a method of a tensor that waits if the tensor is on a device."""
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
    """Wrap `Tensor.__repr__`, which reads the tensor in many small calls: they count as one."""
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
    """Wrap a function or method that waits for a device, a stream or an event."""
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
