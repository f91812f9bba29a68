"""What kind of work an operator or kernel does, by its name."""

from __future__ import annotations

import re

from aitop.model.profile import OpClass

# In this order: a fused attention kernel has "gemm" in its name, and a copy kernel "elementwise".
_PATTERNS: tuple[tuple[OpClass, str], ...] = (
    ("collective", r"nccl|all_?reduce|all_?gather|reduce_?scatter|c10d|broadcast_kernel|gloo"),
    ("attention", r"flash|fmha|scaled_dot_product|attention|\bsdpa"),
    ("convolution", r"conv(?!ert)|wgrad|dgrad|im2col|winograd|cudnn.*nchw"),
    (
        "matmul",
        r"gemm|cutlass|xmma|matmul|addmm|\bbmm|\bbaddbmm|::mm\b|\bmm\b|linear|cublas|nvjet|::mv\b|addmv|::dot\b",
    ),
    ("normalization", r"norm|welford"),
    ("copy", r"memcpy|memset|copy_|::copy|::to\b|_to_copy|contiguous|clone|direct_copy|catarray|::cat\b|::stack\b"),
    (
        "reduction",
        r"reduce|::sum\b|::mean\b|::max\b|::min\b|argmax|softmax|logsumexp|nll_loss|cross_entropy|cumsum|sort",
    ),
    (
        "elementwise",
        r"elementwise|vectorized|foreach|multi_tensor|pointwise|fill_|::(add|sub|mul|div|relu|gelu|tanh|sigmoid|exp|sqrt|pow|"
        r"clamp\w*|threshold\w*|zero|dropout|where|neg|lerp|addc\w+|silu|native_dropout)_?\b",
    ),
)
_CLASSES = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)


def class_of(name: str) -> OpClass:
    """The class of an operator (`aten::addmm`) or kernel (`sm90_xmma_gemm_…`); `other` where its name tells nothing."""
    for kind, pattern in _CLASSES:
        if pattern.search(name):
            return kind
    return "other"
