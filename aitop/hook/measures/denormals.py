"""Estimates how much of the optimizers' state is denormal: a CPU takes a hundred times as long for such numbers.

A weight that no longer gets a gradient produces them: its moving average shrinks at each step until it is below the
smallest normal number, and rounding keeps it there. Updates become slower and slower, whatever the model does.

A core computes with several neighbouring numbers at once (SIMD), and a single denormal number slows all of them. So the
measure is the share of groups of neighbours with a denormal number, from a sample of a hundred groups of each kind of
state. They are read in place, and none of the numbers leaves the process.
"""

from __future__ import annotations

import itertools
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..patches import Patches
from . import Measure
from .in_place import is_readable

if TYPE_CHECKING:
    from ..session import Session

# A look takes 0.4 ms of the stepping thread's time.
EVERY_NS = 5_000_000_000
# Limits: tensors that are considered of each optimizer, and groups that are sampled of each kind of state (such as the
# moving average of gradients).
MOST_TENSORS, GROUPS = 512, 100
# Numbers in a group, which fill one vector register of most CPUs, and bytes of each.
GROUP, BYTES = 8, 4
# A float32 is denormal if its bits without the sign are above zero and below those of the smallest normal number.
NO_SIGN, NORMAL = 0x7FFF_FFFF, 0x0080_0000
# The fractional parts of its multiples are spread evenly over 0..1 and fall into step with no length of a row.
GOLDEN = 0.6180339887498949


class Denormals(Measure):
    """Samples the state of all optimizers every few seconds.

    `share` (0..1) of the groups have a denormal number, in the kind of state that has most of them. It is None before
    the first look, and if no state is in the CPU's memory as float32.
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
        for optimizer, _ in list(self._session.optimizers.values()):
            for kind, tensor in itertools.islice(_state(optimizer()), MOST_TENSORS):
                if is_readable(self._torch, tensor) and tensor.dtype is self._torch.float32 and tensor.numel() >= GROUP:
                    kinds.setdefault(kind, []).append(tensor)
        self.share = max(map(_share, kinds.values()), default=None)

    def facts(self) -> dict[str, Any]:
        return {} if self.share is None else {"denormals": round(self.share, 4)}


def _state(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the state that the optimizer keeps for each parameter: (kind, such as `exp_avg`; value)."""
    # An optimizer that was freed meanwhile has none.
    for state in list(getattr(optimizer, "state", {}).values()):
        if isinstance(state, dict):
            yield from list(state.items())


def _share(tensors: Sequence[Any]) -> float:
    """Return the share (0..1) of groups with a denormal number, in a sample spread evenly over the tensors."""
    # torch has imported ctypes already.
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
