"""Whose code a frame is in: the user's or a library's. Pure."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

Origin = Literal["user", "torch", "library", "stdlib", "native"]

_TORCH = re.compile(r"/(?:torch|torchvision|torchaudio|torchgen|functorch|triton)/")
_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/(?:python|pypy)\d[\d.]*t?/|/python\d+\.zip/|^<frozen ")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")
# A source checkout or a build of torch that was never installed.
_TORCH_ITSELF = re.compile(
    r"/torch/(?:_\w+|nn|utils|optim|autograd|cuda|distributed|distributions|fx|jit|amp)(?:/|\.py$)"
)
_COMMAND = re.compile(r"/s?bin/[^/.]+$")
_TYPED_IN = re.compile(r"<stdin>|<console>|<python-input-|<ipython-input-")
_PYTHON = re.compile(r"\.pyw?$|^<")
# The folder of our hook, and what the files of one that was attached are called in the target.
_OWN_HOOK, _ATTACHED_HOOK = "/aitop/hook/", "<aitop hook>"


def origin_of(file: str, user: bool) -> Origin:
    """Where the code of a frame comes from; `user` says that it is known to be the user's own.

    "torch" includes the packages released with it, "library" is anything else installed, "native" is not Python.
    """
    if user:
        return "user"
    if not _PYTHON.search(file):
        return "native"
    if _INSTALLED.search(file):
        return "torch" if _TORCH.search(f"/{_INSTALLED.split(file)[-1]}") else "library"
    if _STANDARD_LIBRARY.search(file):
        return "stdlib"
    return "torch" if _TORCH.search(file) else "library"


def library_path(file: str, packages: str | None = None) -> str:
    """The path of a library's file as rows of `libraries.TABLE` match it, such as "/site-packages/jax/api.py".

    It is the same wherever packages are installed. `packages` is the folder of packages where its name does not tell.
    """
    below = file[len(packages) :] if packages is not None else _INSTALLED.split(file)[-1]
    return file if below == file else f"/site-packages/{below.lstrip('/')}"


def own_hook(file: str) -> bool:
    """Whether the file is of our own hook, whose wrappers are on the stacks of the calls that they time."""
    return file.startswith(_ATTACHED_HOOK) or _OWN_HOOK in file


def is_user(file: str, script: str | None, packages: Callable[[str], str | None] | None = None) -> bool:
    """Whether the file of a frame is the user's code.

    `script` is the path of the target's main script: it and what lies beside it are the user's wherever they are.
    None says that the target has none (`python -c`, an interactive session). `packages` returns the folder of
    packages that a file lies in, even if its name does not tell; None for a file outside of any.
    """
    if own_hook(file):
        return False
    if file.startswith("<"):
        return bool(_TYPED_IN.match(file)) or (file == "<string>" and script is None)
    if script is not None and _beside(file, script):
        return True
    return not (
        # Code that a library generates has a name of its choice. What is imported ends in ".py".
        not _PYTHON.search(file)
        or _INSTALLED.search(file)
        or _STANDARD_LIBRARY.search(file)
        or _TORCH_ITSELF.search(file)
        or (packages is not None and packages(file) is not None)
    )


def application(stacks: Iterable[Sequence[str]], script: str | None) -> str | None:
    """Return the folder of the installed package that a process without user code runs; None for other processes.

    With `vllm serve`, say, vllm is the program to whoever watches it. It is the package that most stacks enter first.
    `stacks` have the files of the frames that the process entered itself, the outermost first.
    """
    entered: Counter[str] = Counter()
    for files in stacks:
        if any(is_user(file, script) and not file.startswith("<") for file in files):
            return None
        installed = next((file for file in files if _INSTALLED.search(file)), None)
        if installed is not None and origin_of(installed, False) == "library":
            above, mark, package = re.split(r"(/(?:site|dist)-packages/)", installed)[-3:]
            entered[f"{above}{mark}{package.partition('/')[0]}/"] += 1
    return max(entered, key=lambda folder: entered[folder], default=None)


def _beside(file: str, script: str) -> bool:
    """Whether the file is the script or below its folder, where that folder is the user's own project."""
    # The folder of a launcher (torchrun, `python -m torch.…`) or of all packages is nobody's project.
    if _COMMAND.search(script) or _TORCH_ITSELF.search(script):
        return False
    installed = _INSTALLED.search(script) is not None
    if _STANDARD_LIBRARY.search(script) and not installed:
        return False
    if file == script:
        return True
    if not _PYTHON.search(file):
        return False
    folder = os.path.dirname(script).rstrip("/")
    of_all_packages = installed and "/" not in _INSTALLED.split(script)[-1]
    if not folder or of_all_packages or not file.startswith(f"{folder}/"):
        return False
    # A virtual environment often lies inside the project.
    rest = file[len(folder) :]
    return not (_INSTALLED.search(rest) or _STANDARD_LIBRARY.search(rest))
