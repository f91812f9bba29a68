"""Measures copies between host and device, and calls that block until the device is done: reading values of tensors,
operations whose output shape depends on values, and explicit synchronisation.

Only calls of the stepping thread on plain tensors are measured. Nothing is patched before a device is in use. The
measurement itself never synchronises: it only reads the host's clock before and after each call.
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

# Methods of Tensor that may copy between host and device.
COPIES = ("to", "cuda", "cpu", "copy_")
# Methods of Tensor that wait for the device. `numpy` is not among them, as it accepts only tensors on the host.
WAITS = (
    *("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__", "is_nonzero", "equal"),
    *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "__repr__"),
)
NAMES = {
    **{f"__{name}__": name for name in ("bool", "int", "float", "index", "complex")},
    "__repr__": "print",
}

_now = time.monotonic_ns
_ident = _thread.get_ident


class DeviceCalls(Measure):
    """Puts its patches in as soon as the program has initialised a device."""

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
    """Return a predicate for tensors on the kind of device that this process has initialised; None without one."""
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and getattr(module, "is_initialized", bool)():
            return attrgetter(f"is_{kind}")
    return None


class Watch:
    """State shared by the wrappers.

    `far` tells if a tensor is on a device; `nested` is set inside a copy or a blocking call.
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
        """Note a blocking call that ends now."""
        try:
            end = _now()
            self.journal.note(BLOCKING, start, end, -1, 0)
            if self.waits.wants_next():
                self.waits.add(name, end - start)
        except Exception:
            self.session.failed()

    def moved(self, name: str, start: int, source: Any) -> None:
        """Note a copy of `source` from host memory to a device. The call returns now; the copy may still be running."""
        try:
            end = _now()
            if self.session.traced():
                # A torch.jit trace would record what we read of the tensor.
                return
            size = source.numel() * source.element_size()
            self.journal.note(TRANSFER, start, end, size, -1)
            if self.transfers.wants_next():
                self.transfers.add(name, end - start, size, 0 if source.is_pinned() else size)
        except Exception:
            self.session.failed()


keep_from_compiling(Watch.waited.__code__, Watch.moved.__code__, inner=True)


def put_in(torch: Any, patches: Patches, watch: Watch) -> None:
    """Wrap the copies and the blocking calls."""
    for name in COPIES:
        put_method(patches, torch.Tensor, name, partial(wrap_copy, name=name, watch=watch))
    for name in WAITS:
        put_method(patches, torch.Tensor, name, partial(wrap_wait, name=NAMES.get(name, name), watch=watch))
    for owner, name, shown in _synchronisations(torch):
        patches.put(owner, name, partial(wrap_wait, name=shown, watch=watch, of_tensor=False))


def _synchronisations(torch: Any) -> list[tuple[Any, str, str]]:
    """Return the functions that wait for a whole device, a stream or an event: (owner, attribute, name to show).

    `torch.cuda.synchronize` may have been imported by name, so the function that it calls is wrapped instead.
    """
    places = [(torch._C, f"_{kind}_synchronize", f"{kind}.synchronize") for kind in ("cuda", "xpu")]
    for kind in ("cuda", "xpu"):
        module = sys.modules.get(f"torch.{kind}")
        for name in ("Stream", "Event"):
            places.append((getattr(module, name, None), "synchronize", f"{name}.synchronize"))
    return [(owner, name, shown) for owner, name, shown in places if owner is not None and name in vars(owner)]


def is_async(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a copy was asked not to block. Compares by identity only, because arguments may be tensors."""
    if kwargs and kwargs.get("non_blocking") is True:
        return True
    return len(args) > 1 and args[-1] is True


def wrap_copy(original: Callable[..., Any], name: str, watch: Watch) -> Callable[..., Any]:
    """Wrap one of COPIES: a method that returns the tensor in another place, or `copy_`, which fills the tensor.

    A copy from host to device is a transfer. A copy from device to host blocks, unless it was asked not to.
    """
    compiling, journal, plain, far, fills = watch.compiling, watch.journal, watch.plain, watch.far, name == "copy_"

    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or type(self) not in plain or _ident() != journal.owner or watch.nested:
            return original(self, *args, **kwargs)
        start = _now()
        try:
            # A mode such as `with torch.device("cuda")` calls it again from within.
            watch.nested = True
            result = original(self, *args, **kwargs)
        finally:
            watch.nested = False
        source = self
        if fills:
            source = args[0] if args else kwargs.get("other", kwargs.get("src"))
        # Other types come from a tensor subclass or a mode that overrides torch's functions.
        if result is not source and type(result) in plain and type(source) in plain:
            was_far = far(source)
            if was_far is not far(result):
                if not was_far:
                    watch.moved(name, start, source)
                elif not is_async(args, kwargs):
                    watch.waited(name, start)
        return result

    return copy


def wrap_wait(original: Callable[..., Any], name: str, watch: Watch, *, of_tensor: bool = True) -> Callable[..., Any]:
    """Wrap a method that waits if its tensor is on a device, or (not `of_tensor`) another function that waits for one.

    Calls nested in it are not noted separately: printing a tensor makes many small ones.
    """
    compiling, journal, plain, far = watch.compiling, watch.journal, watch.plain, watch.far

    def wait(*args: Any, **kwargs: Any) -> Any:
        if (
            compiling()
            or (of_tensor and not (args and type(args[0]) in plain and far(args[0])))
            or _ident() != journal.owner
            or watch.nested
        ):
            return original(*args, **kwargs)
        start = _now()
        try:
            watch.nested = True
            return original(*args, **kwargs)
        finally:
            watch.nested = False
            watch.waited(name, start)

    return wait
