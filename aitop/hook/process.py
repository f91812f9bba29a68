"""What this process is, and what of the hook lies in it."""

from __future__ import annotations

import sys


def is_loader_worker() -> bool:
    """Whether this process is a worker of a DataLoader."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and getattr(worker, "_worker_info", None) is not None


def forget_modules() -> None:
    """Drop the hook's modules as they were put in by an attach; an imported `aitop.hook` only loses its alias."""
    for name in [name for name in list(sys.modules) if name == "_aitop_hook" or name.startswith("_aitop_hook.")]:
        sys.modules.pop(name, None)
