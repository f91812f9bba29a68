"""Runs inside the target, in its main thread between two bytecodes: installs the hook, or removes it.

This file is carried into the target and executed there in a namespace of its own, so it imports nothing of aitop. Every
error becomes an answer, and whatever was begun is undone. Only a KeyboardInterrupt and a SystemExit, which are meant
for the program, pass through to the injected line, which hands the signal to the program.
"""

# The main thread may be at a point where nothing may be imported. Until that is known, only modules are used that every
# interpreter has loaded. `__future__` is not one of them, so annotations are strings.
import sys

# Not from `typing`, which the target may not have loaded.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

# The package that is made of the carried modules, the hook's package in it, and the name in sys.modules under which the
# hook of a process is found, however it came in.
ROOT = "_aitop"
HOOK = "hook"
ENTRANCE = "_aitop_hook"
# Functions of importlib that take, hold or release a module's lock. Up to Python 3.11, an import inside one of them
# breaks the import that it interrupts (KeyError in _ModuleLock.acquire), and so the program.
LOCKING = frozenset(
    ("acquire", "release", "has_deadlock", "_get_module_lock", "cb", "_lock_unlock_module", "__enter__", "__exit__")
)


def taking_an_import_lock() -> bool:
    """Return whether the main thread was interrupted in a function of LOCKING: then nothing may be imported."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in LOCKING and frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def forget() -> None:
    """Remove the hook's packages from `sys.modules`."""
    for name in [name for name in list(sys.modules) if name.partition(".")[0] in (ROOT, ENTRANCE)]:
        sys.modules.pop(name, None)


def load(modules: "list[tuple[str, bytes, bytes]]", loads: "Any") -> "Any":
    """Create modules from (name, source, bytecode), each listed after those that it imports. Returns the last one.

    `loads` is marshal's, which makes code of the bytecode; None if this interpreter cannot read the bytecode.
    `sys.meta_path` is left alone, because a thread that is importing now iterates it and would skip a finder.
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
    """Return the package of that name. Create it, and those above it, if it is not there yet."""
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
    """Put a new, empty module into `sys.modules` and return it."""
    spec_of: Any = type(sys.__spec__)  # ModuleSpec, without importing importlib
    module: Any = type(sys)(name)
    module.__spec__ = spec_of(name, None, is_package=name == package_name)
    module.__package__ = package_name
    sys.modules[name] = module
    return module


def file_name(module: str) -> str:
    """Return the file name for the code of a module, given its name below aitop."""
    return f"<aitop hook>/{module.removeprefix(HOOK + '.').replace('.', '/')}.py"


def bring(start: "dict[str, Any]", loads: "Any") -> str:
    """Load the core of the hook and ask it to install itself. Returns its answer.

    The hook gets a function with which it loads the other modules later, while the run goes on. If it does not install
    itself, nothing of it stays.
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
            # The hook may have left while the module was loaded.
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
    """Ask the hook to leave, and then drop its package."""
    hook: Any = sys.modules.get(ENTRANCE)
    if hook is None:
        return "absent"
    answer = str(hook.remove())
    if answer in ("removed", "absent"):
        forget()
    return answer


def run(start: "dict[str, Any]", loads: "Any") -> str:
    """Carry out the request in `start`, which payload/bundle.py made. Returns the answer."""
    # The main thread may have been interrupted where torch.compile examines each new frame. It must not examine ours.
    set_eval_frame: Any = getattr(sys.modules.get("torch._C._dynamo.eval_frame"), "set_eval_frame", type)
    eval_frame = set_eval_frame(None)
    try:
        if taking_an_import_lock():
            return "busy"
        frozen: Any = sys.modules["_frozen_importlib_external"]
        if start["magic"] != frozen.MAGIC_NUMBER:
            loads = None
        return bring(start, loads) if start["action"] == "install" else remove()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return f"error: {type(error).__name__}: {error}"
    finally:
        set_eval_frame(eval_frame)
