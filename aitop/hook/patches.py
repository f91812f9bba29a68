"""Replaces attributes of torch and restores them. After that each is the very same object in the very same place."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from .compiler import keep_from_compiling
from .errors import raise_if_of_program


class Patches:
    """The attributes that are replaced at the moment, newest last: owner, name, original and wrapper of each."""

    def __init__(self) -> None:
        self._made: list[SimpleNamespace] = []
        self._over = False

    def put(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace the attribute `name` of a class or module by `wrap(original)`. No effect after `take_all_back`."""
        own = vars(owner)
        inherited = name not in own
        original = getattr(owner, name) if inherited else own[name]
        wrapper = wrap(original)
        if isinstance(wrapper, FunctionType):
            keep_from_compiling(wrapper.__code__)
            _dress(wrapper, original)
            if isinstance(owner, ModuleType):
                # Pickle looks a function up in the module that it names, and must find the same object there.
                wrapper.__module__ = owner.__name__
        patch = SimpleNamespace(owner=owner, name=name, inherited=inherited, original=original, wrapper=wrapper)
        # Recorded before the attribute is set, because a KeyboardInterrupt may come in between.
        self._made.append(patch)
        setattr(owner, name, wrapper)
        if self._over:
            # `take_all_back` may have run between any two bytecodes of this method.
            self.take_all_back()
            _restore(patch)

    def has(self, owner: Any, name: str) -> bool:
        """Return whether we have replaced this attribute."""
        return any(patch.owner is owner and patch.name == name for patch in self._made)

    def lost(self, owner: Any, name: str) -> bool:
        """Return whether we replaced this attribute and somebody has since put something else in its place."""
        wrappers = [patch.wrapper for patch in self._made if patch.owner is owner and patch.name == name]
        return bool(wrappers) and vars(owner).get(name) not in wrappers

    def take_back(self, owner: Any, name: str) -> None:
        """Put one attribute back."""
        for patch in [made for made in reversed(self._made) if made.owner is owner and made.name == name]:
            self._made.remove(patch)
            _restore(patch)

    def take_all_back(self) -> None:
        """Put every attribute back, for good."""
        self._over = True
        while self._made:
            try:
                _restore(self._made[-1])
            except Exception:
                # A class may refuse it. The wrapper that stays only forwards calls.
                raise_if_of_program()
            # Forgotten only now, because a KeyboardInterrupt may come in between.
            del self._made[-1:]


def _dress(wrapper: Any, original: Any) -> None:
    """Give the wrapper the name, docstring, signature and source of the original, for code that inspects it."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        value = getattr(original, name, None)
        if isinstance(value, str):
            setattr(wrapper, name, value)
    wrapper.__wrapped__ = original


def _restore(patch: SimpleNamespace) -> None:
    """Put the original back. If somebody has wrapped our wrapper since, it stays and only forwards calls."""
    if vars(patch.owner).get(patch.name) is not patch.wrapper:
        return
    if patch.inherited:
        delattr(patch.owner, patch.name)
    else:
        setattr(patch.owner, patch.name, patch.original)


def put_method(patches: Patches, owner: Any, name: str, wrap: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace a method that a C type `owner` has or inherits by `wrap(original)`. No effect if it has none."""
    if not hasattr(owner, name):
        return

    def stand_in(original: Any) -> Any:
        call: Any = wrap(original)
        keep_from_compiling(call.__code__)
        call.__name__, call.__qualname__ = name, f"Tensor.{name}"
        return StandIn(call, original, (owner, name))

    patches.put(owner, name, stand_in)


class StandIn:
    """Replaces a method of a C type: runs `call`, but compares equal to `original` and has its hash.

    That is needed because libraries and torch.compile look up methods of Tensor in sets and dictionaries, for example
    to decide how to handle a subclass. `place` is the class and the name under which the method is found.
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
        """Pickle and copy by name, because the process that reads it may have no hook."""
        return getattr, self.place

    def __repr__(self) -> str:
        return repr(self.original)


keep_from_compiling(StandIn.__get__.__code__)
keep_from_compiling(StandIn.__eq__.__code__, StandIn.__hash__.__code__, StandIn.__getattr__.__code__, inner=True)
