"""Runs inside the target, between two bytecodes of its main thread: puts the hook in, or takes it out.

This file's text travels to the target and is executed there in a namespace of its own; it imports nothing
of aitop. Every error becomes an answer, and whatever was begun is undone. Only a KeyboardInterrupt, which
is the user's, goes through to the injected line, which hands it back to the program.
"""

from __future__ import annotations

import sys

# `typing` is not imported in a target that does without it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any

PACKAGE = "_aitop_hook"
# Functions of importlib that take, hold or give back a module's lock. Up to Python 3.11 an import that begins inside
# one of them breaks the import that it interrupts (KeyError in _ModuleLock.acquire), and with it the program.
LOCKING = frozenset(
    ("acquire", "release", "has_deadlock", "_get_module_lock", "cb", "_lock_unlock_module", "__enter__", "__exit__")
)


def taking_an_import_lock() -> bool:
    """Whether the main thread was interrupted at a moment at which nothing may be imported."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in LOCKING and frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def forget() -> None:
    """Drops the package from the table of modules."""
    for name in [name for name in list(sys.modules) if name == PACKAGE or name.startswith(PACKAGE + ".")]:
        sys.modules.pop(name, None)


def load(modules: list[tuple[str, bytes, bytes | None]], loads: Any) -> Any:
    """Makes the package out of (name, source, compiled code or None), each after what it imports; the package is last.

    Nothing is put into `sys.meta_path`: a thread that imports at this moment iterates it, and would miss a finder.
    """
    spec_of: Any = type(sys.__spec__)  # ModuleSpec, without importing importlib
    module_of: Any = type(sys)
    package = module_of(PACKAGE)
    for name, source, compiled in modules:
        origin = f"<aitop hook>/{name.rpartition('.')[2] if name != PACKAGE else '__init__'}.py"
        code: CodeType = loads(compiled) if compiled else compile(source, origin, "exec", dont_inherit=True)
        module: ModuleType = package if name == PACKAGE else module_of(name)
        module.__spec__ = spec_of(name, None, origin=origin, is_package=name == PACKAGE)
        module.__package__ = PACKAGE
        if PACKAGE not in sys.modules:
            package.__path__ = []
            sys.modules[PACKAGE] = package
        sys.modules[name] = module
        exec(code, module.__dict__)  # noqa: S102
        if module is not package:
            setattr(package, name.rpartition(".")[2], module)
    return package


def install(modules: list[tuple[str, bytes, bytes | None]], loads: Any) -> str:
    """Loads the package if it is not there and asks it to install itself. Nothing stays where it did not."""
    hook: Any = sys.modules.get(PACKAGE)
    fresh = hook is None
    answer = "error: interrupted"
    try:
        answer = str((hook or load(modules, loads)).install("attach"))
    finally:
        if fresh and answer not in ("installed", "already"):
            forget()
    return answer


def remove() -> str:
    """Asks the hook to leave, and drops its package once it has."""
    hook: Any = sys.modules.get(PACKAGE)
    if hook is None:
        return "absent"
    answer = str(hook.remove())
    if answer in ("removed", "absent"):
        forget()
    return answer


def run(action: str, modules: list[tuple[str, bytes, bytes | None]], magic: bytes, loads: Any) -> str:
    """The answer to `action`, one line. `magic` names the bytecode that the compiled modules are in."""
    # The main thread may have been interrupted where torch.compile looks at each new frame: not at ours.
    look: Any = getattr(sys.modules.get("torch._C._dynamo.eval_frame"), "set_eval_frame", type)
    looking = look(None)
    try:
        if taking_an_import_lock():
            return "busy"
        frozen: Any = sys.modules["_frozen_importlib_external"]
        if magic != frozen.MAGIC_NUMBER:
            modules = [(name, source, None) for name, source, _ in modules]
        return install(modules, loads) if action == "install" else remove()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"error: {type(error).__name__}: {error}".replace("\n", " ")[:500]
    finally:
        look(looking)
