"""Collects facts that change rarely: settings of the loaders, optimizers, the model, and what the measures report."""

from __future__ import annotations

import functools
import itertools
import json
import os
import platform
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..protocol import ring as at
from .compiler import compiler_facts
from .errors import raise_if_of_program
from .measures import Measure

MOST_LOADERS = 8
MOST_OPTIMIZERS = 8
MOST_PARAMETERS = 20_000
MOST_CALLS = 16
MOST_RANKS = 1_000_000
LONGEST_NAME = 120


class Facts:
    """The facts known so far. `changed` is set by every addition."""

    def __init__(self, torch: Any, way: str) -> None:
        self._torch = torch
        self._way = way
        self._loaders: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._optimizers: list[str] = []
        self._foreach: bool | None = None
        self._fused: bool | None = None
        self._own_optimizer: bool | None = None
        self._root: tuple[str, int, list[str], int] | None = None
        self._looked_up: int | None = None
        self._updated: tuple[int, list[str], int] = (0, [], 0)
        self.root_module: Callable[[], Any] | None = None
        self.changed = True

    def met_iterator(self, iterator: Any) -> Callable[[Any], int] | None:
        """Add the settings of an iterator's loader. Returns the function that counts its ready batches, or None.

        None: it has no workers, or torch keeps its state under other names.
        """
        workers = int(getattr(iterator, "_num_workers", 0))
        loader = {
            "workers": workers,
            "batch_size": _whole(getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)),
            "prefetch": _whole(getattr(iterator, "_prefetch_factor", None)) if workers else None,
            "pin_memory": bool(getattr(iterator, "_pin_memory", False)),
            "persistent": bool(getattr(iterator, "_persistent_workers", False)),
            "dataset": _name_of(getattr(iterator, "_dataset", None)),
        }
        key = tuple(loader.values())
        # A new epoch of the loader that was met last changes nothing.
        self.changed = self.changed or not self._loaders or loader != next(reversed(self._loaders.values()))
        self._loaders.pop(key, None)
        self._loaders[key] = loader
        if len(self._loaders) > MOST_LOADERS:
            del self._loaders[next(iter(self._loaders))]
        return ready_batches if workers and hasattr(iterator, "_task_info") else None

    def met_optimizer(self, optimizer: Any) -> None:
        """Add an optimizer's class and settings, and the number of parameters that it updates."""
        name = type(optimizer).__name__
        if name not in self._optimizers and len(self._optimizers) < MOST_OPTIMIZERS:
            self._optimizers.append(name[:LONGEST_NAME])
        self._own_optimizer = not type(optimizer).__module__.startswith("torch.")
        group = optimizer.param_groups[0]
        self._fused = bool(group["fused"]) if "fused" in group else self._fused
        if "foreach" in group:
            self._foreach = _foreach(group)
        tensors = (tensor for group in optimizer.param_groups for tensor in group["params"])
        self._updated = max(self._updated, _extent(tensors), key=lambda extent: extent[0])
        self.changed = True

    def met_root(self, module: Any) -> bool:
        """Add a root module if it is the largest so far: its class, number of parameters and their dtypes.

        Returns False for the one that was added last, and for a lazy module, whose first call makes its parameters.
        """
        if self.root_module is not None and self.root_module() is module:
            return False
        parameters = list(itertools.islice(module.parameters(), MOST_PARAMETERS))
        if any(map(self._torch.nn.parameter.is_lazy, parameters)):
            return False
        count, names, tensors = _extent(parameters)
        # If the hook came in during a forward, the first module met is a part of the model, with fewer parameters.
        if self._root is None or count >= self._root[1]:
            self.root_module = weakref.ref(module)
            self._looked_up = self._in_embeddings(module)
            self._root = (type(_unwrapped(module)).__name__[:LONGEST_NAME], count, names, tensors)
            self.changed = True
        return True

    def met_aside(self, module: Any) -> None:
        """Add a root module that was called in another thread than the one that steps, unless the run trains."""
        if not self._optimizers:
            self.met_root(module)

    def _in_embeddings(self, module: Any) -> int:
        """Return the number of parameters that only embeddings use: a step reads some of their rows, not all."""
        nn = self._torch.nn
        read: set[int] = set()
        for child in module.modules():
            # An output layer may share (tie) an embedding's table, and reads all of it.
            if not isinstance(child, (nn.Embedding, nn.EmbeddingBag)):
                read.update(map(id, child.parameters(recurse=False)))
        return _extent(tensor for tensor in module.parameters() if id(tensor) not in read)[0]

    def text(self, measures: Sequence[Measure]) -> bytes:
        """Return the text of the ring's JSON area: all facts, with those of the measures, and allocator figures."""
        torch = self._torch
        rank, world = _rank()
        facts: dict[str, Any] = {
            "way": self._way,
            "python": platform.python_version(),
            "torch": str(torch.__version__)[:LONGEST_NAME],
            "cuda": bool(torch.cuda.is_initialized()),
            "threads": torch.get_num_threads(),
            "loaders": list(self._loaders.values()),
            "optimizers": self._optimizers,
            "foreach": self._foreach,
            "fused": self._fused,
            "own_optimizer": self._own_optimizer,
            "rank": rank,
            "world_size": world,
            **compiler_facts(),
            **_measured(measures),
        }
        if self._root is not None:
            facts["root"], facts["parameters"], facts["parameter_dtypes"], facts["parameter_tensors"] = self._root
            facts["looked_up_parameters"] = self._looked_up
        elif self._updated[0]:
            # The model is no nn.Module, so all that is known of it is what an optimizer updates.
            facts["parameters"], facts["parameter_dtypes"], facts["parameter_tensors"] = self._updated
        whole = {"facts": facts, "allocators": facts.pop("allocators", [])}
        text = json.dumps(whole).encode()
        while len(text) > at.JSON_ROOM and facts.get("callers"):
            del facts["callers"][len(facts["callers"]) // 2 :]
            text = json.dumps(whole).encode()
        return text


def _measured(measures: Sequence[Measure]) -> dict[str, Any]:
    """Merge the facts of all measures. `calls` has the call sites that cost most; for other facts the last one wins."""
    result: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for measure in measures:
        try:
            facts = dict(measure.facts())
        except Exception:
            raise_if_of_program()
            # The program may change what a measure reads at that moment. The other measures can still report.
            facts = {}
        calls += facts.pop("calls", ())
        result.update(facts)
    calls.sort(key=lambda call: -(call.get("seconds") or 0.0))
    return result | {"watches": [name for each in measures for name in each.watches], "calls": calls[:MOST_CALLS]}


def ready_batches(iterator: Any) -> int:
    """Return how many batches of a multi-process DataLoader iterator are ready. Takes no lock."""
    queue = iterator._data_queue
    plain = getattr(queue, "queue", None)  # with pinned memory it is a queue.Queue, whose qsize takes a lock
    waiting = queue.qsize() if plain is None else len(plain)
    # Batches that came out of order are kept in _task_info, although _tasks_outstanding no longer counts them.
    return int(waiting + max(0, len(iterator._task_info) - iterator._tasks_outstanding))


def _extent(tensors: Iterable[Any]) -> tuple[int, list[str], int]:
    """Return the number of elements in these tensors, their dtypes, and the number of tensors."""
    count, dtypes, number = 0, [], 0
    for number, tensor in enumerate(itertools.islice(tensors, MOST_PARAMETERS), 1):  # noqa: B007 - the count is wanted
        count += tensor.numel()
        if tensor.dtype not in dtypes:
            dtypes.append(tensor.dtype)
    return count, [str(dtype).removeprefix("torch.") for dtype in dtypes], number


def _unwrapped(module: Any) -> Any:
    """Return the user's model inside the wrappers of torch.compile and data parallelism."""
    children = module._modules
    while len(children) == 1 and (inner := children.get("_orig_mod") or children.get("module")) is not None:
        module, children = inner, inner._modules
    return module


def _foreach(group: dict[str, Any]) -> bool:
    """Return whether the optimizer updates all tensors at once (foreach or fused). By default torch does so on CUDA."""
    if group["foreach"] is not None or group.get("fused"):
        return bool(group["foreach"] or group.get("fused"))
    return all(parameter.is_cuda for parameter in group["params"][:4])


def _rank() -> tuple[int | None, int | None]:
    dist = sys.modules.get("torch.distributed")
    try:
        if dist is not None and dist.is_available() and dist.is_initialized():
            rank, world = dist.get_rank(), dist.get_world_size()
        else:
            rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        # Some programs set -1 when they are not distributed.
        return (rank, world) if 0 <= rank < world <= MOST_RANKS else (None, None)
    except (KeyError, ValueError, RuntimeError):
        return None, None


def _name_of(thing: Any) -> str | None:
    if thing is None:
        return None
    if isinstance(thing, functools.partial):
        thing = thing.func
    named = thing if isinstance(thing, (types.FunctionType, types.MethodType, type)) else type(thing)
    return str(named.__qualname__)[:LONGEST_NAME]


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 10**9 else None
