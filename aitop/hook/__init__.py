"""What runs inside the target: the standard library and the torch that is already there.

`import aitop.hook` in a script puts the hook in, at once or as soon as torch is imported. An attach recreates this
package in the target under the name `_aitop_hook` and calls `install`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from . import late

NAME = "_aitop_hook"

_session: Any = None
_watch: late.TorchWatch | None = None


def install(way: str) -> str:
    """Put the hook in. `way` is attach, run or import.

    Returns installed, already, busy (ask again: an optimizer is stepping, or torch is being imported), no-torch,
    or `error: …`. Never raises.
    """
    try:
        return _install(way, _is_torch_imported())
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"


def remove() -> str:
    """Take the hook out. Returns removed, absent, or busy: an optimizer is stepping, and the hook leaves by itself
    at the next batch, forward or backward. Never raises.
    """
    try:
        return _remove()
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"


def install_when_torch_is_there(way: str) -> str:
    """Install now if torch is imported, else right after it is. Returns what `install` does, or waiting."""
    global _watch
    try:
        if "torch" in sys.modules:
            return install(way)
        if _watch is None:
            _watch = late.when_torch_is_imported(lambda: _install_quietly(way))
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"
    return "waiting"


def _install_quietly(way: str) -> None:
    """Called when torch's own code has run, while Python still counts its import as under way."""
    try:
        _install(way, imported=True)
    except Exception:
        # The user's program goes on without the hook; the monitor says that there is none.
        pass


def _is_torch_imported() -> bool:
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return not getattr(spec, "_initializing", False) and "torch.nn.modules.module" in sys.modules


def _install(way: str, imported: bool) -> str:
    global _session
    torch = sys.modules.get("torch")
    if torch is None:
        return "no-torch"
    if not imported:
        return "busy"
    other = sys.modules.get(NAME)
    if other is not None and other is not sys.modules[__name__]:
        return str(other.install(way))
    from . import frames, process, session

    if _session is not None and not _session.gone:
        if _session.pid == os.getpid():
            return "already"
        # A copy that a fork brought along: it has never been of use in this process.
        _session.remove()
    if process.is_loader_worker():
        return "error: a loader worker takes no hook"
    if frames.hooks_are_iterated():
        return "busy"
    # A child of multiprocessing may be about to become a loader worker: it shows no ring before its first step.
    child = way != "attach" and _is_multiprocessing_child()
    _session = mine = session.Session(torch, way, waits_for_a_step=child)
    sys.modules[NAME] = sys.modules[__name__]
    try:
        mine.install()
    except BaseException:
        mine.remove()
        raise
    # A removal may have come while we were at it.
    return "busy" if mine.gone else "installed"


def _remove() -> str:
    global _session, _watch
    if _watch is not None:
        _watch.stop()
        _watch = None
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
    if sys.modules.get(NAME) is sys.modules.get(__name__) and __name__ != NAME:
        del sys.modules[NAME]
    return "removed"


def _is_multiprocessing_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # While a spawned child is still unpickling what it is to do, it is only marked as inheriting.
    return process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False)


if __name__ == "aitop.hook":
    install_when_torch_is_there("import")
