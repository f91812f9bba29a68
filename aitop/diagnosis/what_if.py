"""What if: how long a unit of work would be without a part of it, with more workers, or with a larger batch.

One model of the timeline gives every predicted gain. Its lanes: the stepping thread does one thing after the other;
those who make its data work beside it; on a GPU the device works beside both, so that only its gaps count
(`device.host_limit`); and the cores carry so much. All lengths are parts of the unit's length now.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from aitop.diagnosis.evidence import beside_lines, lead_ledger, loader_workers, records
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Fix, Setting, Verdict

MOST_SPEEDUP = 100.0
MOST_WORKERS = 32
# More workers than hide the load by so much are not recommended: a queue evens out the rest.
HEADROOM = 0.9
# A fix rarely ends all of a cause, and what is left of a step changes with it (caches, clocks, cores). Chosen so that
# the range is as wide as that; of 29 real gains it held 25 (tests/bench/README.md, verdicts.py).
ENDED, LEFT = 0.85, 0.15
# Where no sample divides the time, the share itself is known so well.
UNSAMPLED = 0.05
# Who uses less of a core than this waits for something else: cores do not limit how many there can be.
WAITING = 0.05
# A loader that is behind at this part of the steps cannot keep up.
EMPTY = 0.8
HELD_UP = "alone it gains nothing: while loading cannot keep up, a shorter step only waits longer for its data"


@dataclass(frozen=True)
class Length:
    """The new length of a unit as a part of its length now, with its bounds (95 %)."""

    likely: float
    least: float
    most: float

    @property
    def speedup(self) -> float:
        """The factor in units per second."""
        return 1.0 / max(self.likely, 1.0 / MOST_SPEEDUP)

    @property
    def speedup_range(self) -> tuple[float, float]:
        """The bounds of that factor."""
        low, high = 1.0 / self.most, 1.0 / max(self.least, 1.0 / MOST_SPEEDUP)
        return round(min(low, self.speedup), 3), round(max(high, self.speedup), 3)


@dataclass(frozen=True)
class Timeline:
    """One unit of work. The stepping thread loses `wait` of it to data: it makes them itself (`makers` is 0), or waits
    for so many threads or processes beside it.

    Each of these uses `cores_each` of a core while it works, for `at_work` of its time: less than 1 where nobody asks
    it for more. `free_cores` can be used on top (None: not known).
    """

    wait: float = 0.0
    makers: int = 0
    cores_each: float = 1.0
    free_cores: float | None = None
    at_work: float = 1.0

    def without(self, share: float, entries: Sequence[Entry] = ()) -> Length:
        """The unit without `share` of the stepping thread's time, which these entries of the ledger stand for."""
        share = min(0.99, max(0.0, share))
        whole = sum(entry.share for entry in entries)
        below = above = UNSAMPLED
        if whole > 0.0:
            # Entries are divided by samples of their own: their errors are independent.
            below = math.sqrt(sum((entry.share - entry.low) ** 2 for entry in entries)) / whole
            above = math.sqrt(sum((entry.high - entry.share) ** 2 for entry in entries)) / whole
        most = (1.0 - max(0.0, share * (1.0 - below) * ENDED)) * (1.0 + LEFT * share)
        return Length(1.0 - share, (1.0 - min(0.99, share * (1.0 + above))) * (1.0 - LEFT), min(1.0, most))

    def with_workers(self, workers: int) -> Length:
        """The unit with that many workers: loading and computing overlap, as far as the cores carry both."""
        overlapped = max(self._compute, self._load / workers)
        likely = max(overlapped, self._core_bound())
        return Length(likely, overlapped * (1.0 - LEFT), likely + LEFT * (1.0 - likely))

    @staticmethod
    def with_batch(size: int, samples: float, fixed: float, each: float, *, surely: bool) -> Length:
        """The time of a sample in batches of `size` instead of `samples`, where `fixed` seconds of a unit do not depend
        on how many there are, and each adds `each`. `surely`: both were measured.
        """
        now = fixed / samples + each
        share = max(0.0, 1.0 - (fixed / size + each) / now) if now > 0 else 0.0
        return estimated(share, *(0.9 * share, 1.05 * share) if surely else (0.7 * share, share + 0.6 * (1.0 - share)))

    @property
    def _compute(self) -> float:
        """The unit without the wait."""
        return max(1.0 - self.wait, 1.0 / MOST_SPEEDUP)

    @property
    def _load(self) -> float:
        """One worker's time for one batch: saturated workers each take as many units as there are workers."""
        return self.makers * self.at_work if self.makers else self.wait

    def _core_bound(self) -> float:
        """The shortest unit in which the cores in reach can do the CPU work of loading and computing."""
        if self.free_cores is None:
            return 0.0
        in_reach = 1.0 + self.makers * self.cores_each + self.free_cores
        return (self._compute + self._load * self.cores_each) / in_reach

    def best_workers(self) -> int:
        """The fewest workers that hide loading, with a little headroom, within what the cores allow."""
        affordable = MOST_WORKERS
        if self.cores_each >= WAITING and self.free_cores is not None:
            affordable = min(MOST_WORKERS, self.makers + math.floor(self.free_cores / self.cores_each + 0.3))
        wanted = math.ceil(self._load / (self._compute * HEADROOM))
        return max(self.makers, min(wanted, affordable), 1)


def estimated(share: float, low: float, high: float) -> Length:
    """The unit without `share` of it, of which only is known that it lies between two figures."""
    return Length(1.0 - min(0.99, share), 1.0 - min(0.99, high), 1.0 - max(0.0, min(low, high)))


def fix(text: str, gone: float | Length | None = None, setting: Setting | None = None) -> Fix:
    """A fix with its gain: the share of a unit that goes with it, or the new length."""
    length = gone if gone is None or isinstance(gone, Length) else Timeline().without(gone)
    return Fix(text=text, speedup=None if length is None else round(length.speedup, 2), setting=setting)


# --- several causes at once -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scope:
    """What the time of a cause is. `each_unit`: work of every unit, which a late loader hides. `everywhere`: a part of
    each phase, whose end leaves their proportions. `capacity`: what could be done beside it, and no time lost.
    """

    each_unit: bool = False
    everywhere: bool = False
    capacity: bool = False


# Just a part of the time.
PART = Scope()


def together(verdicts: Sequence[Verdict], scopes: Mapping[str, Scope], snapshot: Snapshot) -> list[Verdict]:
    """The verdicts, in their order, each gain held against what limits the unit next."""
    return _with_next_limit(_held_up_by_loading(list(verdicts), scopes, snapshot), scopes)


def _held_up_by_loading(verdicts: list[Verdict], scopes: Mapping[str, Scope], snapshot: Snapshot) -> list[Verdict]:
    """While loading cannot keep up, less work in the step gains nothing before loading is faster."""
    loading = next((each for each in verdicts if each.id == "input-bound" and each.severity != "info"), None)
    if loading is None or not loader_saturated(snapshot, loading):
        return verdicts
    hidden = {verdict.id for verdict in verdicts if scopes[verdict.id].each_unit and verdict.share}
    after = [_gaining_nothing(verdict) if verdict.id in hidden else verdict for verdict in verdicts]
    if after[0].id in hidden:
        return [loading, *(verdict for verdict in after if verdict is not loading)]
    return after


def _gaining_nothing(verdict: Verdict) -> Verdict:
    most = verdict.speedup_range[1] if verdict.speedup_range else 1.0
    fixes = tuple(msgspec.structs.replace(each, speedup=each.speedup and 1.0) for each in verdict.fixes)
    return msgspec.structs.replace(
        verdict, speedup=1.0, speedup_range=(1.0, most), evidence=(*verdict.evidence, HELD_UP), fixes=fixes
    )


def loader_saturated(snapshot: Snapshot, loading: Verdict) -> bool:
    """Whether batches are made beside the step, and never lie ready for it."""
    if loading.subtype not in ("workers", "transform", "storage", "collate"):
        return False
    depths = [step.queue_ready for step in records(snapshot) if step.queue_ready is not None]
    if depths:
        return bool(loader_workers(snapshot)) and depths.count(0) >= EMPTY * len(depths)
    ledger, first = lead_ledger(snapshot), next(iter(loading.where), None)
    return first is not None and any(
        (entry.file, entry.line) == (first.file, first.line)
        for entry in beside_lines(snapshot)
        if ledger is None or (entry.pid, entry.thread) != (ledger.pid, ledger.thread)
    )


def _with_next_limit(verdicts: list[Verdict], scopes: Mapping[str, Scope]) -> list[Verdict]:
    """The first of them, with what is left to gain when it is gone."""
    timed = [verdict for verdict in verdicts if verdict.share and verdict.severity != "info"]
    if len(timed) < 2 or verdicts[0] is not timed[0]:
        return verdicts
    (first, share), (second, other) = ((verdict, verdict.share or 0.0) for verdict in timed[:2])
    if scopes[first.id].capacity or scopes[second.id].capacity:
        return verdicts
    left = 1.0 - share
    rest = left * other if scopes[first.id].everywhere or scopes[second.id].everywhere else min(other, left)
    if left <= 0.02 or rest <= 0.0:
        return verdicts
    both = Timeline().without(share + rest).speedup
    # What takes time from other parts of the step too may gain more alone than by its share.
    if both <= (first.speedup or 0.0):
        return verdicts
    then = f"next limit: {second.id}, {percent(min(0.99, rest / left))} of the step that is left"
    evidence = (*first.evidence, f"{then} (both gone: {both:.1f}×)")
    return [msgspec.structs.replace(first, evidence=evidence), *verdicts[1:]]
