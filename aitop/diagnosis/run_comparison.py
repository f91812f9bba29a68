"""Is one run faster than another, by how much more than noise explains, and which parts of a unit make it so? Pure.

The parts add up: phases to the length of a unit, lines to their phases, and what no verdict explains is its own part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from aitop.diagnosis.comparison import chance
from aitop.diagnosis.noise import LEAST_VALUES, blocks_of, half_width, warm_up
from aitop.model.ledger import Entry
from aitop.model.run import (
    Change,
    Load,
    LoadUnit,
    Outcome,
    Run,
    RunComparison,
    SettingChange,
    Share,
    Side,
    Stretch,
)
from aitop.model.verdict import Verdict, Where, share_of

# Runs whose ratio is certainly within this of 1 count as equally fast.
SAME = 0.05
# Smaller differences are of no use to anybody, however certain.
LEAST_CHANGE = 0.01
CERTAIN = 0.05
# What goes into a unit counts as unchanged within this.
EQUAL_LOAD = 0.01
# Requests under way may differ by this before latencies are no longer those of the same load.
EQUAL_CONCURRENCY = 0.1
# Cores that other programs take: a difference below this is common on an idle machine.
OTHER_LOAD = 0.25
# Longer recordings are not recommended: a run changes meanwhile.
LONGEST_RECORDING = 3600.0
# Lines below this share of a unit are added up.
LEAST_LINE = 0.001
Key = tuple[str, str, str]


def compare_runs(before: Run, after: Run) -> RunComparison:
    """Compare `after` with `before`; both are runs of the same kind of work."""
    sides = _Timed.of(before), _Timed.of(after)
    load = _load(*sides)
    moved = load is not None and abs(load.after / load.before - 1) > EQUAL_LOAD
    old, new = (side.at_load(load) if moved and load is not None else side for side in sides)
    change = _change(before, after, old, new)
    equal = True if load is not None else _equal_concurrency(before, after)
    change = _at_load(change, equal, load if moved else None)
    change = _disturbed(change, before, after, old, new)
    gone, new_ones, kept = _verdicts(before.verdicts, after.verdicts)
    known = old.mean is not None and new.mean is not None
    return RunComparison(
        before=old.side(),
        after=new.side(),
        change=change,
        phases=_phases(old, new) if known else (),
        causes=_causes(before, after, old, new) if known else (),
        lines=_lines(old, new) if known else (),
        settings=_settings(before, after),
        gone=gone,
        new=new_ones,
        kept=kept,
    )


@dataclass(frozen=True)
class _Timed:
    """The units of a run without its warm-up. `scale` brings their lengths to the load of the run before.

    `per` is what the noise is told by: at a moved load, how far each unit is off the mean length per load.
    """

    run: Run
    stretches: Sequence[Stretch]
    warm_up: int = 0
    scale: float = 1.0
    per: LoadUnit | None = None

    @classmethod
    def of(cls, run: Run) -> _Timed:
        """The units of `run` at their own load."""
        cut = warm_up([stretch.seconds / stretch.count for stretch in run.stretches])
        left_out = sum(stretch.count for stretch in run.stretches[:cut])
        return cls(run, run.stretches[cut:], left_out)

    def at_load(self, load: Load) -> _Timed:
        """The same, scaled to what goes into a unit before."""
        own = self.load(load.unit)
        return _Timed(self.run, self.stretches, self.warm_up, load.before / own if own else 1.0, load.unit)

    @property
    def count(self) -> int:
        return sum(stretch.count for stretch in self.stretches)

    @property
    def mean(self) -> float | None:
        """Seconds of a unit, None where no unit was timed."""
        if not self.stretches:
            return self.run.mean.seconds if self.run.mean is not None else None
        return sum(stretch.seconds for stretch in self.stretches) / self.count * self.scale

    @property
    def half(self) -> float | None:
        """Half of the 95 % interval of `mean`, None with too few units."""
        if not self.stretches:
            mean = self.run.mean
            return (mean.high - mean.low) / 2 if mean is not None else None
        if len(self.stretches) < LEAST_VALUES:
            return None
        return self.noise([stretch.seconds / stretch.count for stretch in self.stretches])

    def noise(self, values: Sequence[float]) -> float:
        """Half of the 95 % interval of the mean of these values, one of each stretch, at the load."""
        if self.per is None:
            return half_width(values)
        loads = [self._of(stretch, self.per) or 0.0 for stretch in self.stretches]
        slope = fmean(values) / fmean(loads)
        return self.scale * half_width([value - slope * load for value, load in zip(values, loads, strict=True)])

    def lengths(self) -> list[float]:
        """Length of a unit in each stretch, at the load, for a rank test."""
        if self.per is None:
            return [stretch.seconds / stretch.count for stretch in self.stretches]
        own = self.load(self.per) or 1.0
        loads = [self._of(stretch, self.per) or own for stretch in self.stretches]
        return [
            stretch.seconds / stretch.count * self.scale * own / load
            for stretch, load in zip(self.stretches, loads, strict=True)
        ]

    def load(self, unit: LoadUnit) -> float | None:
        """What goes into a unit on average, None where it is not known of all."""
        loads = [self._of(stretch, unit) for stretch in self.stretches]
        known = [load for load in loads if load is not None]
        return fmean(known) if known and len(known) == len(loads) and sum(known) else None

    @staticmethod
    def _of(stretch: Stretch, unit: LoadUnit) -> float | None:
        total = stretch.tokens if unit == "token" else stretch.samples
        return None if total is None else total / stretch.count

    def side(self) -> Side:
        """What is said of it."""
        mean, half = self.mean, self.half
        low, high = (mean - half, mean + half) if mean is not None and half is not None else (None, None)
        return Side(count=self.count, mean=mean, low=low, high=high, warm_up=self.warm_up)

    def phases(self) -> dict[str, tuple[float, float | None]]:
        """Seconds of each phase, and half of their interval where it is known. They add up to `mean`.

        What was not measured is divided as the stack samples say.
        """
        whole = self.mean or 0.0
        keys = dict.fromkeys(key for stretch in self.stretches for key in stretch.phases)
        series = {key: [one.phases.get(key, 0.0) / one.count for one in self.stretches] for key in keys}
        measured = {
            key: sum(one.phases.get(key, 0.0) for one in self.stretches) / self.count * self.scale for key in keys
        }
        inside = sum(measured.values())
        fit = whole / inside if inside > whole else 1.0
        enough = len(self.stretches) >= LEAST_VALUES
        parts: dict[str, tuple[float, float | None]] = {
            key: (seconds * fit, self.noise(series[key]) if enough else None) for key, seconds in measured.items()
        }
        rest = whole - inside * fit
        others: dict[str, float] = {}
        for entry in self.entries("main"):
            if entry.phase not in measured:
                others[entry.phase] = others.get(entry.phase, 0.0) + entry.share
        others = {key: share for key, share in others.items() if share > 0} or {"host": 1.0}
        lengths = [stretch.seconds / stretch.count for stretch in self.stretches]
        left = [length - sum(series[key][at] for key in keys) for at, length in enumerate(lengths)]
        noise = self.noise(left) if enough else None
        for key, share in others.items():
            part = share / sum(others.values())
            parts[key] = rest * part, None if noise is None else noise * part
        return parts

    def entries(self, lane: str) -> list[Entry]:
        """Entries of a lane. A server that waits for requests does not work on one."""
        idle = self.run.unit in ("request", "iteration")
        return [entry for entry in self.run.entries if entry.lane == lane and not (idle and entry.phase == "idle")]

    def lines(self) -> dict[Key, tuple[float, float, Where | None]]:
        """Seconds, the square of their uncertainty, and the place of each line; without one, of the rest of a phase.

        They add up to `mean`. While the main thread waits for what others make, their lines take the time.
        """
        parts: dict[Key, tuple[float, float, Where | None]] = {}
        producers = [entry for entry in self.entries("producers") if entry.activity != "wait-queue"]
        made = sum(entry.share for entry in producers)
        for phase, (seconds, _) in self.phases().items():
            entries = [entry for entry in self.entries("main") if entry.phase == phase and entry.share > 0]
            total = sum(entry.share for entry in entries)
            if not entries:
                _add(parts, phase, None, seconds, 0.0)
            for entry in entries:
                part, off = seconds * entry.share / total, seconds * (entry.high - entry.low) / 2 / total
                if phase == "data" and entry.activity == "wait-queue" and made > 0:
                    for maker in producers:
                        share = maker.share / made
                        wide = part * (maker.high - maker.low) / 2 / made
                        _add(parts, phase, maker.where, part * share, (off * share) ** 2 + wide**2)
                else:
                    _add(parts, phase, entry.where, part, off**2)
        return parts


def _add(
    parts: dict[Key, tuple[float, float, Where | None]], phase: str, where: Where | None, seconds: float, square: float
) -> None:
    """Add seconds to a line. Its text is what stays the same where lines above it come and go."""
    key: Key = ("", "", phase)
    if where is not None:
        key = (where.file.rsplit("/", 1)[-1], where.function, (where.text or str(where.line)).strip())
    before, squares, place = parts.get(key, (0.0, 0.0, where))
    parts[key] = before + seconds, squares + square, place


def _load(before: _Timed, after: _Timed) -> Load | None:
    """What goes into a unit on both sides: tokens where they were counted, else samples."""
    units: tuple[LoadUnit, ...] = ("token", "sample")
    for unit in units:
        old, new = before.load(unit), after.load(unit)
        if old is not None and new is not None:
            return Load(unit=unit, before=old, after=new)
    return None


def _equal_concurrency(before: Run, after: Run) -> bool | None:
    if not before.concurrency or not after.concurrency:
        return None
    return abs(after.concurrency / before.concurrency - 1) <= EQUAL_CONCURRENCY


def _change(before: Run, after: Run, old: _Timed, new: _Timed) -> Change:
    """How fast `new` is beside `old`, and how sure that is."""
    was, now = old.mean, new.mean
    if not was or not now:
        untimed = " and ".join(side.run.file for side, mean in ((old, was), (new, now)) if not mean)
        return Change(outcome="cannot-tell", reason=f"no unit of work was timed in {untimed}: that takes the hook")
    ratio = was / now
    half_old, half_new = old.half, new.half
    if half_old is None or half_new is None:
        fewer, run = min((old.count, before), (new.count, after), key=lambda pair: pair[0])
        return Change(
            outcome="cannot-tell",
            ratio=ratio,
            reason=f"{fewer} {run.unit or 'unit'}s of {run.file} are too few: at least {LEAST_VALUES} are needed",
            record_seconds=_longer(run.watched, 2 * LEAST_VALUES / max(1, fewer)),
        )
    wide = math.hypot(half_old / was, half_new / now)
    low, high = ratio * math.exp(-wide), ratio * math.exp(wide)
    outcome: Outcome = "cannot-tell"
    if not low <= 1 <= high and abs(ratio - 1) > LEAST_CHANGE and _ranked(old, new):
        outcome = "faster" if ratio > 1 else "slower"
    elif low > 1 - SAME and high < 1 + SAME:
        outcome = "same"
    told = outcome != "cannot-tell"
    watched = min(before.watched, after.watched)
    return Change(
        outcome=outcome,
        ratio=ratio,
        low=low,
        high=high,
        reason=None if told else "the difference is within the noise of these recordings",
        record_seconds=None if told else _longer(watched, max(2.0, (wide / SAME) ** 2)),
    )


def _ranked(old: _Timed, new: _Timed) -> bool:
    """Whether most of the time of one run is faster, not only its mean. Reports have no units to rank."""
    if not old.stretches or not new.stretches:
        return True
    return chance(blocks_of(old.lengths()), blocks_of(new.lengths())) < CERTAIN


def _longer(watched: float, times: float) -> float | None:
    seconds = watched * times
    return seconds if 0 < seconds <= LONGEST_RECORDING else None


def _at_load(change: Change, equal: bool | None, load: Load | None) -> Change:
    """Say of which load the change is. Latencies under another load say nothing of the program."""
    outcome, reason = change.outcome, change.reason
    if equal is False:
        outcome, reason = "cannot-tell", "not as many requests were under way in both runs"
    return msgspec.structs.replace(change, outcome=outcome, equal_load=equal, load=load, reason=reason)


def _disturbed(change: Change, before: Run, after: Run, old: _Timed, new: _Timed) -> Change:
    """Take other programs into account: where they explain most of a change, the runs cannot be compared."""
    was, now = before.other_load, after.other_load
    if was is None or now is None or abs(now - was) < OTHER_LOAD or change.outcome not in ("faster", "slower"):
        return change
    delta = (new.mean or 0.0) - (old.mean or 0.0)
    waited = _waited(new) - _waited(old)
    words = f"other programs took {now:.1f} cores instead of {was:.1f}"
    explained = waited / delta if delta else 0.0
    if explained < 0.5:
        return msgspec.structs.replace(change, reason=words)
    reason = f"{words}, and waiting for a core makes {explained:.0%} of the difference"
    return msgspec.structs.replace(change, outcome="cannot-tell", reason=reason)


def _waited(side: _Timed) -> float:
    """Seconds of a unit in which its thread waits for a core."""
    return sum(entry.share for entry in side.entries("main") if entry.activity == "wait-core") * (side.mean or 0.0)


def _phases(old: _Timed, new: _Timed) -> tuple[Share, ...]:
    was, now = old.phases(), new.phases()
    shares = []
    for name in dict.fromkeys((*was, *now)):
        before, half_before = was.get(name, (0.0, 0.0))
        after, half_after = now.get(name, (0.0, 0.0))
        wide = None if half_before is None or half_after is None else math.hypot(half_before, half_after)
        shares.append(_share(before, after, wide, name=name))
    return tuple(sorted(shares, key=lambda share: -abs(share.delta)))


def _lines(old: _Timed, new: _Timed) -> tuple[Share, ...]:
    was, now = old.lines(), new.lines()
    least = LEAST_LINE * max(old.mean or 0.0, new.mean or 0.0)
    shares, rest_before, rest_after = [], 0.0, 0.0
    for key in dict.fromkeys((*was, *now)):
        before, square_before, place_before = was.get(key, (0.0, 0.0, None))
        after, square_after, place_after = now.get(key, (0.0, 0.0, None))
        if max(before, after) < least:
            rest_before, rest_after = rest_before + before, rest_after + after
            continue
        where = place_after or place_before
        wide = math.sqrt(square_before + square_after) if where is not None else None
        shares.append(_share(before, after, wide, name=None if where else key[2], where=where))
    shares.sort(key=lambda share: -abs(share.delta))
    return (*shares, *([_share(rest_before, rest_after, None)] if rest_before or rest_after else []))


def _share(
    before: float, after: float, wide: float | None, *, name: str | None = None, where: Where | None = None
) -> Share:
    delta = after - before
    low, high = (None, None) if wide is None else (delta - wide, delta + wide)
    return Share(before=before, after=after, name=name, where=where, low=low, high=high)


def _causes(before: Run, after: Run, old: _Timed, new: _Timed) -> tuple[Share, ...]:
    """What each verdict explains of a unit, the largest change first, and last what none explains."""
    was, now = _explained(before.verdicts, old.mean or 0.0), _explained(after.verdicts, new.mean or 0.0)
    shares = [_share(was.get(name, 0.0), now.get(name, 0.0), None, name=name) for name in dict.fromkeys((*was, *now))]
    shares.sort(key=lambda share: -abs(share.delta))
    rest = (old.mean or 0.0) - sum(was.values()), (new.mean or 0.0) - sum(now.values())
    return (*shares, _share(*rest, None))


def _explained(verdicts: Sequence[Verdict], whole: float) -> Mapping[str, float]:
    """Seconds of a unit by the id of the verdict: those that are about its time, and want something changed."""
    of_time = [one for one in verdicts if one.share and one.severity != "info" and share_of(one.id) == "of step time"]
    # Causes claim their time one after the other. Should they claim more than there is, all give way alike.
    fit = min(1.0, 1.0 / max(1e-9, sum(one.share or 0.0 for one in of_time)))
    explained: dict[str, float] = {}
    for verdict in of_time:
        explained[verdict.id] = explained.get(verdict.id, 0.0) + (verdict.share or 0.0) * fit * whole
    return explained


def _verdicts(
    before: Sequence[Verdict], after: Sequence[Verdict]
) -> tuple[tuple[Verdict, ...], tuple[Verdict, ...], tuple[Verdict, ...]]:
    """Those that are gone, new and kept; a kept one as it is after. One that is only information by now is gone."""
    was, now = set(map(_identity, before)), set(map(_identity, after))
    return (
        tuple(one for one in before if _identity(one) not in now),
        tuple(one for one in after if _identity(one) not in was),
        tuple(one for one in after if _identity(one) in was),
    )


def _identity(verdict: Verdict) -> tuple[str, str | None, bool]:
    return verdict.id, verdict.subtype, verdict.severity == "info"


def _settings(before: Run, after: Run) -> tuple[SettingChange, ...]:
    """What differs, as far as it is known of both; what only one recording has differs, too."""
    was, now = {**before.settings, "command": before.command}, {**after.settings, "command": after.command}
    if before.other_load is not None and after.other_load is not None:
        old, new = round(before.other_load, 1), round(after.other_load, 1)
        if abs(old - new) >= OTHER_LOAD:
            was["cores taken by other programs"], now["cores taken by other programs"] = old, new
    recorded = before.basis == after.basis == "recording"
    names = [name for name in dict.fromkeys((*was, *now)) if recorded or (name in was and name in now)]
    return tuple(
        SettingChange(name=name, before=was.get(name), after=now.get(name))
        for name in names
        if was.get(name) != now.get(name)
    )
