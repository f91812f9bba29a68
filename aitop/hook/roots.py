"""Finds the root modules: `Module.__call__` is watched for a few calls, then only the roots' own classes are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from . import wrappers
from .journal import Journal
from .patches import Patches
from .stand_in import keep_from_compiling

STEPS_TO_WATCH = 2
STEPS_TO_SEARCH = 20
CALLS_TO_WATCH = 8
FIRST_AGAIN_NS = 10_000_000_000
LONGEST_AGAIN_NS = 300_000_000_000
AGAIN_WHEN_BLIND_NS = 5_000_000_000
# Each watch changes the class of all modules twice, and a class that was changed a thousand times is looked up slowly
# for good, from Python 3.13 on.
MOST_WHEN_BLIND, MOST_WATCHES = 20, 200
MOST_CLASSES = 64


class Roots:
    """The classes of which an instance was called outermost. While `watching`, every module's call is looked at."""

    def __init__(self, module_class: Any, patches: Patches, keeper: wrappers.Keeper) -> None:
        self._module_class = module_class
        self._patches = patches
        self._keeper = keeper
        self._journal: Journal = keeper.journal
        self._found: list[Any] = []
        self._calls = 0
        self._began = 0
        self._again_after = FIRST_AGAIN_NS
        self._since = 0
        self._watches = 0
        self.watching = False
        frames = sys.modules.get("torch._C._dynamo.eval_frame")
        self._tracer: Callable[[], Any] = getattr(frames, "get_eval_frame_callback", lambda: None)

    def watch(self, now: int) -> None:
        """Look at every module's call from now on."""
        self._calls = 0
        self._began = self._journal.steps
        self._since = now
        self._watches += 1
        self.watching = True
        keeper = self._keeper
        self._patches.put(
            self._module_class,
            "__call__",
            lambda original: wrappers.wrap_watched(original, keeper, within=self._within),
        )

    def met(self, module: Any) -> bool:
        """Whether this outermost module is a root: one with parameters, which a loss or a transform has not."""
        if next(module.parameters(), None) is None:
            return False
        self._calls += 1
        if type(module) not in self._found and len(self._found) < MOST_CLASSES:
            self._found.append(type(module))
        return True

    def may_be(self, module: Any) -> bool:
        """Whether this one, called outermost in another thread than the owner's, may be a root: all roots may be."""
        try:
            return not self.watching or self.met(module)
        except Exception:
            self._keeper.failed()
            return True

    def look(self, now: int, blind: bool) -> None:
        """Narrow the watch when enough was seen, and widen it again from time to time; soon where it seems `blind`."""
        if not self.watching:
            soon = blind and self._watches < MOST_WHEN_BLIND
            pause = AGAIN_WHEN_BLIND_NS if soon else self._again_after
            if self._watches < MOST_WATCHES and now - self._since > pause:
                self._again_after = min(3 * self._again_after, LONGEST_AGAIN_NS)
                self.watch(now)
            return
        seen = self._journal.steps - self._began
        if (self._calls and (seen >= STEPS_TO_WATCH or self._calls >= CALLS_TO_WATCH)) or seen >= STEPS_TO_SEARCH:
            self._narrow()

    def _within(self) -> None:
        """End the watch where torch.compile is about to trace a root: it would compile again when we go."""
        try:
            if self.watching and callable(self._tracer()):
                self._narrow()
        except Exception:
            self._keeper.failed()

    def _narrow(self) -> None:
        self.watching = False
        self._patches.take_back(self._module_class, "__call__")
        keeper = self._keeper
        for found in self._found:
            if found is not self._module_class and not self._patches.has(found, "__call__"):
                self._patches.put(found, "__call__", _wrapping(keeper, _inherits_from(found)))


def _wrapping(keeper: wrappers.Keeper, holder: Any) -> Callable[[Any], Any]:
    return lambda original: wrappers.wrap_forward(original, keeper, holder)


def _inherits_from(found: Any) -> Any:
    """The class from which a root's has its `__call__`, None where it is its own."""
    holder = next(base for base in found.__mro__ if "__call__" in vars(base))
    return None if holder is found else holder


keep_from_compiling(Roots._within.__code__)
keep_from_compiling(Roots.may_be.__code__, inner=True)
keep_from_compiling(Roots._narrow.__code__, inner=True)
