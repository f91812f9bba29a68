"""What a stack that does not move waits for. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from aitop.model.ranks import Doing
from aitop.model.stacks import Frame

# Waiting for other ranks: the outermost frame of these files is the call as people know it.
_COLLECTIVE = re.compile(
    r"/torch/distributed/(?:distributed_c10d|_functional_collectives|rendezvous|_symmetric_memory/\w+)\.py$"
    r"|/torch/distributed/elastic/|/deepspeed/comm/|/horovod/torch/mpi_ops\.py$"
)
_WRAPPER = re.compile(r"/torch/distributed/c10d_logger\.py$")
_REPLICATED = re.compile(r"/torch/nn/parallel/distributed\.py$")
_REPLICATED_WAITS = re.compile(r"_sync\w*|_verify\w*|_broadcast\w*|_distributed_broadcast\w*")
_BACKWARD = re.compile(r"/torch/autograd/graph\.py$")
_LOADER = re.compile(r"/torch/utils/data/dataloader\.py$")
_WORKER = re.compile(r"/torch/utils/data/_utils/worker\.py$")
_QUEUE = re.compile(r"/(?:multiprocessing/(?:queues|connection)|selectors|queue)\.py$")
_SERVING = re.compile(r"/(?:asyncio/\w+|socketserver|http/server|grpc/\w+|uvicorn/\w+)\.py$")
_SLEEPING = re.compile(r"nanosleep")
_SYNCHRONIZE = re.compile(r"/torch/cuda/(?:__init__|streams)\.py$")


def waiting_for(frames: Sequence[Frame], channel: str | None = None) -> tuple[Doing, str | None]:
    """What the process does, and the name of the call it is in, from its main thread's own frames, outermost first.

    `channel` is what the kernel says that it waits in.
    """
    worker = next((index for index, frame in enumerate(frames) if _WORKER.search(frame.file)), None)
    if worker is not None:
        inner = frames[worker + 1 :]
        unused = all(_QUEUE.search(frame.file) for frame in inner)
        return ("unused", None) if unused else ("fetching", _innermost_call(inner))
    for frame in frames:
        if _COLLECTIVE.search(frame.file):
            return "collective", frame.function
        if _LOADER.search(frame.file):
            return "loading", "DataLoader"
        if _REPLICATED.search(frame.file) and _REPLICATED_WAITS.fullmatch(frame.function.rpartition(".")[2]):
            return "collective", "DistributedDataParallel's broadcast"
        if _SERVING.search(frame.file):
            return "serving", frame.function
    innermost = frames[-1] if frames else None
    if innermost is not None and _BACKWARD.search(innermost.file):
        return "collective", "backward"
    if innermost is not None and _SYNCHRONIZE.search(innermost.file):
        return "collective", "synchronize"
    if channel and _SLEEPING.search(channel):
        return "sleeping", "sleep"
    return "own", _innermost_call(frames)


def _innermost_call(frames: Sequence[Frame]) -> str | None:
    """The library's function that the user's innermost line called, None where the line itself is all there is."""
    last_user = max((index for index, frame in enumerate(frames) if frame.user), default=None)
    if last_user is None:
        return frames[0].function if frames else None
    below = frames[last_user + 1 :]
    return below[0].function if below else None
