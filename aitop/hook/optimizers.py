"""Where the steps of optimizers are seen from: at a place that compiled code does not look at.

The hooks that torch has for all optimizers are the cheapest. But code that went through `step` under torch.compile
checks each time whether there are any, and is compiled again when some come or go. So where the program compiles,
`record_function` is watched, which torch enters for each step that is not compiled, and which torch.compile ignores.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .frames import hooks_are_iterated
from .patches import Patches
from .stand_in import keep_from_compiling
from .stepping import optimizer_hooks
from .wrappers import Keeper

STEP = "Optimizer.step#"

Hook = Callable[[Any, Any, Any], None]


class OptimizerWatch:
    """Puts the keeper's hooks for optimizers in, one way or the other."""

    def __init__(self, torch: Any, patches: Patches, keeper: Keeper) -> None:
        self._torch = torch
        self._patches = patches
        self._before, self._after = optimizer_hooks(keeper)
        keep_from_compiling(self._before.__code__, self._after.__code__, inner=True)
        self._keeper = keeper
        self._handles: list[Any] = []
        self._careful = False

    def install(self) -> None:
        if compiles():
            self._be_careful()
            return
        optimizer = sys.modules.get("torch.optim.optimizer")
        if optimizer is not None:
            self._handles.append(optimizer.register_optimizer_step_pre_hook(self._before))
            self._handles.append(optimizer.register_optimizer_step_post_hook(self._after))

    def rest(self, resting: bool) -> None:
        """A rest begins or ends, in which nothing is wanted of the beginnings of steps. Only the value that torch's
        table has is another one then, so that a thread may be in a loop over it. What torch.compile may have looked at
        is left as it is.
        """
        try:
            if compiles():
                if not resting:
                    # To put ours back first would make it compile once more.
                    self.look()
                return
            if not self._handles:
                return
            handle = self._handles[0]
            hooks = handle.hooks_dict_ref()
            if handle.id in hooks:
                hooks[handle.id] = before_nothing if resting else self._before
        except Exception:
            self._keeper.failed()

    def look(self) -> None:
        """Change over once the program has begun to compile: before an optimizer is, where it goes well."""
        if not self._careful and self._handles and compiles() and not hooks_are_iterated():
            self.remove()
            self._be_careful()

    def remove(self) -> None:
        """Take the hooks back; patches are taken back by whoever keeps them."""
        while self._handles:
            self._handles.pop().remove()

    def _be_careful(self) -> None:
        self._careful = True
        recording = self._torch.autograd.profiler.record_function
        self._patches.put(recording, "__enter__", self._entering)
        self._patches.put(recording, "__exit__", self._leaving)

    def _entering(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        before, keeper = self._before, self._keeper

        def __enter__(self: Any) -> Any:  # noqa: N807
            try:
                if self.name.startswith(STEP):
                    values = sys._getframe(1).f_locals
                    before(values["self"], values["args"], values["kwargs"])
            except Exception:
                keeper.failed()
            return original(self)

        keep_from_compiling(__enter__.__code__)
        return __enter__

    def _leaving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        after, keeper = self._after, self._keeper

        def __exit__(self: Any, error: Any, *rest: Any) -> Any:  # noqa: N807
            done = original(self, error, *rest)
            try:
                if error is None and self.name.startswith(STEP):
                    values = sys._getframe(1).f_locals
                    after(values["self"], values["args"], values["kwargs"])
            except Exception:
                keeper.failed()
            return done

        keep_from_compiling(__exit__.__code__)
        return __exit__


def before_nothing(optimizer: Any, args: Any, kwargs: Any) -> None:
    """The hook before a step, in rests."""


def compiles() -> bool:
    """Whether torch.compile has looked at any code of this program."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    frames = getattr(dynamo, "counters", {}).get("frames")
    return bool(frames and frames.get("total"))
