"""How the hook and its reader tell training from inference, alike."""

from __future__ import annotations

# A run that trained counts as inference after this long with only forwards without gradient; after the second time if
# training was only guessed, because gradients were there when the hook came in.
TRAINING_ENDS_AFTER_NS = 300_000_000_000
GUESSED_TRAINING_ENDS_AFTER_NS = 20_000_000_000
# Above this many forwards with gradient but without a backward, the run is inference without no_grad.
FORWARDS_WITHOUT_BACKWARD = 8
