"""Thresholds by which both the hook and its reader tell training from inference."""

from __future__ import annotations

# A training run counts as inference once it has made only forwards without gradient for this long. The second, shorter
# time applies if training was only guessed from gradients that were there when the hook came in.
TRAINING_ENDS_AFTER_NS = 300_000_000_000
GUESSED_TRAINING_ENDS_AFTER_NS = 20_000_000_000
# After more forwards with gradient than this without any backward, the run counts as inference without no_grad.
FORWARDS_WITHOUT_BACKWARD = 8
