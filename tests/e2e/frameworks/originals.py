"""Tells whether anything in torch is other than it was when the script began."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import torch
import torch.utils.data.dataloader as data
from torch import nn
from torch.optim import optimizer


class Originals:
    """The attributes of everything that a hook might touch, as they are now."""

    def __init__(self, *more: Any) -> None:
        owners = [
            torch,
            torch.autograd,
            torch.Tensor,
            torch.amp.GradScaler,
            torch.autograd.profiler.record_function,
            nn.Module,
            nn.Sequential,
            nn.Linear,
            data.DataLoader,
            data._BaseDataLoaderIter,
            optimizer.Optimizer,
            *more,
        ]
        for module, name in (
            ("torch._C._distributed_c10d", "ProcessGroup"),
            ("torch._C._distributed_c10d", "Work"),
            ("transformers.generation.utils", "GenerationMixin"),
        ):
            if module in sys.modules:
                owners.append(getattr(sys.modules[module], name))
        self._kept = [(owner, dict(vars(owner))) for owner in owners]
        self._callbacks = list(gc.callbacks)

    def changed(self) -> list[str]:
        """What is not the very same object any more, and what was not there at all."""
        found = []
        for owner, before in self._kept:
            now = vars(owner)
            found += [f"{owner.__name__}.{name}" for name in before if now.get(name) is not before[name]]
            if isinstance(owner, type):
                found += [f"{owner.__name__}.{name}" for name in now if name not in before]
        hooks = (*optimizer._global_optimizer_pre_hooks.values(), *optimizer._global_optimizer_post_hooks.values())
        found += [f"hook {hook.__module__}" for hook in hooks]
        found += ["gc.callbacks" for call in gc.callbacks if call not in self._callbacks]
        found += [name for name in list(sys.modules) if "aitop" in name]
        return found + _descriptors()


def _descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if "aitop" in target.rpartition("/")[2]:
            found.append(target)
    return found
