"""How much of a batch is padding, told by its mask; and what is no mask that may be read."""

from __future__ import annotations

import ctypes
from collections import UserDict

import pytest
import torch
from hook_runs import long_after
from torch import nn
from torch.utils.data import DataLoader

from aitop.hook.measures.padding import LONGEST_ROW, Padding

WIDE = torch.ones(4, 16, dtype=torch.int64)
MASK = torch.zeros(4, 16, dtype=torch.int64)
for row, tokens in enumerate((2, 4, 6, 8)):
    MASK[row, :tokens] = 1


class Encoding(UserDict):
    """Made as transformers' BatchEncoding is."""


def padding_of(session, *batches):
    """What is told after a loader has given these batches, each long after the one before."""
    measure = next(measure for measure in session.measures if isinstance(measure, Padding))
    for batch in batches:
        measure.look(long_after())
        assert next(iter(DataLoader([0], collate_fn=lambda _, batch=batch: batch))) is batch
    return measure.facts().get("padding")


@pytest.mark.parametrize(
    "make",
    [
        lambda mask: {"input_ids": mask, "attention_mask": mask},
        lambda mask: Encoding(attention_mask=mask),
        lambda mask: ({"attention_mask": mask}, torch.ones(4)),
        lambda mask: (["a", "b"], Encoding(attention_mask=mask)),
        lambda mask: {"attention_mask": mask.bool()},
    ],
    ids=["a dict", "an encoding", "with labels", "after names", "booleans"],
)
def test_how_much_of_a_batch_is_padding_is_counted_by_its_mask(watched, make):
    assert padding_of(watched.session, make(MASK)) == {"looks": 1, "width": 16.0, "longest": 8.0, "mean": 5.0}
    assert padding_of(watched.session, make(MASK[:2])) == {"looks": 2, "width": 16.0, "longest": 6.0, "mean": 4.0}


def test_only_one_batch_in_three_seconds_is_looked_at(watched):
    batch = {"attention_mask": MASK}
    assert padding_of(watched.session, batch)["looks"] == 1
    for _ in DataLoader([0] * 5, collate_fn=lambda _: batch):
        pass
    assert next(each for each in watched.session.measures if isinstance(each, Padding)).facts()["padding"]["looks"] == 1


def test_of_large_masks_a_bounded_part_is_read(watched, monkeypatch):
    read, string_at = [], ctypes.string_at
    monkeypatch.setattr(ctypes, "string_at", lambda at, size: read.append(size) or string_at(at, size))
    mask = torch.zeros(64, LONGEST_ROW, dtype=torch.int64)
    mask[:, :5000] = 1
    padding = padding_of(watched.session, {"attention_mask": mask})
    assert padding == {"looks": 1, "width": LONGEST_ROW, "longest": 5000.0, "mean": 5000.0}
    assert sum(read) <= 2**19


def padding_of_calls(session, *calls):
    """What is told after the model was called in these ways, each long after the one before."""
    measure = next(measure for measure in session.measures if isinstance(measure, Padding))
    for call in calls:
        measure.look(long_after())
        session.journal.arguments_came(*call)
    return measure.facts().get("padding")


@pytest.mark.parametrize(
    "call",
    [
        ((), {"input_ids": WIDE, "attention_mask": MASK}),
        (({"input_ids": WIDE, "attention_mask": MASK},), {}),
        ((WIDE, MASK.bool()), {}),
        ((WIDE,), {"src_key_padding_mask": ~MASK.bool()}),
    ],
    ids=["by name", "in a dict", "booleans", "of the padding"],
)
def test_padding_is_also_known_from_what_the_model_is_called_with(watched, call):
    assert padding_of_calls(watched.session, call) == {"looks": 1, "width": 16.0, "longest": 8.0, "mean": 5.0}
    assert watched.session.journal.arguments_came is None, "until it is due again"


def test_padding_at_the_left_is_told_by_a_row_without_any(watched):
    mask = MASK.flip(1).bool()
    mask[3] = True
    padding = padding_of_calls(watched.session, ((torch.ones(4, 16, 3), mask), {}))
    assert padding == {"looks": 1, "width": 16.0, "longest": 16.0, "mean": 7.0}


@pytest.mark.parametrize(
    "call",
    [
        ((WIDE[:, :1],), {"attention_mask": MASK}),
        ((WIDE,), {"token_type_ids": MASK}),
        ((WIDE, MASK.bool().roll(3, 1)), {}),
        ((torch.ones(16, 16), torch.ones(16, 16).tril().bool()), {}),
        ((WIDE,), {}),
    ],
    ids=["with a KV cache", "two sentences", "in the middle", "of what a token may look at", "without"],
)
def test_what_is_no_mask_of_padding_is_not_counted(watched, call):
    assert padding_of_calls(watched.session, call) is None
    assert watched.session._errors.number == 0


def freed(mask):
    mask.untyped_storage().resize_(0)
    return mask


@pytest.mark.parametrize(
    "mask",
    [
        MASK * 3,
        MASK.float(),
        MASK.t(),
        MASK[0],
        MASK.to("meta"),
        MASK.to_sparse(),
        nn.Parameter(MASK, requires_grad=False),
        freed(MASK.clone()),
        torch.zeros(0, 16, dtype=torch.int64),
        torch.ones(2, 9000, dtype=torch.int64),
        "a word",
        None,
    ],
    ids=["other numbers", "added to scores", "strided", "one row", "meta", "sparse", "subclass", "freed", "empty",
         "too long", "no tensor", "none"],
)  # fmt: skip
def test_what_is_no_plain_mask_in_memory_is_not_counted(watched, mask):
    assert padding_of(watched.session, {"attention_mask": mask}, {"ids": MASK}, MASK, [], object()) is None
    assert watched.session._errors.number == 0
