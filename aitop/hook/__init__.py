"""The hook: code that runs inside the target. It uses only the standard library and the torch that is already loaded.

`import aitop.hook` in a script installs the hook, at once or as soon as torch is imported. An attach recreates this
package in the target, together with `aitop.protocol`, under the name `_aitop`, and calls `install`. However it came in,
the hook of a process is `sys.modules["_aitop_hook"]`.
"""

from __future__ import annotations

import os
import sys

# `aitop run` imports this file in every Python program below it, and importing `typing` takes some milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NAME = "_aitop_hook"

_session: Any = None
_torch_watch: TorchWatch | None = None


def install(way: str, load: Callable[[str], Any] | None = None, *, imported: bool = False) -> str:
    """Install the hook. `way` is attach, run or import. An attach passes `load` (see `session.Session`).

    `imported`: torch's module code has run, even if Python still marks its import as in progress. A process without
    torch gets the hook only from an attach, and only if it is a web server.

    Returns installed, already, busy (ask again: torch is being imported, the hook was removed while it came in, or one
    is just leaving), no-torch, or `error: …`. Never raises.
    """
    try:
        return _install(way, imported or _is_torch_imported(), load)
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"


def remove() -> str:
    """Take the hook out. Never raises.

    Returns removed, absent, `error: …`, or busy: another thread runs a profile, and the hook will leave by itself in
    that thread.
    """
    try:
        return _remove()
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"


def install_when_torch_is_there(way: str) -> str:
    """Install now if torch is imported, else right after its import. Returns what `install` returns, or waiting."""
    global _torch_watch
    try:
        if "torch" in sys.modules:
            return install(way)
        if _torch_watch is None:
            _torch_watch = TorchWatch(lambda: install(way, imported=True))
            sys.meta_path.insert(0, _torch_watch)
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"
    return "waiting"


def _is_torch_imported() -> bool:
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return not getattr(spec, "_initializing", False) and "torch.nn.modules.module" in sys.modules


def _install(way: str, imported: bool, load: Callable[[str], Any] | None) -> str:
    global _session
    torch = sys.modules.get("torch")
    if torch is None:
        from .measures import WEB_SERVERS

        # Only whoever attaches knows that this process forwards its requests to one that runs a model.
        if way != "attach" or not any(name in sys.modules for name in WEB_SERVERS):
            return "no-torch"
    elif not imported:
        return "busy"
    other = sys.modules.get(NAME)
    if other is not None and other is not sys.modules[__name__]:
        return str(other.install(way))
    from . import session

    if _session is not None and not _session.gone:
        if _session.pid == os.getpid():
            if not _session.leaving:
                return "already"
            # The next attach brings a whole new one.
            _session.leave()
            return "busy"
        # A session that this process inherited in a fork. It does nothing here.
        _session.remove()
    if session.is_loader_worker():
        return "error: a loader worker takes no hook"
    # A child of multiprocessing may become a loader worker, so it opens no ring before its first step.
    child = way != "attach" and _is_multiprocessing_child()
    _session = mine = session.Session(torch, way, load, waits_for_a_step=child)
    sys.modules[NAME] = sys.modules[__name__]
    try:
        return "installed" if mine.install() else "busy"
    except BaseException:
        mine.remove()
        raise


def _remove() -> str:
    global _session, _torch_watch
    if _torch_watch is not None:
        _torch_watch.stop()
        _torch_watch = None
    other = sys.modules.get(NAME)
    if _session is None and other is not None and other is not sys.modules[__name__]:
        return str(other.remove())
    if _session is None or _session.gone:
        return "absent"
    if _session.must_wait:
        _session.leave_soon()
        return "busy"
    _session.remove()
    _session = None
    if sys.modules.get(NAME) is sys.modules.get(__name__):
        del sys.modules[NAME]
    return "removed"


def _is_multiprocessing_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # A spawned child that is still unpickling its task has no parent process set yet, only this mark.
    return process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False)


class TorchWatch:
    """An import finder that calls `imported`, which must not raise, right after torch has been imported.

    It finds no module itself: it asks the other finders for torch and wraps the loader that they return, so as to see
    the end of the import. Until then it costs one string comparison per import, afterwards nothing.
    """

    def __init__(self, imported: Callable[[], object]) -> None:
        self._imported = imported
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that another finder has for torch, None for any other module."""
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
        # A new list, because a thread that is importing now iterates the old one and would skip a finder in it.
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
            # The loader takes no new attributes (it has __slots__): torch is imported without the hook.
            self.stop()


if __name__ == "aitop.hook":
    install_when_torch_is_there("import")
