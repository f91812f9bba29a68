"""Finds the root modules: those with parameters that the program calls directly, not from within another module.

`Module.__call__` is wrapped for a few calls, afterwards only `__call__` of the classes of the roots that were found.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .compiler import keep_from_compiling
from .patches import Patches
from .phases import wrap_forward, wrap_watched

if TYPE_CHECKING:
    from .session import Session

STEPS_TO_WATCH = 2
STEPS_TO_SEARCH = 20
CALLS_TO_WATCH = 8
FIRST_AGAIN_NS = 10_000_000_000
LONGEST_AGAIN_NS = 300_000_000_000
AGAIN_WHEN_BLIND_NS = 5_000_000_000
# Each watch changes torch's Module class twice. From Python 3.13 on, attribute lookups on a class that was changed a
# thousand times stay slow for good.
MOST_WHEN_BLIND, MOST_WATCHES = 20, 200
MOST_CLASSES = 64
# A watch may begin while a module runs whose call was not seen. For this long, its parts are not taken for roots. A
# module that runs longer may be the whole program.
PARTIAL_NS = 5_000_000_000


class Roots:
    """The classes of the root modules. While `watching`, the calls of all modules are wrapped."""

    def __init__(self, module_class: Any, patches: Patches, session: Session) -> None:
        self._module_class = module_class
        self._patches = patches
        self._session = session
        self._classes: list[Any] = []
        self._wrappers: dict[Any, Any] = {}
        self._calls = 0
        self._began = 0
        self._again_after = FIRST_AGAIN_NS
        self._since = 0
        self._watches = 0
        self.watching = False
        frames = sys.modules.get("torch._C._dynamo.eval_frame")
        self._tracer: Callable[[], Any] = getattr(frames, "get_eval_frame_callback", lambda: None)
        # What runs for as long as a module does, what calls that, and what of ours calls that in turn.
        self._call, self._enters = map(self._code, ("_call_impl", "_wrapped_call_impl"))
        self._ours = {session.aside.__code__}

    def _code(self, name: str) -> Any:
        """Return the code of a method of torch's Module, without the wrappers of a hook that has not left yet."""
        method = vars(self._module_class).get(name)
        while hasattr(method, "__wrapped__"):
            method = method.__wrapped__
        return getattr(method, "__code__", None)

    def watch(self, now: int, steps: int = 0) -> None:
        """Wrap the calls of all modules from now on. `steps`: number of steps so far."""
        self._calls = 0
        self._began = steps
        self._since = now
        self._watches += 1
        self.watching = True
        session = self._session

        def wrap(original: Any) -> Any:
            wrapper = wrap_watched(original, session, within=self._within)
            self._ours.add(wrapper.__code__)
            return wrapper

        self._patches.put(self._module_class, "__call__", wrap)

    def met(self, module: Any) -> bool:
        """Return whether this outermost module is a root, which has parameters, unlike a loss or a transform."""
        if next(module.parameters(), None) is None or self._is_part():
            return False
        self._calls += 1
        if type(module) not in self._classes and len(self._classes) < MOST_CLASSES:
            self._classes.append(type(module))
        return True

    def _is_part(self) -> bool:
        """Return whether this thread is in a module whose call began before the watch: our wrapper did not make it."""
        if time.monotonic_ns() - self._since > PARTIAL_NS:
            return False
        outer: Any = sys._getframe()
        called = False
        while outer is not None:
            if called and outer.f_code is not self._enters:
                if not self._is_ours(outer):
                    return True
                called = False
            called = called or outer.f_code is self._call
            outer = outer.f_back
        return called

    def _is_ours(self, frame: Any) -> bool:
        """Return whether a frame is of our wrapper. That of a hook that was in before has the same code."""
        if frame.f_code not in self._ours:
            return False
        known = frame.f_locals
        return known.get("session", known.get("self")) is self._session

    def may_be(self, module: Any) -> bool:
        """Return whether this module, called outermost in a thread other than the owner, may be a root."""
        try:
            if self.watching:
                if not self.met(module):
                    return False
                self._session.facts.met_aside(module)
            return True
        except Exception:
            self._session.failed()
            return True

    def look(self, now: int, steps: int, blind: bool) -> None:
        """End the watch when it has seen enough, and begin a new one from time to time.

        With `blind` (steps are seen, but no forwards) the next watch comes sooner. `steps`: number of steps so far; in
        a run that serves, forwards and calls of `generate` count as steps. After a watch the roots' own classes are
        wrapped, so a new watch does not meet the calls of known roots.
        """
        if not self.watching:
            soon = blind and self._watches < MOST_WHEN_BLIND
            pause = AGAIN_WHEN_BLIND_NS if soon else self._again_after
            if self._watches < MOST_WATCHES and now - self._since > pause:
                self._again_after = min(3 * self._again_after, LONGEST_AGAIN_NS)
                self.watch(now, steps)
            return
        if self._patches.lost(self._module_class, "__call__"):
            # A tracer (torch.fx, torch.compile) had its own `__call__` in place when we patched it, and restored it.
            self.watch(now, steps)
            return
        seen = steps - self._began
        if (self._calls and (seen >= STEPS_TO_WATCH or self._calls >= CALLS_TO_WATCH)) or seen >= STEPS_TO_SEARCH:
            self._narrow()

    def _within(self) -> None:
        """End the watch if torch.compile is about to trace a root: otherwise it would recompile when the watch ends."""
        try:
            if self.watching and callable(self._tracer()):
                self._narrow()
        except Exception:
            self._session.failed()

    def _narrow(self) -> None:
        self.watching = False
        self._patches.take_back(self._module_class, "__call__")
        # Classes that define it come first: those that inherit it from one of them then have its wrapper already.
        for root in sorted(self._classes, key=lambda root: _inherits_from(root) is not None):
            wrapped = self._patches.has(root, "__call__") or root.__call__ in self._wrappers.values()
            if root is not self._module_class and not wrapped and self._can_be_pickled(root):
                self._patches.put(root, "__call__", partial(self._wrapper, root))

    def _can_be_pickled(self, root: Any) -> bool:
        """Return whether the class of a root can be pickled with our wrapper in it.

        cloudpickle pickles a class of the main script, or one that a function made, by value with all that is in it: so
        our wrapper must have a name, see `_wrapper`.
        """
        if root.__module__ != "__main__" and "<locals>" not in root.__qualname__:
            return True
        holder, original = _inherits_from(root), root.__call__
        named = None if holder is None else vars(holder).get(getattr(original, "__name__", "__call__"))
        return original.__module__ != "__main__" and (named is original or named in self._wrappers.values())

    def _wrapper(self, root: Any, original: Any) -> Any:
        """Return the wrapper for `__call__` of a root's class: one for all that inherit it from the same class.

        That one is also put where the name of the original leads (`Module._wrapped_call_impl`; nothing calls it by that
        name). So what pickles the class of a root by value, as cloudpickle does with those of the main script, finds
        the wrapper there and refers to it by name. In another process that name is the original.
        """
        holder = _inherits_from(root)
        # A class that defines it needs another wrapper than those that inherit it: these look it up in that class.
        key = root if holder is None else holder, holder
        if key not in self._wrappers:
            self._wrappers[key] = wrapper = wrap_forward(original, self._session, holder)
            name = getattr(original, "__name__", "__call__")
            if name != "__call__" and vars(key[0]).get(name) is original:
                self._patches.put(key[0], name, lambda _: wrapper)
        return self._wrappers[key]


def _inherits_from(root: Any) -> Any:
    """Return the class that a root's class inherits `__call__` from, None if it defines its own."""
    holder = next(base for base in root.__mro__ if "__call__" in vars(base))
    return None if holder is root else holder


keep_from_compiling(Roots._within.__code__)
keep_from_compiling(Roots.may_be.__code__, inner=True)
keep_from_compiling(Roots._narrow.__code__, inner=True)
