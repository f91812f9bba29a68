"""What these scripts share: mixed precision where the device has it, and a stack of linear layers."""

import contextlib

import torch
from torch import nn


def mixed_precision(device):
    """Autocast to bfloat16 on a device that computes in it, else nothing."""
    if device == "cuda" and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", torch.bfloat16)
    return contextlib.nullcontext()


def layers(width, depth, outputs=10):
    """Linear layers of one width with ReLU between them."""
    blocks = [block for _ in range(depth) for block in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*blocks, nn.Linear(width, outputs))
