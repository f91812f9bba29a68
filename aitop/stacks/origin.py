"""Whose code a frame is in. Pure."""

from __future__ import annotations

import re
from typing import Literal

Origin = Literal["user", "torch", "library", "stdlib", "native"]

_TORCH = re.compile(r"/(?:torch|torchvision|torchaudio|torchgen|functorch|triton)/")
_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/(?:python|pypy)\d[\d.]*t?/|/python\d+\.zip/|^<frozen ")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")
_PYTHON = re.compile(r"\.pyw?$|^<")


def origin_of(file: str, user: bool) -> Origin:
    """Where the code of a frame comes from; `user` says that it is known to be the user's own.

    torch has what is released with it; library is whatever else is installed; native is what is no Python.
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
