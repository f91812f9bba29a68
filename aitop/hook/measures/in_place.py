"""Tells which tensors can be read in place: in this process's memory, one number after the other."""

from __future__ import annotations

from typing import Any


def is_readable(torch: Any, tensor: Any) -> bool:
    """Return whether this is a plain, contiguous tensor whose numbers are all in this process's memory."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() >= (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
        and tensor.data_ptr() != 0
    )
