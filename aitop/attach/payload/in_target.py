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
    from types import CodeType
    from typing import Any

# The package made of the modules that travel, the hook's package in it, and the name in sys.modules under which the
# hook of a process is found, however it came in.
ROOT = "_aitop"
HOOK = "hook"
ENTRANCE = "_aitop_hook"
# Functions of importlib that take, hold or release a module's lock. Up to Python 3.11 an import that begins inside one
# of them breaks the import that it interrupts (KeyError in _ModuleLock.acquire), and so the program.
LOCKING = frozenset(
    ("acquire", "release", "has_deadlock", "_get_module_lock", "cb", "_lock_unlock_module", "__enter__", "__exit__")
)


def taking_an_import_lock() -> bool:
    """Whether the main thread was interrupted in a function of LOCKING: then nothing may be imported."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in LOCKING and frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def forget() -> None:
    """Removes the packages from `sys.modules`."""
    for name in [name for name in list(sys.modules) if name.partition(".")[0] in (ROOT, ENTRANCE)]:
        sys.modules.pop(name, None)


def load(modules: "list[tuple[str, bytes, bytes]]", loads: "Any") -> "Any":
    """Makes modules of (name, source, bytecode), each after those that it imports; returns the last.

    `loads` makes code of bytecode, None where this interpreter does not read it.
    `sys.meta_path` is left alone: a thread that imports at this moment iterates it, and would miss a finder.
    """
    module: Any = None
    for path, source, compiled in modules:
        origin = file_name(path.partition(".")[2])
        code: CodeType = loads(compiled) if loads else compile(source, origin, "exec", dont_inherit=True)
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


def bring(start: "dict[str, Any]", loads: "Any") -> str:
    """Loads the core of the hook and asks it to install itself. Returns its answer.

    The hook gets a function that loads the rest, by module: it does so later, while the run goes on. Where it does not
    install itself nothing stays.
    """
    hook: Any = sys.modules.get(ENTRANCE)
    if hook is not None:
        return str(hook.install("attach"))
    rest = start["rest"]

    def load_later(name: str) -> "Any":
        try:
            load([module for module in rest[name] if module[0] not in sys.modules], loads)
            return sys.modules[f"{ROOT}.{HOOK}.{name}"]
        finally:
            # The hook may have left meanwhile.
            if ENTRANCE not in sys.modules:
                forget()

    answer = "error: interrupted"
    try:
        hook = load(start.pop("core"), loads)
        sys.modules[ENTRANCE] = hook
        answer = str(hook.install("attach", load_later))
    finally:
        if answer not in ("installed", "already"):
            forget()
    return answer


def remove() -> str:
    """Asks the hook to leave and then drops its package."""
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
        frozen: Any = sys.modules["_frozen_importlib_external"]
        if start["magic"] != frozen.MAGIC_NUMBER:
            loads = None
        return bring(start, loads) if start["action"] == "install" else remove()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"error: {type(error).__name__}: {error}".replace("\n", " ")[:500]
    finally:
        set_eval_frame(eval_frame)
