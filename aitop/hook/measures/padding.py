"""Measures how much of the batches is padding, by the attention mask that a DataLoader gives with them.

The mask has a row for each sequence, with 1 for its tokens and 0 for padding. Every few seconds the ones of some rows
are counted in place; only their means leave the process. A batch is looked at in the CPU's memory, before it is copied
to a device.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..patches import Patches
from . import Measure

if TYPE_CHECKING:
    from ..session import Session

EVERY_NS = 3_000_000_000
# The name that the models of transformers and the batches for them share.
MASK = "attention_mask"
# Limits: rows that are looked at of a batch, and their length.
MOST_ROWS, LONGEST_ROW = 64, 8192


class Padding(Measure):
    """Counts the tokens in some rows of a batch's attention mask, every few seconds.

    Of a batch that has none, or none that can be read in place, nothing is counted.
    """

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self._torch = torch
        self._session = session
        self._journal = session.journal
        self._due = 0
        self._looks = 0
        # Sums over all looks: the padded length, the longest row's tokens, and the mean row's.
        self._width = self._longest = 0
        self._mean = 0.0

    def look(self, now: int) -> None:
        if now >= self._due:
            self._due = now + EVERY_NS
            self._journal.batch_came = self.saw

    def over(self) -> None:
        self._journal.batch_came = None

    def saw(self, batch: Any) -> None:
        """Count the tokens of the batch that a loader has just made, and of no further one until that is due again."""
        self._journal.batch_came = None
        try:
            self._count(batch)
        except Exception:
            self._session.failed()

    def facts(self) -> dict[str, Any]:
        if not self._looks:
            return {}
        sums = {"width": self._width, "longest": self._longest, "mean": self._mean}
        means = {name: round(value / self._looks, 1) for name, value in sums.items()}
        return {"padding": {"looks": self._looks, **means}}

    def _count(self, batch: Any) -> None:
        mask = _mask_of(batch)
        if not self._is_plain(mask):
            return
        width, row = mask.size(1), mask.size(1) * mask.element_size()
        bytes_read = min(mask.size(0), MOST_ROWS) * row
        # torch has imported ctypes already.
        whole = sys.modules["ctypes"].string_at(mask.data_ptr(), bytes_read)
        rows = [whole[begin : begin + row] for begin in range(0, bytes_read, row)]
        counts = [one.count(1) for one in rows]
        # Rows of other numbers than 0 and 1 are no mask.
        if whole.count(0) + sum(counts) == bytes_read:
            self._looks += 1
            self._width += width
            self._longest += max(counts)
            self._mean += sum(counts) / len(counts)

    def _is_plain(self, mask: Any) -> bool:
        """Return whether it is a contiguous mask of integers or booleans in this process's memory."""
        torch = self._torch
        return (
            type(mask) is torch.Tensor
            and mask.device.type == "cpu"
            and mask.dtype in (torch.int64, torch.bool)
            and mask.layout is torch.strided
            and mask.dim() == 2
            and mask.is_contiguous()
            and mask.size(0) > 0
            and 0 < mask.size(1) <= LONGEST_ROW
            and mask.untyped_storage().nbytes() >= (mask.storage_offset() + mask.numel()) * mask.element_size()
            and mask.data_ptr() != 0
        )


def _mask_of(batch: Any) -> Any:
    """Return the attention mask of a batch, a dict or a pair that begins with one; None if it has none."""
    if type(batch) in (tuple, list) and batch:
        batch = batch[0]
    # A BatchEncoding of transformers has its dict in `data`. Nothing of the user's is called.
    values = batch if type(batch) is dict else getattr(batch, "__dict__", {}).get("data")
    return values.get(MASK) if type(values) is dict else None
