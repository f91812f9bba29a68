"""Measures how much of the batches is padding, by the mask that comes with them from a DataLoader or to the model.

The mask has a row for each sequence, which tells its tokens from padding. Every few seconds the tokens of some rows are
counted in place; only their means leave the process. Masks are read in the CPU's memory: those of a loader's batch
before it is copied to a device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..patches import Patches
from . import Measure
from .in_place import is_readable

if TYPE_CHECKING:
    from ..session import Session

EVERY_NS = 3_000_000_000
# The name that the models of transformers and the batches for them share.
MASK = "attention_mask"
# Batches are searched for a mask this deep, and that many values of each list.
DEEP, LOOKED_AT = 2, 16
# Limits: rows that are looked at of a batch, their length, and the bytes of all of them: half a MiB takes 0.3 ms.
MOST_ROWS, LONGEST_ROW, MOST_BYTES = 64, 8192, 2**19


class Padding(Measure):
    """Counts the tokens in some rows of a batch's mask, every few seconds.

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
            self._journal.batch_came = self.saw_batch
            self._journal.arguments_came = self.saw_arguments

    def over(self) -> None:
        self._journal.batch_came = self._journal.arguments_came = None

    def saw_batch(self, batch: Any) -> None:
        """Count the tokens of the batch that a loader has just made, and of no further one until that is due again."""
        self._journal.batch_came = None
        try:
            mask = _named_mask(batch)
            if self._is_plain(mask) and self._count(mask, _ones):
                self._journal.arguments_came = None
        except Exception:
            self._session.failed()

    def saw_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the tokens of the batch with which the model was called, until that is due again."""
        self._journal.arguments_came = None
        try:
            tensors = [value for value in _values((args, kwargs)) if type(value) is self._torch.Tensor]
            mask, count = _named_mask((args, kwargs)), _ones
            if mask is None:
                truths = (each for each in tensors if each.dtype is self._torch.bool)
                mask, count = next(truths, None), _by_blocks
            # With a KV cache, the mask also covers tokens that do not go in any more.
            if self._is_plain(mask) and any(each is not mask and each.shape[:2] == mask.shape for each in tensors):
                self._count(mask, count)
        except Exception:
            self._session.failed()

    def facts(self) -> dict[str, Any]:
        if not self._looks:
            return {}
        sums = {"width": self._width, "longest": self._longest, "mean": self._mean}
        means = {name: round(value / self._looks, 1) for name, value in sums.items()}
        return {"padding": {"looks": self._looks, **means}}

    def _count(self, mask: Any, tokens_of: Callable[[list[bytes]], list[int] | None]) -> bool:
        """Add the numbers of tokens in the rows of a mask. Returns False if `tokens_of` cannot tell them."""
        width, size = mask.size(1), mask.element_size()
        row = width * size
        bytes_read = min(mask.size(0), MOST_ROWS, MOST_BYTES // row) * row
        # torch has imported ctypes already.
        whole = sys.modules["ctypes"].string_at(mask.data_ptr(), bytes_read)
        # Of each number only the lowest byte, which tells 0 from 1.
        lowest = 0 if sys.byteorder == "little" else size - 1
        counts = tokens_of([whole[begin + lowest : begin + row : size] for begin in range(0, bytes_read, row)])
        if counts is None:
            return False
        self._looks += 1
        self._width += width
        self._longest += max(counts)
        self._mean += sum(counts) / len(counts)
        return True

    def _is_plain(self, mask: Any) -> bool:
        """Return whether it is a mask of integers or booleans that can be read in place."""
        torch = self._torch
        return (
            is_readable(torch, mask)
            and mask.dtype in (torch.int64, torch.bool)
            and mask.dim() == 2
            and mask.size(0) > 0
            and 0 < mask.size(1) <= LONGEST_ROW
        )


def _inner(value: Any) -> dict[Any, Any] | list[Any] | tuple[Any, ...] | None:
    """Return the value if it is a dict, a list or a tuple, or the dict within a BatchEncoding of transformers.

    Nothing of the user's is called.
    """
    inner = value if type(value) in (dict, list, tuple) else getattr(value, "__dict__", {}).get("data")
    return inner if type(inner) in (dict, list, tuple) else None


def _values(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the values in dicts, lists and tuples, DEEP levels deep."""
    inner = _inner(value)
    if inner is None or depth > DEEP:
        yield value
        return
    for each in islice(inner.values() if isinstance(inner, dict) else inner, LOOKED_AT):
        yield from _values(each, depth + 1)


def _named_mask(value: Any, depth: int = 0) -> Any:
    """Return the first value of that name in a batch, DEEP levels deep; None if it has none."""
    inner = _inner(value)
    if isinstance(inner, dict) and MASK in inner:
        return inner[MASK]
    if inner is None or depth == DEEP:
        return None
    each = islice(inner.values() if isinstance(inner, dict) else inner, LOOKED_AT)
    return next((mask for item in each if (mask := _named_mask(item, depth + 1)) is not None), None)


def _ones(rows: list[bytes]) -> list[int] | None:
    """Count the ones in each row, of which each number is a byte; None if there are other numbers than 0 and 1."""
    counts = [row.count(1) for row in rows]
    zeros = sum(row.count(0) for row in rows)
    return counts if zeros + sum(counts) == sum(map(len, rows)) else None


def _by_blocks(rows: list[bytes]) -> list[int] | None:
    """Count the tokens in each row of a boolean mask that may mark the tokens or the padding.

    Tokens come first in all rows, or last. None unless each row is a block of one value, then one of the other; or if
    there are as many rows as columns, as in a mask of what each token may look at.
    """
    if len(rows) == len(rows[0]) or any(row.lstrip(row[:1]).strip(row[-1:]) for row in rows):
        return None
    if len({row[:1] for row in rows}) == 1:
        return [len(row) - len(row.lstrip(row[:1])) for row in rows]
    if len({row[-1:] for row in rows}) == 1:
        return [len(row) - len(row.rstrip(row[-1:])) for row in rows]
    return None
