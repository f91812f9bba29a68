"""What if: how long a unit of work would be without a part of it, with more workers, or with a larger batch.

All predicted gains come from one model of the timeline. The lead thread does one thing after the other. The producers
of its data work in parallel. A GPU works in parallel to both, so only the time in which it is idle can be gained
(`device.host_limit`). The number of cores limits all of them. All lengths are relative to the unit's length now.
`TurnCost` is what an engine's iteration costs, fitted to those that were measured (see `queueing` for what waits).

A gain is predicted too low if part of what the fix removes is counted as something else. Hence three rules: the ledger
counts to a phase what libraries do around the calls that the hook times in it; waits for threads that lack a core count
as oversubscription; waits for a core that come with each hand-over of the GIL count as GIL contention, as far as a
freed core would end them (`waits_for_core`).

The rest of a step takes a little less time after a fix: over twelve fixes, each run in turn with the unfixed script,
the median CPU time of the backward pass was 0.95 of what it had been (0.82 to 1.08; 2026-11-23). The wall time falls
further where the fix also frees cores or memory bandwidth. How far cannot be told from one run, so it is in the range
of a gain rather than in its likely value, and the range reaches further up than down. `test_recordings` compares
predictions and ranges with the measured gains of 45 fixes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul
from statistics import median_high

import msgspec

from aitop.diagnosis.device import host_limit
from aitop.diagnosis.evidence import loader_workers, producer_entries, records
from aitop.model.ledger import Entry
from aitop.model.serving import IterationRecord
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Fix, Setting, Verdict

MOST_SPEEDUP = 100.0
MOST_WORKERS = 32
# Recommend enough workers that loading takes at most this part of the time in which it can be hidden.
HEADROOM = 0.9
# The range of a gain. At worst a fix removes only the part ENDED of its cause, and the rest of the step takes longer by
# up to the part LEFT; at best the rest becomes shorter by LIGHTER. LIGHTER was cross-validated: each of 45 measured
# gains was left out in turn, and the smallest value chosen that puts 85 % of the others in their range: 0.2 with the
# hook, 0.25 to 0.3 without. Of the gains left out, 35 of 40 and 32 of 38 were in range (2026-11-23; for the remaining
# gains the range is that of another fix).
ENDED, LEFT, LIGHTER = 0.85, 0.15, 0.25
# Relative error of a share that was measured and not sampled.
UNSAMPLED = 0.05
# A producer that uses less of a core than this mostly waits: the number of cores does not limit how many can run.
WAITING = 0.05
# A loader cannot keep up if its queue is empty at this part of the steps.
EMPTY = 0.8
HELD_UP = "alone it gains nothing: while loading cannot keep up, a shorter step only waits longer for its data"


class Length(msgspec.Struct, frozen=True):
    """The new length of a unit relative to its length now, with its 95 % bounds."""

    likely: float
    least: float
    most: float

    @property
    def speedup(self) -> float:
        """By what factor there are more units per second."""
        return 1.0 / max(self.likely, 1.0 / MOST_SPEEDUP)

    @property
    def speedup_range(self) -> tuple[float, float]:
        """The 95 % bounds of `speedup`."""
        low, high = 1.0 / self.most, 1.0 / max(self.least, 1.0 / MOST_SPEEDUP)
        return round(min(low, self.speedup), 3), round(max(high, self.speedup), 3)


def without(share: float, entries: Sequence[Entry] = ()) -> Length:
    """The unit without `share` (0..1) of the lead thread's time; its bounds come from the errors of these `entries`."""
    share = min(0.99, max(0.0, share))
    whole = sum(entry.share for entry in entries)
    below = above = UNSAMPLED
    if whole > 0.0:
        # Each entry comes from samples of its own, so their errors are independent.
        below = math.sqrt(sum((entry.share - entry.low) ** 2 for entry in entries)) / whole
        above = math.sqrt(sum((entry.high - entry.share) ** 2 for entry in entries)) / whole
    most = (1.0 - max(0.0, share * (1.0 - below) * ENDED)) * (1.0 + LEFT * share)
    return Length(1.0 - share, (1.0 - min(0.99, share * (1.0 + above))) * (1.0 - LIGHTER), min(1.0, most))


def between(share: float, low: float, high: float, entries: Sequence[Entry] = ()) -> Length:
    """The unit without `share` of it, from `low` to `high`; the errors of `entries` make that range wider still."""
    return Length(1.0 - min(0.99, share), without(high, entries).least, without(low, entries).most)


def with_batch(size: int, samples: float, fixed: float, each: float, *, surely: bool) -> Length:
    """The time per sample in batches of `size` instead of `samples`, relative to now.

    A unit takes `fixed` seconds plus `each` seconds per sample. `surely`: both were measured, not estimated.
    """
    now = fixed / samples + each
    share = max(0.0, 1.0 - (fixed / size + each) / now) if now > 0 else 0.0
    return estimated(share, *(0.9 * share, 1.05 * share) if surely else (0.7 * share, share + 0.6 * (1.0 - share)))


class Loading(msgspec.Struct, frozen=True):
    """How the data of a unit are made, and what that costs.

    wait         part of the unit that the lead thread loses to data
    makers       threads or processes that make the data; 0 if the lead thread makes them itself
    cores_each   cores that a maker uses while it works
    free_cores   idle cores that could be used as well; None if not known
    making       part of the unit in which the lead thread makes the data itself: more than `wait` if a device computes
                 meanwhile; None if it is `wait`
    """

    wait: float
    makers: int = 0
    cores_each: float = 1.0
    free_cores: float | None = None
    making: float | None = None

    def with_workers(self, workers: int) -> Length:
        """The unit with this many workers: loading and computing overlap as far as there are cores for both."""
        overlapped = max(self._compute, self._load / workers)
        likely = max(overlapped, self._core_bound())
        return Length(likely, overlapped * (1.0 - LEFT), likely + LEFT * (1.0 - likely))

    @property
    def _compute(self) -> float:
        """The unit without the wait."""
        return max(1.0 - self.wait, 1.0 / MOST_SPEEDUP)

    @property
    def _load(self) -> float:
        """One worker's time for one batch, in units: N busy workers make one batch per unit, so each takes N units."""
        if self.makers:
            return self.makers
        return self.wait if self.making is None else self.making

    def _core_bound(self) -> float:
        """The shortest unit that the available cores allow, given the CPU work of loading and computing."""
        if self.free_cores is None:
            return 0.0
        available = 1.0 + self.makers * self.cores_each + self.free_cores
        return (self._compute + self._load * self.cores_each) / available

    def best_workers(self) -> int:
        """The fewest workers that hide loading (with HEADROOM), as far as the cores allow."""
        affordable = MOST_WORKERS
        if self.cores_each >= WAITING and self.free_cores is not None:
            affordable = min(MOST_WORKERS, self.makers + math.floor(self.free_cores / self.cores_each + 0.3))
        wanted = math.ceil(self._load / (self._compute * HEADROOM))
        return max(self.makers, min(wanted, affordable), 1)


def estimated(share: float, low: float, high: float) -> Length:
    """The unit without `share` of it, which is only known to lie between `low` and `high`."""
    return Length(1.0 - min(0.99, share), 1.0 - min(0.99, high), 1.0 - max(0.0, min(0.99, low, high)))


def waits_for_core(now: float, running: float, wanted: float, cores: float) -> float:
    """Share of a unit in which its thread would wait for a core if all threads wanted `wanted` cores; at most `now`.

    Threads that want more cores than there are share them equally, so a thread that runs for `running` of the unit
    takes `wanted` / `cores` times as long, and waits for the difference.
    """
    return min(now, running * max(0.0, wanted / cores - 1.0))


def fix(text: str, saved: float | Length | None = None, setting: Setting | None = None) -> Fix:
    """Make a Fix; its speedup follows from `saved`, the share of a unit that it saves or the unit's new length."""
    length = saved if saved is None or isinstance(saved, Length) else without(saved)
    return Fix(text=text, speedup=None if length is None else round(length.speedup, 2), setting=setting)


# --- iterations of an engine ------------------------------------------------------------------------------------------

# Three coefficients are fitted, and with ten iterations for each the fit does not follow single ones. More than the
# newest thousand only cost CPU.
LEAST_TURNS, MOST_TURNS = 30, 1000
# A slope is fitted only if the 90th percentile of the values is at least this many times the 10th.
LEAST_SPREAD = 1.5
# The fit is used if its error is at most this part of the mean iteration.
MOST_UNEXPLAINED = 0.2
# Iterations further from the first fit than this many times the median distance were held up by something else.
OUTLIER = 4.0


class TurnCost(msgspec.Struct, frozen=True):
    """The cost of an iteration: `fixed` seconds, `decode` seconds for each token (or request) of the batch, and
    `prefill` seconds for each token of a prompt. `error` is the root mean square error, relative to the mean iteration.
    """

    fixed: float
    decode: float
    prefill: float
    error: float

    def seconds(self, decoded: float, prefilled: float = 0.0) -> float:
        """The seconds that an iteration with these numbers of tokens takes."""
        return self.fixed + self.decode * decoded + self.prefill * prefilled

    def with_batch(self, now: float, size: float, prefilled: float = 0.0) -> Length:
        """The time per token in iterations of `size` decoded tokens instead of `now`, relative to now.

        An iteration now has `prefilled` prompt tokens; their number per decoded token stays the same.
        """
        each = self.decode + self.prefill * prefilled / now
        return with_batch(round(size), now, self.fixed, each, surely=True)


def turn_cost(iterations: Sequence[IterationRecord]) -> TurnCost | None:
    """Fit the cost of iterations by least squares.

    None if there are too few, if their batches are too much alike, or if the fit explains too little.
    """
    points = [
        (float(decoded), float(iteration.prefill_tokens or 0), iteration.seconds)
        for iteration in iterations[-MOST_TURNS:]
        if (decoded := iteration.requests if iteration.decode_tokens is None else iteration.decode_tokens) is not None
    ]
    fitted = _fit(points)
    if fitted is None:
        return None
    usual = median_high(abs(fitted.seconds(d, p) - s) for d, p, s in points)
    near = [(d, p, s) for d, p, s in points if abs(fitted.seconds(d, p) - s) <= OUTLIER * usual]
    again = _fit(near)
    return again if again is not None and again.error <= MOST_UNEXPLAINED else None


def _fit(points: Sequence[tuple[float, float, float]]) -> TurnCost | None:
    """Fit the cost of iterations, given as (decoded, prefilled, seconds); None if they are too few or too alike."""
    if len(points) < LEAST_TURNS or not varied([decoded for decoded, _, _ in points]):
        return None
    prefills = any(prefilled for _, prefilled, _ in points)
    rows = [(1.0, decoded, prefilled) if prefills else (1.0, decoded) for decoded, prefilled, _ in points]
    solved = least_squares(rows, [seconds for _, _, seconds in points])
    if solved is None:
        return None
    # No cost is negative. Whether the clipped costs still fit, the error below says.
    fixed, decode, prefill = (*(max(0.0, value) for value in solved), 0.0)[:3]
    mean = sum(seconds for _, _, seconds in points) / len(points)
    errors = [fixed + decode * decoded + prefill * prefilled - seconds for decoded, prefilled, seconds in points]
    error = math.sqrt(sum(each * each for each in errors) / len(points)) / mean if mean > 0 else math.inf
    return TurnCost(fixed, decode, prefill, error)


def varied(values: Sequence[float]) -> bool:
    """Whether the values differ enough to fit a slope."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return high > 0 and high >= LEAST_SPREAD * low


def least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float] | None:
    """Solve a linear least-squares problem: one coefficient per column of `rows`; None if columns are dependent."""
    columns = [[float(value) for value in column] for column in zip(*rows, strict=True)]
    width = len(columns)
    # Columns scaled to at most 1 keep the normal equations well conditioned.
    scale = [max(map(abs, column)) or 1.0 for column in columns]
    system = [
        [sum(map(mul, own, other)) / (scale[i] * scale[j]) for j, other in enumerate(columns)]
        + [sum(map(mul, own, values)) / scale[i]]
        for i, own in enumerate(columns)
    ]
    for column in range(width):
        best = max(range(column, width), key=lambda row: abs(system[row][column]))
        if abs(system[best][column]) < 1e-9 * len(rows):
            return None
        system[column], system[best] = system[best], system[column]
        for row in range(width):
            if row != column:
                factor = system[row][column] / system[column][column]
                system[row] = [a - factor * b for a, b in zip(system[row], system[column], strict=True)]
    return [system[column][-1] / system[column][column] / scale[column] for column in range(width)]


# --- several causes at once -----------------------------------------------------------------------------------------


class Scope(msgspec.Struct, frozen=True):
    """How the time of a cause relates to other causes.

    each_unit    work within every unit: making it faster gains nothing while the loader cannot keep up
    everywhere   spread over all phases: without it, the phases keep their proportions
    capacity     not lost time but unused capacity (a larger batch, say)
    idle         work of the host: of a run on a device, it costs only time in which the device idles
    """

    each_unit: bool = False
    everywhere: bool = False
    capacity: bool = False
    idle: bool = False


# The usual scope: the cause takes a part of the time, and none of the above holds.
USUAL_SCOPE = Scope()


def together(verdicts: Sequence[Verdict], scopes: Mapping[str, Scope], snapshot: Snapshot) -> list[Verdict]:
    """The verdicts with their gains corrected for each other, the next limit named in the first one."""
    most_idle = host_limit(snapshot, in_phases=True)
    return _with_next_limit(_held_up_by_loading(list(verdicts), scopes, snapshot), scopes, most_idle)


def _held_up_by_loading(verdicts: list[Verdict], scopes: Mapping[str, Scope], snapshot: Snapshot) -> list[Verdict]:
    """If loading cannot keep up, set the gain of causes within the step to 1 and put loading ahead of them."""
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
    """Whether batches are made in parallel to the step, and (almost) none is ready when it is needed."""
    if loading.subtype not in ("workers", "transform", "storage", "collate"):
        return False
    depths = [step.queue_ready for step in records(snapshot) if step.queue_ready is not None]
    if depths:
        return bool(loader_workers(snapshot)) and depths.count(0) >= EMPTY * len(depths)
    return any(entry.at == place.at for place in loading.where[:1] for entry in producer_entries(snapshot))


def _with_next_limit(verdicts: list[Verdict], scopes: Mapping[str, Scope], most_idle: float) -> list[Verdict]:
    """The verdicts, with the next limit in the evidence of the first: what is left to gain once that is fixed.

    `most_idle` is the share (0..1) of the time that all work of the host together can cost.
    """
    timed = [verdict for verdict in verdicts if verdict.share and verdict.severity != "info"]
    if len(timed) < 2 or verdicts[0] is not timed[0]:
        return verdicts
    (first, share), (second, other) = ((verdict, _ends_with(verdict)) for verdict in timed[:2])
    if scopes[first.id].capacity or scopes[second.id].capacity:
        return verdicts
    remaining = 1.0 - share
    rest = remaining * other if scopes[first.id].everywhere or scopes[second.id].everywhere else min(other, remaining)
    if scopes[first.id].idle and scopes[second.id].idle:
        rest = min(rest, most_idle - share)
    if remaining <= 0.02 or rest < 0.005:
        return verdicts
    both = without(share + rest).speedup
    then = f"next limit: {second.id}, with {percent(min(0.99, rest / remaining))} of the time that then remains"
    evidence = (*first.evidence, f"{then} (without both: {both:.1f}×)")
    return [msgspec.structs.replace(first, evidence=evidence), *verdicts[1:]]


def _ends_with(verdict: Verdict) -> float:
    """The part (0..1) of the time that fixing a cause saves: more than its share if it also slows other parts."""
    return max(verdict.share or 0.0, 1.0 - 1.0 / (verdict.speedup or 1.0))
