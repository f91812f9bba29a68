"""Measures text generation with transformers: each call of `generate` is a step, with the tokens that it generated.

The forwards inside are no steps of their own. Without transformers nothing is patched.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...protocol.events import GENERATE
from ..compiler import keep_from_compiling
from ..journal import GONE, Journal
from ..patches import Patches
from . import Measure

if TYPE_CHECKING:
    from ..session import Session

MODULE, CLASS = "transformers.generation.utils", "GenerationMixin"
# The condition of the loop over tokens. When it is evaluated for the second time, the first token is on the host.
CONDITION = "_has_unfinished_sequences"
# What is wrapped in older releases instead. It is called after each forward.
UPDATE = "_update_model_kwargs_for_generation"
PROMPTS = ("input_ids", "inputs", "inputs_ids")

_now = time.monotonic_ns
_ident = _thread.get_ident


class Call:
    """A running call of `generate`: `start`, calls of its CONDITION or UPDATE (`asked`), and time of its `first` token.

    Times are CLOCK_MONOTONIC nanoseconds; `first` is 0 before the first token.
    """

    def __init__(self) -> None:
        self.asked = self.first = 0
        self.start = _now()


class Generation(Measure):
    """Puts its patches in as soon as transformers' generation is imported. `calls` are the running ones, by thread."""

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self.session = session
        self.tensor = torch.Tensor
        self.calls: dict[int, Call] = {}
        self.asks_before_first = 2
        self._patches = patches
        self._in = False
        self.look(0)

    def look(self, now: int) -> None:
        if self._in:
            return
        owner = getattr(sys.modules.get(MODULE), CLASS, None)
        if owner is None or "generate" not in vars(owner):
            return
        self._in = True
        watched = CONDITION if CONDITION in vars(owner) else UPDATE
        self.asks_before_first = 2 if watched == CONDITION else 1
        if watched in vars(owner):
            self._patches.put(owner, watched, lambda original: wrap_round(original, self))
        self._patches.put(owner, "generate", lambda original: wrap_generate(original, self))

    def made(self, call: Call, model: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note a call of `generate` that has returned `result`."""
        try:
            end = _now()
            journal = self.session.journal
            tokens = again = -1
            lengths = self._lengths(model, args, kwargs, result)
            if lengths is not None:
                rows, given, got = lengths
                tokens = rows * got
                if not keeps_cache(model, args, kwargs):
                    again = rows * (got * given + got * (got - 1) // 2)
            journal.note(GENERATE, call.start, end, tokens, again)
            if journal.computed is not None:
                journal.computed(call.start, end, tokens, call.first)
            if end > journal.due:
                journal.tick(end)
        except Exception:
            self.session.failed()

    def _lengths(self, model: Any, args: Any, kwargs: Any, result: Any) -> tuple[int, int, int] | None:
        """Return the number of sequences, and how many tokens each was given and got; None if not known.

        Tokens count with the padding of shorter sequences.
        """
        out = result if isinstance(result, self.tensor) else getattr(result, "sequences", None)
        if not isinstance(out, self.tensor) or out.dim() != 2:
            return None
        rows, length = int(out.shape[0]), int(out.shape[1])
        prompt = args[0] if args else next((kwargs[name] for name in PROMPTS if name in kwargs), None)
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            given = 1
        elif isinstance(prompt, self.tensor) and prompt.dim() == 2:
            given = int(prompt.shape[1])
        else:
            given = 0 if kwargs.get("inputs_embeds") is not None else 1
        return rows, given, max(0, length - given)


def keeps_cache(model: Any, args: Any, kwargs: Any) -> bool:
    """Return whether a call of `generate` keeps a KV cache, which it does if not told otherwise."""
    own = getattr(model, "generation_config", None)
    given = kwargs.get("generation_config", args[1] if len(args) > 1 else None)
    said = (kwargs.get("use_cache"), getattr(given, "use_cache", None), getattr(own, "use_cache", None))
    return next((value for value in said if value is not None), True) is not False


def wrap_generate(original: Callable[..., Any], generation: Generation) -> Callable[..., Any]:
    """Wrap `GenerationMixin.generate`. Streaming servers call it in a new thread for each text."""
    session, calls = generation.session, generation.calls
    journal: Journal = session.journal

    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = _ident()
        if thread == journal.owner or not session.not_owner():
            place: Any = journal
        else:
            # In a thread beside a training run it is no step.
            place = None if journal.owner == GONE or _now() < session.trains_until else session.local
        if place is None or getattr(place, "busy", False):
            return original(self, *args, **kwargs)
        call = Call()
        try:
            calls[thread] = call
            place.busy = True
            result = original(self, *args, **kwargs)
        finally:
            place.busy = False
            calls.pop(thread, None)
        generation.made(call, self, args, kwargs, result)
        return result

    return generate


def wrap_round(original: Callable[..., Any], generation: Generation) -> Callable[..., Any]:
    """Wrap the method that `generate` calls once per token (CONDITION or UPDATE)."""
    calls = generation.calls

    def each_round(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        call = calls.get(_ident())
        if call is not None and not call.first:
            call.asked += 1
            if call.asked == generation.asks_before_first:
                call.first = _now()
        return result

    return each_round


keep_from_compiling(Generation.made.__code__, inner=True)
