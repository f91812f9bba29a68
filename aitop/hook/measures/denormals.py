"""Tells how many numbers of an optimizer's state are denormal: a CPU takes a hundred times as long to compute with one.

A weight that no longer gets a gradient leaves them behind: its moving average shrinks at each step until it is below
the smallest normal number, and rounding keeps it there. Updates become slower and slower, whatever the model does.

Of some hundred numbers it is counted how many are; they are read in place, and none of them leaves the process.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..patches import Patches
from . import Measure

if TYPE_CHECKING:
    from ..session import Session

EVERY_NS = 3_000_000_000
# Tensors of the state among which the largest are looked at, how many of them, and so many pieces of each.
MOST_SEEN, MOST_TENSORS, PIECES = 512, 6, 12
# Numbers of a piece, next to each other: a cache line.
PIECE = 16
BYTES = 4
# A float32 is denormal where its exponent is zero and the rest is not.
EXPONENT, FRACTION = 0x7F80_0000, 0x007F_FFFF


class Denormals(Measure):
    """Looks every few seconds. `share` (0..1) is None before, and where no state lies in memory as float32."""

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self._torch = torch
        self._session = session
        self._due = 0
        self.share: float | None = None

    def look(self, now: int) -> None:
        if now < self._due:
            return
        self._due = now + EVERY_NS
        tensors = [
            tensor
            for optimizer in self._session.optimizers.alive()
            for tensor in itertools.islice(_state(optimizer), MOST_SEEN)
            if self._is_plain(tensor)
        ]
        tensors.sort(key=lambda tensor: -tensor.numel())
        numbers = [number for tensor in tensors[:MOST_TENSORS] for number in _some_of(tensor)]
        denormal = sum(1 for number in numbers if not number & EXPONENT and number & FRACTION)
        self.share = denormal / len(numbers) if numbers else None

    def facts(self) -> dict[str, Any]:
        return {} if self.share is None else {"denormals": round(self.share, 4)}

    def _is_plain(self, tensor: Any) -> bool:
        """Return whether the tensor's numbers lie in this process's memory, one after the other, as float32."""
        torch = self._torch
        return (
            type(tensor) is torch.Tensor
            and tensor.device.type == "cpu"
            and tensor.dtype is torch.float32
            and tensor.layout is torch.strided
            and tensor.is_contiguous()
            and tensor.numel() >= PIECE
            and tensor.untyped_storage().nbytes() >= (tensor.storage_offset() + tensor.numel()) * BYTES
            and tensor.data_ptr() != 0
        )


def _state(optimizer: Any) -> Iterator[Any]:
    """Yield what the optimizer keeps for each parameter."""
    kept = [state for state in list(optimizer.state.values()) if isinstance(state, dict)]
    return (value for state in kept for value in list(state.values()))


def _some_of(tensor: Any) -> list[int]:
    """Return the bits of some of its numbers, of pieces at equal distances."""
    # torch has imported it.
    ctypes = sys.modules["ctypes"]
    last = tensor.numel() - PIECE
    starts = {last * piece // (PIECES - 1) for piece in range(PIECES)}
    bits: list[int] = []
    for start in starts:
        bits += (ctypes.c_uint32 * PIECE).from_address(tensor.data_ptr() + start * BYTES)
    return bits
