"""Measures what the hook costs per step: the time of its wrappers, tried out around a dummy, and of its ticks."""

from __future__ import annotations

import _thread
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..journal import PHASES_SKIPPED, Journal, nothing
from ..optimizer import optimizer_hooks
from ..patches import Patches
from ..phases import wrap_backward, wrap_forward, wrap_next
from . import Measure

if TYPE_CHECKING:
    from ..session import Session

SAMPLES = 15
FIRST_ROUNDS = 5
# Not at once, because installing the hook has just held up the run.
FIRST_AFTER_NS = 100_000_000
FIRST_EVERY_NS, EVERY_NS = 1_000_000_000, 30_000_000_000
# More than fits into the caches of a core: reading it evicts the wrappers, as a step of the run does.
COLD_BYTES = 5 << 18
NEVER_NS = 10**15

# A function and its arguments.
_Call = tuple[Callable[..., Any], tuple[Any, ...]]
_now = time.monotonic_ns


class Cost(Measure):
    """Reports the mean cost of a step: the wrappers' time in timed and in counted steps, plus the time of the ticks.

    In a real step the CPU's caches are filled with other data between entering a wrapper and leaving it. A round of
    measurements does the same, and takes a millisecond.
    """

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self._ticks, self._run = session.ticks, session.journal
        self._timed: deque[int] = deque(maxlen=SAMPLES)
        self._counted: deque[int] = deque(maxlen=SAMPLES)
        self._due = _now() + FIRST_AFTER_NS
        self._cold = b""
        self._began = self._ended = 0
        self._journal = journal = Journal(lambda now: None)
        journal.owner = _thread.get_ident()
        journal.size_with_grad = True
        # What the wrappers use of a session, with an iterator and an optimizer that are already known.
        stand_in: Any = SimpleNamespace(
            journal=journal,
            compiling=lambda: False,
            grad_enabled=lambda: True,
            iterators={id(self): (nothing, None)},
            optimizers={id(self): (nothing, None)},
            not_owner=self._own,
        )
        before, after = optimizer_hooks(stand_in)
        self._plain: list[_Call] = [*3 * [(self._inside, (self,))], *2 * [(nothing, (self, (self,), {}))]]
        self._wrapped: list[_Call] = [
            *((wrap(self._inside, stand_in), (self,)) for wrap in (wrap_next, wrap_forward, wrap_backward)),
            *((hook, (self, (self,), {})) for hook in (before, after)),
        ]
        # While steps are counted, the backward's wrapper and the hook before optimizer steps are taken out.
        self._counting = [*self._wrapped[:2], *self._plain[2:4], self._wrapped[4]]

    def look(self, now: int) -> None:
        if now <= self._due:
            return
        self._due = now + (FIRST_EVERY_NS if len(self._timed) < FIRST_ROUNDS else EVERY_NS)
        # Not zeros: the kernel may map one shared page for all of them, which would stay in the cache.
        self._cold = b"\1" * COLD_BYTES
        # The first pass only warms up, because code that runs in every step is never as cold as on a first call.
        for _ in range(2):
            plain, timed, counted = self._step(self._plain), self._timed_step(), self._counted_step()
        self._cold = b""
        self._timed.append(max(0, timed - plain))
        self._counted.append(max(0, counted - plain))

    def facts(self) -> dict[str, Any]:
        return {"cost_us": self.us_per_step()}

    def us_per_step(self) -> float | None:
        """Return the cost of a step in microseconds; None before the first round, and in a server without steps.

        It is made of medians, because single measurements may have been preempted.
        """
        timed, counted = (sum(tick[at] for tick in self._ticks) for at in (0, 1))
        steps = timed + counted
        if not self._timed or not steps:
            return None
        ticks = _median([tick[2] for tick in self._ticks]) * len(self._ticks) / steps
        share = counted / steps
        cost = (1 - share) * _median(self._timed) + share * _median(self._counted)
        return round((cost + ticks) / 1000, 2)

    def _timed_step(self) -> int:
        """Return the nanoseconds that the wrappers' calls take in a timed step of a fast run."""
        journal = self._journal
        journal.fast, journal.skip, journal.cpu_reads = True, PHASES_SKIPPED, 0
        journal.due = _now() + NEVER_NS
        length = self._step(self._wrapped)
        journal.take()
        return length

    def _counted_step(self) -> int:
        """Return the nanoseconds that the wrappers' calls take in a counted step with nothing unusual in it."""
        journal = self._journal
        journal.optimizer, journal.passes = id(self), NEVER_NS
        journal.longest = journal.count_until = _now() + NEVER_NS
        journal.counting = True
        length = self._step(self._counting)
        journal.counting = False
        journal.optimizer = journal.passes = 0
        return length

    def _step(self, calls: list[_Call]) -> int:
        """Return the nanoseconds to enter and leave all of these calls, each time with cold caches.

        Where no optimizer steps, a step is a forward, so only that call is made.
        """
        length = 0
        for call, args in calls if self._run.steps else calls[1:2]:
            self._began = self._ended = 0
            self._cold.find(0)
            start = _now()
            call(*args)
            end = _now()
            length += end - start if not self._began else self._began - start + end - self._ended
        return length

    def _inside(self, *args: Any) -> None:
        self._began = _now()
        self._cold.find(0)
        self._ended = _now()

    def _own(self, training: bool = False) -> bool:
        self._journal.owner = _thread.get_ident()
        return False


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
