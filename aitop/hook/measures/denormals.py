"""Tells how much of an optimizer's state is denormal: a CPU takes a hundred times as long to compute with such numbers.

A weight that no longer gets a gradient leaves them behind: its moving average shrinks at each step until it is below
the smallest normal number, and rounding keeps it there. Updates become slower and slower, whatever the model does.

A core computes with some neighbours at once, and one denormal number slows all of them. So it is counted how many of
some hundred groups of neighbours have one. They are read in place, and none of the numbers leaves the process.
"""

from __future__ import annotations

import itertools
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..patches import Patches
from . import Measure

if TYPE_CHECKING:
    from ..session import Session

# A look takes 0.4 ms of the thread that steps.
EVERY_NS = 5_000_000_000
# Tensors that are considered, and groups that are looked at, of each kind of state (such as the average of gradients).
MOST_TENSORS, GROUPS = 512, 100
# Numbers of a group, which is one register of most CPUs, and their bytes.
GROUP, BYTES = 8, 4
# A float32 is denormal where its bits without the sign are more than zero and less than those of the smallest normal.
NO_SIGN, NORMAL = 0x7FFF_FFFF, 0x0080_0000
# Multiples of it, without their whole part, lie evenly between 0 and 1, and in step with no length of a row.
GOLDEN = 0.6180339887498949


class Denormals(Measure):
    """Looks every few seconds. `share` (0..1) is None before, and where no state lies in memory as float32.

    It is that of the kind of state with most of them.
    """

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self._torch = torch
        self._session = session
        self._due = 0
        self.share: float | None = None

    def look(self, now: int) -> None:
        if now < self._due:
            return
        self._due = now + EVERY_NS
        kinds: dict[Any, list[Any]] = {}
        for optimizer in self._session.optimizers.alive():
            for kind, tensor in itertools.islice(_state(optimizer), MOST_TENSORS):
                if self._is_plain(tensor):
                    kinds.setdefault(kind, []).append(tensor)
        self.share = max(map(_share, kinds.values()), default=None)

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
            and tensor.numel() >= GROUP
            and tensor.untyped_storage().nbytes() >= (tensor.storage_offset() + tensor.numel()) * BYTES
            and tensor.data_ptr() != 0
        )


def _state(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what the optimizer keeps for each parameter, with its name."""
    kept = [state for state in list(optimizer.state.values()) if isinstance(state, dict)]
    return (item for state in kept for item in list(state.items()))


def _share(tensors: Sequence[Any]) -> float:
    """Return the share of groups with a denormal number, of groups from all over the tensors."""
    # torch has imported it.
    string_at, unpack = sys.modules["ctypes"].string_at, struct.Struct(f"={GROUP}I").unpack
    ends = list(itertools.accumulate(tensor.numel() // GROUP for tensor in tensors))
    places = sorted(int(ends[-1] * (number * GOLDEN % 1.0)) for number in range(GROUPS))
    denormal = index = 0
    for place in places:
        while place >= ends[index]:
            index += 1
        tensor = tensors[index]
        group = place - ends[index] + tensor.numel() // GROUP
        bits = unpack(string_at(tensor.data_ptr() + group * GROUP * BYTES, GROUP * BYTES))
        denormal += any(0 < number & NO_SIGN < NORMAL for number in bits)
    return denormal / len(places)
