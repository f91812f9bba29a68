"""Runs inside the target, in its main thread between two bytecodes: puts the hook in, or takes it out.

This file's text travels to the target and is executed there in a namespace of its own; it imports nothing of aitop.
Every error becomes an answer, and whatever was begun is undone. Only a KeyboardInterrupt, which is the user's, goes
through to the injected line, which hands it back to the program.
"""

# The main thread may be at a moment at which nothing may be imported. Until that is known, only modules that every
# interpreter has loaded are used. `__future__` is none of them, so annotations are strings.
import sys

# Not from `typing`, which the target may not have loaded.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any

# The package that is made of the modules that travel, the hook's package in it, and where the hook of a process is
# found, however it came in.
ROOT = "_aitop"
HOOK = "hook"
ENTRANCE = "_aitop_hook"
# Parts that wait are dropped when no more come for this long: the monitor may have been killed.
PATIENCE_S = 2.0
# Functions of importlib that take, hold or release a module's lock. Up to Python 3.11 an import that begins inside one
# of them breaks the import that it interrupts (KeyError in _ModuleLock.acquire), and so the program.
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


class Arriving:
    """The modules that have arrived so far, and in how many parts. `bundle` identifies the version they belong to.

    Between two parts it is a callback of the garbage collector, the only place that every program comes through by
    itself: so it can drop itself where no more parts come. That is the last resort: a monitor that gives up asks for it
    (`drop`), and so does watchdog.py for one that was killed.
    """

    def __init__(self, bundle: str) -> None:
        self.bundle = bundle
        self.parts = 0
        self.modules: dict[str, ModuleType] = {}
        self.until = 0.0
        self.callbacks: list[Any] = []
        self.clock: Any = None

    def __call__(self, phase: str, info: "Any") -> None:
        if phase == "stop" and self.clock() > self.until:
            self.modules.clear()
            # The list is being iterated: removed anywhere but at its end, this would hide the next callback.
            if self.callbacks and self.callbacks[-1] is self:
                self.callbacks.pop()

    def wait(self) -> None:
        """Takes the package out of `sys.modules` and holds it for the next part."""
        # Imported only where parts wait: the program may not have loaded them.
        import gc  # noqa: PLC0415
        import time  # noqa: PLC0415

        self.modules = forget()
        self.callbacks, self.clock = gc.callbacks, time.monotonic
        self.until = self.clock() + PATIENCE_S
        compiler: Any = self.modules.get(f"{ROOT}.{HOOK}.compiler")
        if compiler is not None:
            compiler.keep_from_compiling(Arriving.__call__.__code__)
        self.callbacks.append(self)


def so_far(bundle: str, parts: int) -> "Arriving | None":
    """What has arrived of this bundle: new where it begins, None where other than `parts` parts are there."""
    collector: Any = sys.modules.get("gc")
    callbacks: list[Any] = collector.callbacks if collector is not None else []
    # By name: each part has defined a class of its own.
    waiting = [callback for callback in callbacks if type(callback).__name__ == Arriving.__name__]
    for callback in waiting:
        callbacks.remove(callback)
    arriving = Arriving(bundle)
    if parts:
        before = [each for each in waiting if each.modules and (each.bundle, each.parts) == (bundle, parts)]
        if not before:
            return None
        arriving.modules, arriving.parts = before[0].modules, parts
    return arriving


def forget() -> "dict[str, ModuleType]":
    """Removes the packages from `sys.modules`, and returns what was there of them."""
    names = [name for name in list(sys.modules) if name.partition(".")[0] in (ROOT, ENTRANCE)]
    return {name: sys.modules.pop(name) for name in names}


def load(modules: "list[tuple[str, bytes, bytes | None]]", loads: "Any") -> "Any":
    """Makes modules of (name, source, compiled code or None), each after those that it imports; returns the last.

    `sys.meta_path` is left alone: a thread that imports at this moment iterates it, and would miss a finder.
    """
    module: Any = None
    for path, source, compiled in modules:
        origin = file_name(path.partition(".")[2])
        code: CodeType = loads(compiled) if compiled else compile(source, origin, "exec", dont_inherit=True)
        name, _, last = path.rpartition(".")
        if last == "__init__":
            module = package(name)
        else:
            above = package(name)
            module = added(path, name)
        module.__spec__.origin = origin
        exec(code, module.__dict__)  # noqa: S102
        if last != "__init__":
            setattr(above, last, module)
    return module


def package(name: str) -> "Any":
    """Returns the package of that name; makes it, and those above it, where it is not there yet."""
    if name in sys.modules:
        return sys.modules[name]
    above, _, last = name.rpartition(".")
    holder = package(above) if above else None
    made = added(name, name)
    made.__path__ = []
    if holder is not None:
        setattr(holder, last, made)
    return made


def added(name: str, package_name: str) -> "Any":
    """Puts a new, empty module into the table of modules."""
    spec_of: Any = type(sys.__spec__)  # ModuleSpec, without importing importlib
    module: Any = type(sys)(name)
    module.__spec__ = spec_of(name, None, is_package=name == package_name)
    module.__package__ = package_name
    sys.modules[name] = module
    return module


def file_name(module: str) -> str:
    """The name of the file in the code of a module, by its name below aitop."""
    return f"<aitop hook>/{module.removeprefix(HOOK + '.').replace('.', '/')}.py"


def bring(start: "dict[str, Any]", modules: "list[tuple[str, bytes, bytes | None]]", loads: "Any") -> str:
    """Loads a part of the package, and after the last one asks the package to install itself.

    Returns the hook's answer; `next` for a part that is not the last; `lost` where the parts before it are not there,
    so that everything has to come in one block. Where the hook does not install itself nothing stays, except parts that
    wait for more or for a better moment.
    """
    hook: Any = sys.modules.get(ENTRANCE)
    if hook is not None:
        return str(hook.install("attach"))
    arriving = so_far(start["bundle"], start["part"])
    if arriving is None:
        return "lost"
    answer = "error: interrupted"
    try:
        sys.modules.update(arriving.modules)
        hook = load(modules, loads)
        if not start["more"]:
            sys.modules[ENTRANCE] = hook
        answer = "next" if start["more"] else str(hook.install("attach"))
    finally:
        if answer == "next":
            arriving.parts += 1
        if answer == "next" or (answer == "busy" and arriving.parts):
            arriving.wait()
        elif answer not in ("installed", "already"):
            forget()
    return answer


def drop() -> str:
    """Drops parts that wait for more; a hook that is installed stays."""
    so_far("", 0)
    return "dropped"


def remove() -> str:
    """Asks the hook to leave and then drops its package; also drops parts that wait for more."""
    drop()
    hook: Any = sys.modules.get(ENTRANCE)
    if hook is None:
        return "absent"
    answer = str(hook.remove())
    if answer in ("removed", "absent"):
        forget()
    return answer


def run(start: "dict[str, Any]", loads: "Any") -> str:
    """Carries out the request in `start`, which payload/bundle.py made, and returns the answer: one line."""
    # The main thread may have been interrupted where torch.compile looks at each new frame: it must not look at ours.
    set_eval_frame: Any = getattr(sys.modules.get("torch._C._dynamo.eval_frame"), "set_eval_frame", type)
    eval_frame = set_eval_frame(None)
    try:
        if taking_an_import_lock():
            return "busy"
        modules = start["modules"]
        frozen: Any = sys.modules["_frozen_importlib_external"]
        if start["magic"] != frozen.MAGIC_NUMBER:
            modules = [(name, source, None) for name, source, _ in modules]
            if start["more"] or start["part"]:
                return "lost"
        if start["action"] == "install":
            return bring(start, modules, loads)
        return remove() if start["action"] == "remove" else drop()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"error: {type(error).__name__}: {error}".replace("\n", " ")[:500]
    finally:
        set_eval_frame(eval_frame)
