"""Where backwards are seen from."""

from __future__ import annotations

from typing import Any

from .optimizers import compiles
from .patches import Patches
from .wrappers import Keeper, wrap_backward


class Backwards:
    """The patch of torch's function that all backwards go through."""

    def __init__(self, torch: Any, patches: Patches, keeper: Keeper) -> None:
        self._owner = torch.autograd
        self._name = "_engine_run_backward" if hasattr(torch.autograd, "_engine_run_backward") else "backward"
        self._patches = patches
        self._keeper = keeper
        self._lifted = False

    def put(self) -> None:
        self._patches.put(self._owner, self._name, self._wrap)

    def rest(self, resting: bool) -> None:
        """A rest begins or ends, in which nothing is wanted of backwards. What torch.compile may have looked at is left
        as it is.
        """
        try:
            if not resting:
                if self._lifted:
                    self._patches.lower(self._owner, self._name, self._wrap)
                    self._lifted = False
            elif not compiles():
                # Set first: an interrupt of the user's may come in between.
                self._lifted = True
                self._lifted = self._patches.lift(self._owner, self._name)
        except Exception:
            self._keeper.failed()

    def _wrap(self, original: Any) -> Any:
        return wrap_backward(original, self._keeper)
