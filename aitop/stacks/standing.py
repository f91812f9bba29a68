"""What a stack that does not move waits for. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from aitop.model.ranks import Doing
from aitop.model.stacks import Frame
from aitop.stacks.libraries import meaning
from aitop.stacks.reading import read_stack

# Wraps the collectives: the call inside of it is the one that people know.
_WRAPPER = "/torch/distributed/c10d_logger.py"
_SERVING = re.compile(r"/(?:asyncio/\w+|socketserver|http/server|grpc/\w+|uvicorn/\w+)\.py$")


def waiting_for(frames: Sequence[Frame], channel: str | None = None) -> tuple[Doing, str | None]:
    """What the process does, and the name of the call it is in, from its main thread's own frames, outermost first.

    `channel` is what the kernel says that it waits in.
    """
    seen = read_stack(frames)
    if seen.worker:
        return ("unused", None) if seen.idle else ("fetching", _innermost_call(frames))
    for frame in (frame for frame in frames if not frame.user):
        phase = meaning(frame.file, frame.function).phase
        if phase == "communication" and not frame.file.endswith(_WRAPPER):
            return "collective", frame.function
        if phase == "data_wait":
            return "loading", "DataLoader"
        if _SERVING.search(frame.file):
            return "serving", frame.function
    innermost = meaning(frames[-1].file, frames[-1].function) if frames and not frames[-1].user else None
    if innermost is not None and innermost.phase == "backward":
        return "collective", "backward"
    if innermost is not None and innermost.state == "wait-device":
        return "collective", "synchronize"
    return ("sleeping", "sleep") if channel and "nanosleep" in channel else ("own", _innermost_call(frames))


def _innermost_call(frames: Sequence[Frame]) -> str | None:
    """The library's function that the user's innermost line called, None where the line itself is all there is."""
    users = [index for index, frame in enumerate(frames) if frame.user]
    below = frames[users[-1] + 1 :] if users else frames
    return below[0].function if below else None
