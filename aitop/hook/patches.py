"""Attributes replaced and put back: afterwards each is the very same object in the very same place."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from .stand_in import keep_from_compiling

# An attribute is wrapped no more often than that.
MOST_OF_ONE = 4


class _Patch:
    """A plain class: a dataclass would take the run that we come into most of a millisecond to make."""

    __slots__ = ("inherited", "name", "original", "owner", "wrapper")

    def __init__(self, owner: Any, name: str, inherited: bool, original: Any, wrapper: Any) -> None:
        self.owner = owner
        self.name = name
        self.inherited = inherited
        self.original = original
        self.wrapper = wrapper


class Patches:
    """What has been replaced so far, newest last."""

    def __init__(self) -> None:
        self._made: list[_Patch] = []
        self._over = False

    def put(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace `owner.name` (of a class or a module) by `wrap(original)`. Nothing stays once all was taken back."""
        own = vars(owner)
        inherited = name not in own
        original = getattr(owner, name) if inherited else own[name]
        wrapper = wrap(original)
        if hasattr(wrapper, "__code__"):
            keep_from_compiling(wrapper.__code__)
        if isinstance(wrapper, FunctionType):
            _dress(wrapper, original)
            if isinstance(owner, ModuleType):
                # Pickle looks a function up where it says that it is, and must find the very same there.
                wrapper.__module__ = owner.__name__
        patch = _Patch(owner, name, inherited, original, wrapper)
        # Noted first: an interrupt of the user's may come in between.
        self._made.append(patch)
        setattr(owner, name, wrapper)
        if self._over:
            # A removal may come between any two of our bytecodes, and what it interrupted goes on after it.
            self.take_all_back()
            _restore(patch)

    def has(self, owner: Any, name: str) -> bool:
        return any(patch.owner is owner and patch.name == name for patch in self._made)

    def take_back(self, owner: Any, name: str) -> None:
        """Undo one patch."""
        for patch in [made for made in reversed(self._made) if made.owner is owner and made.name == name]:
            self._made.remove(patch)
            _restore(patch)

    def lift(self, owner: Any, name: str) -> bool:
        """Put the original back for a while, unless somebody wrapped our wrapper meanwhile. Whether it was put back."""
        for patch in self._made:
            if patch.owner is owner and patch.name == name and vars(owner).get(name) is patch.wrapper:
                setattr(owner, name, patch.original)
                return True
        return False

    def lower(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Put the wrapper in again after a lift; where somebody wrapped the original meanwhile, one around that.
        One that wraps and unwraps again and again is left alone in the end: each of its wrappers would be kept.
        """
        made = [patch for patch in self._made if patch.owner is owner and patch.name == name]
        now = vars(owner).get(name)
        if any(now is patch.wrapper for patch in made):
            return
        for patch in made:
            if now is patch.original:
                setattr(owner, name, patch.wrapper)
                if self._over:
                    _restore(patch)
                return
        if len(made) < MOST_OF_ONE:
            self.put(owner, name, wrap)

    def take_all_back(self) -> None:
        """Undo every patch, those still to come included."""
        self._over = True
        while self._made:
            _restore(self._made.pop())


def _dress(wrapper: Any, original: Any) -> None:
    """Let it look like what it stands for to those that ask for a name, a signature or the source."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        value = getattr(original, name, None)
        if isinstance(value, str):
            setattr(wrapper, name, value)
    wrapper.__wrapped__ = original


def _restore(patch: _Patch) -> None:
    """Put the original back, unless somebody wrapped our wrapper meanwhile: then ours stays and only forwards."""
    if vars(patch.owner).get(patch.name) is not patch.wrapper:
        return
    if patch.inherited:
        delattr(patch.owner, patch.name)
    else:
        setattr(patch.owner, patch.name, patch.original)
