"""Runs inside the target, between two bytecodes of its main thread: puts the hook in, or takes it out.

This file's text travels to the target and is executed there in a namespace of its own; it imports nothing
of aitop. Every error becomes an answer, and whatever was begun is undone. Only a KeyboardInterrupt, which
is the user's, goes through to the injected line, which hands it back to the program.
"""

# The main thread may be at a moment at which nothing may be imported. Before that is known, only what is always there
# is: `__future__` is not, so annotations are texts.
import sys

# `typing` is not imported in a target that does without it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any

# The package that is made of the modules that travel, the hook's package in it, and where the hook of a process is
# found, however it came in.
ROOT = "_aitop"
HOOK = "hook"
ENTRANCE = "_aitop_hook"
# What has arrived is dropped when no more comes for so long: whoever was bringing it may have been killed.
PATIENCE_S = 2.0
# So many new objects are to be missing to the next garbage collection while it waits, and at most so many are made.
TO_COLLECTION, MOST_BALLAST = 30, 2500
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


class Arriving:
    """The modules that have come so far, and of how many parts. `bundle` tells one version of them from another.

    It waits for the rest among the callbacks of the garbage collector: the only place that a program goes through by
    itself, where it drops itself in the end. A program that makes no more objects than it drops has no collection for
    minutes: so many are held meanwhile that a few more than before bring one about.
    """

    def __init__(self, bundle: str) -> None:
        self.bundle = bundle
        self.parts = 0
        self.modules: dict[str, ModuleType] = {}
        self.until = 0.0
        self.callbacks: list[Any] = []
        self.clock: Any = None
        self.collector: Any = None
        self.ballast: list[set[None]] = []

    def __call__(self, phase: str, info: "Any") -> None:
        if phase != "stop":
            return
        # What was held is let go of first: it counts.
        self.ballast = []
        if self.clock() > self.until:
            self.modules.clear()
            # They are being gone through: taken out anywhere but at the end, it would hide the next one.
            if self.callbacks and self.callbacks[-1] is self:
                self.callbacks.pop()
        else:
            self.hasten()

    def hasten(self) -> None:
        """Brings the next collection near. Sets: those of other kinds may be used ones, which are not counted."""
        missing = self.collector.get_threshold()[0] - self.collector.get_count()[0] - TO_COLLECTION
        self.ballast = list(map(set, ((),) * min(missing, MOST_BALLAST)))

    def wait(self) -> None:
        """Keeps what is in the table of modules now for the next part, and takes it out of the table."""
        # Not for every bundle, and a program may do without them.
        import gc  # noqa: PLC0415
        import time  # noqa: PLC0415

        self.modules = forget()
        self.callbacks, self.clock, self.collector = gc.callbacks, time.monotonic, gc
        self.until = self.clock() + PATIENCE_S
        compiler: Any = self.modules.get(f"{ROOT}.{HOOK}.compiler")
        if compiler is not None:
            compiler.keep_from_compiling(Arriving.__call__.__code__)
            compiler.keep_from_compiling(Arriving.hasten.__code__)
        self.callbacks.append(self)
        self.hasten()


def so_far(bundle: str, parts: int) -> "Arriving | None":
    """What has arrived of this bundle; a new one where it begins, None where something else is there than `parts`."""
    collector: Any = sys.modules.get("gc")
    callbacks: list[Any] = collector.callbacks if collector is not None else []
    # Each part has made a class of its own.
    found = [callback for callback in callbacks if type(callback).__name__ == Arriving.__name__]
    for callback in found:
        callbacks.remove(callback)
    arriving = Arriving(bundle)
    if parts:
        fit = [one for one in found if one.modules and (one.bundle, one.parts) == (bundle, parts)]
        if not fit:
            return None
        arriving.modules, arriving.parts = fit[0].modules, parts
    return arriving


def forget() -> "dict[str, ModuleType]":
    """Drops the package from the table of modules, and returns what was there of it."""
    names = [name for name in list(sys.modules) if name.partition(".")[0] in (ROOT, ENTRANCE)]
    return {name: sys.modules.pop(name) for name in names}


def load(modules: "list[tuple[str, bytes, bytes | None]]", loads: "Any") -> "Any":
    """Makes the modules out of (name, source, compiled code or None), each after what it imports; returns the last.

    Nothing is put into `sys.meta_path`: a thread that imports at this moment iterates it, and would miss a finder.
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
    """Adds a part of the package to those that have come, and with the last one asks it to install itself.

    Nothing stays where it did not, but for a part that waits for more or for a better moment. Returns `next` for a
    part that is not the last, and `lost` where those before it are not there: all has to come in one block then.
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
    """Forgets the parts that wait for more; a hook that is in stays."""
    so_far("", 0)
    return "dropped"


def remove() -> str:
    """Asks the hook to leave, and drops its package once it has; and parts that wait for more."""
    drop()
    hook: Any = sys.modules.get(ENTRANCE)
    if hook is None:
        return "absent"
    answer = str(hook.remove())
    if answer in ("removed", "absent"):
        forget()
    return answer


def run(start: "dict[str, Any]", loads: "Any") -> str:
    """The answer, one line, to what `bundle.pack` has put into `start`."""
    # The main thread may have been interrupted where torch.compile looks at each new frame: not at ours.
    look: Any = getattr(sys.modules.get("torch._C._dynamo.eval_frame"), "set_eval_frame", type)
    looking = look(None)
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
        look(looking)
