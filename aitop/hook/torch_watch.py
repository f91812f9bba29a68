"""Waits for the import of torch, where the hook comes in before it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class TorchWatch:
    """Calls `imported`, which must not raise, right after torch was imported.

    It is a finder of modules that finds none itself: it lets the other finders find torch, and then waits for the end
    of its import. Until then it costs one string comparison per import, afterwards nothing.
    """

    def __init__(self, imported: Callable[[], object]) -> None:
        self._imported = imported
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that another finder has for torch, None for other modules."""
        if name != "torch" or self._asking:
            return None
        self._asking = True
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None and finder is not self else None
                if spec is not None:
                    self._arrange(spec)
                    return spec
        finally:
            self._asking = False
        return None

    def stop(self) -> None:
        """Take this finder out."""
        # A new list: a thread that imports at this moment iterates the old one, and would miss a finder in it.
        if self in sys.meta_path:
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def _arrange(self, spec: Any) -> None:
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            vars(loader).pop("exec_module", None)
            execute(module)
            self.stop()
            self._imported()

        try:
            loader.exec_module = exec_module
        except AttributeError:
            # A loader with slots: torch is imported without the hook.
            self.stop()
