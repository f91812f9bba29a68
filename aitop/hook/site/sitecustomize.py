"""Installs the hook in Python programs started by `aitop run`, and in their children such as torchrun's ranks.

`aitop run` starts the command with two environment variables, where SITE is the directory of this file:

    AITOP_RUN=1                           without it this file only hands over (see below)
    PYTHONPATH=SITE[:the old PYTHONPATH]  joined with os.pathsep, SITE first and only once

Python imports `sitecustomize` when it starts. This one makes a package `_aitop` from the directory of aitop (which need
not be importable there), imports the hook from it and asks it to install itself once torch is imported. Then it takes
SITE off `sys.path` and hands over to the `sitecustomize` that Python would have imported without it. If anything goes
wrong, the program runs without the hook.
"""

import os
import sys

_SITE = os.path.dirname(os.path.abspath(__file__))


def _put_hook_in() -> None:
    if os.environ.get("AITOP_RUN") != "1" or "_aitop_hook" in sys.modules:
        return
    # Not `importlib.util`: importing it takes some milliseconds.
    import importlib
    from importlib.machinery import ModuleSpec

    package = type(sys)("_aitop")
    package.__spec__ = ModuleSpec("_aitop", None, is_package=True)
    package.__path__ = [os.path.dirname(os.path.dirname(_SITE))]
    sys.modules["_aitop"] = package
    try:
        hook = importlib.import_module("_aitop.hook")
        sys.modules["_aitop_hook"] = hook
        hook.install_when_torch_is_there("run")
    except BaseException:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("_aitop", "_aitop_hook")]:
            sys.modules.pop(name, None)
        raise


def _hand_over() -> None:
    """Run the next `sitecustomize` on the path under that name. Its errors are reported as they would be without us."""
    from importlib.machinery import PathFinder

    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _SITE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None or spec.origin == __file__:
        return
    import importlib.util

    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _put_hook_in()
except Exception:
    # The user's program comes first: it runs without the hook.
    pass
_hand_over()
