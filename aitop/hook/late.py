"""Waits for torch to be imported. Costs one string comparison per import until then, and nothing afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class TorchWatch:
    """A finder of modules that finds none itself: it lets the others find torch, and then waits for its end."""

    def __init__(self, imported: Callable[[], object]) -> None:
        self._imported = imported
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
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
            # A loader with slots: torch goes without the hook.
            self.stop()


def when_torch_is_imported(call: Callable[[], object]) -> TorchWatch:
    """Call `call` right after torch has been imported; it must not raise."""
    watch = TorchWatch(call)
    sys.meta_path.insert(0, watch)
    return watch
