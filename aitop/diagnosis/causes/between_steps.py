"""Work between steps: checkpoint-stall, eval-stall, host-io-stall. Bursts or a little at every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

from msgspec.structs import replace

from aitop.diagnosis.causes.serving.queue import THREADS
from aitop.diagnosis.device import host_limit, host_unproven
from aitop.diagnosis.evidence import (
    HOST,
    ONCE,
    STORAGE_WAITS,
    Lines,
    blocks_loop,
    each_unit,
    lead_ledger,
    lines_of,
    main_lines,
    main_stacks,
    moved_to,
    records,
    seen_once,
    serves,
    share_of_steps,
    shares_by,
    short_place,
    stored,
    takes_request,
    where_of,
)
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.series import values_since
from aitop.diagnosis.served import all_taken
from aitop.diagnosis.what_if import Scope, fix
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.steps import StepRecord
from aitop.model.units import duration, percent
from aitop.model.verdict import Fix

ENTER, LEAVE = 0.05, 0.03
# Two or three samples come by chance where each step prints a line.
LEAST_SAMPLES = 4
# What comes with a burst has at most this part of its samples in windows of stacks without one.
SELDOM = 0.1
# The share of a step that a stall may still cost once it is made rarer.
CHEAP = 0.02
# Library work that waits for an answer.
ASKED = frozenset({"network", "database"})
# A line counts as reading or writing if storage takes at least LEAST_STORED of its own time, and LEAST_WAITED of all.
LEAST_STORED, LEAST_WAITED = 0.2, 0.015


@rule("checkpoint-stall", ENTER, LEAVE)
def checkpoint(snapshot: Snapshot) -> Explanation | None:
    """Time inside `torch.save` and what belongs to it: opening, writing and closing files in functions that save.

    A function that also makes steps may use files for anything: there only lines count that come when it saves.
    """
    saving = main_lines(snapshot, lambda entry: entry.phase == "save" or entry.work == "save")
    functions = {(entry.file, entry.function) for entry in saving.lines}
    steps = _functions(main_lines(snapshot, lambda entry: entry.phase not in (*HOST, "save", "environment")))
    when = {window for entry in saving.entries for window, count in enumerate(entry.by_window) if count}
    host = main_lines(
        snapshot,
        lambda entry: (
            entry.phase in HOST
            and (entry.file, entry.function) in functions
            and ((entry.file, entry.function) not in steps or _comes_with(entry, when))
        ),
    )
    files = [entry for entry in _storage_lines(host.entries).entries if entry.work != "save"]
    lines = lines_of((*saving.entries, *files))
    timed = _timed(snapshot, lambda step: step.save, "step_save")
    what = f"saving at {short_place(lines.where[0])}" if lines.where else "saving"
    fixes = (
        _rarer(snapshot, f"{what}:", lines.share, timed),
        fix(f"{what}: copy the state to host memory and write it in a background thread or process", lines.share),
    )
    return _stall(snapshot, "goes into saving checkpoints", lines, fixes, timed)


@rule("eval-stall", 0.12, 0.08, applies=lambda snapshot: snapshot.kind == "training")
def evaluation(snapshot: Snapshot) -> Explanation | None:
    """Forward passes without gradient between training steps."""
    own = main_lines(snapshot, lambda entry: entry.phase == "evaluation")
    lines = _calling_model(snapshot, own)
    timed = _timed(snapshot, lambda step: step.evaluation, "step_evaluation")
    what = f"evaluate ({short_place(lines.where[0])})" if lines.where else "evaluate"
    fixes = (
        _rarer(snapshot, what, lines.share, timed),
        fix("evaluate on a sample of the validation set: half as much gives back half", lines.share / 2),
        fix("evaluate checkpoints in a process of its own", lines.share),
    )
    stall = _stall(snapshot, "goes into evaluation", lines, fixes, timed)
    return stall and replace(stall, claims=own.entries)


def _calling_model(snapshot: Snapshot, lines: Lines) -> Lines:
    """Replace lines in functions that training steps run as well (the model) by the line that calls into them."""
    shared = _functions(main_lines(snapshot, lambda entry: entry.phase != "evaluation"))
    return Lines(lines.share, tuple(_outside_of(entry, shared) for entry in lines.entries))


def _comes_with(entry: Entry, windows: Set[int]) -> bool:
    """Whether a line was hardly ever sampled outside of these windows of stacks."""
    outside = sum(count for window, count in enumerate(entry.by_window) if window not in windows)
    return bool(entry.by_window) and outside <= SELDOM * sum(entry.by_window)


def _functions(lines: Lines) -> set[tuple[str, str]]:
    """The functions, as (file, name), of these lines and of the user's frames above them."""
    functions = {(entry.file, entry.function) for entry in lines.lines}
    return functions | {(frame.file, frame.function) for entry in lines.lines for frame in entry.via}


def _outside_of(entry: Entry, shared: Set[tuple[str, str]]) -> Entry:
    if (entry.file, entry.function) not in shared:
        return entry
    own = next((frame for frame in reversed(entry.via) if (frame.file, frame.function) not in shared), None)
    return entry if own is None else moved_to(entry, own)


@rule("host-io-stall", ENTER, LEAVE, scope=Scope(each_unit=True, idle=True))
def host_io(snapshot: Snapshot) -> Explanation | None:
    """Files, network and databases touched by the stepping thread outside of loading and saving."""
    serving = serves(snapshot)
    host = main_lines(
        snapshot,
        lambda entry: entry.phase in HOST and not (serving and (blocks_loop(entry) or takes_request(entry))),
    )
    logging = [entry for entry in host.entries if entry.work == "log"]
    lines = lines_of((*_storage_lines(entry for entry in host.entries if entry.work != "log").entries, *logging))
    share = min(lines.share, host_limit(snapshot)) if lines.samples >= LEAST_SAMPLES else 0.0
    place = f": {short_place(lines.where[0])}" if lines.where else ""
    asks = lines.part(lambda entry: entry.work in ASKED) > 0.5
    fixes = _while_asking(snapshot, place, share) if serving and asks else _without_waiting(place, share)
    return _stall(snapshot, "goes into files or services", Lines(share, lines.entries), fixes)


def _without_waiting(place: str, share: float) -> tuple[Fix, ...]:
    often = f"collect, and do it {_factor(share)} times as rarely{place}"
    return fix(f"hand it to a background thread{place}", share), fix(often, _saved_rarely(share))


def _while_asking(snapshot: Snapshot, place: str, share: float) -> tuple[Fix, ...]:
    """What to do where a request waits for the answer of a service, which it needs."""
    asked = fix(f"cache what comes back, ask once for several, and keep connections to it open{place}")
    process, ledger = main_stacks(snapshot), lead_ledger(snapshot)
    pool = process.pool if process is not None else None
    if pool is not None and pool.standing > pool.asking > 0.0 and pool.lines:
        # Those that stand in line could ask at the same time, but no more than there are.
        line = short_place(where_of(pool.lines[0].pid, pool.lines[0]))
        others = f"let go of what the others wait for at {line} while it asks: they can ask meanwhile"
        return fix(others, min(share, 1.0 - 1.0 / (pool.standing + pool.asking))), asked
    if snapshot.serving is not None and all_taken(snapshot.serving, pool):
        return fix(f"{THREADS}, as all are taken: others are answered while one asks{place}", share), asked
    if ledger is None or ledger.threads > 1:
        return (asked,)
    others = f"answer other requests meanwhile: threads (gunicorn --threads 8), or an asynchronous client{place}"
    return fix(others, share), asked


def _storage_lines(entries: Iterable[Entry]) -> Lines:
    """The entries of lines that spend a good part of their time on storage or a service (`stored`).

    All entries of such a line count: what it runs belongs to the same call, since a write runs in the kernel. Library
    code without a line of the user's is many calls, so only its entries for storage count.
    """
    entries = tuple(entries)
    on_core = [entry for entry in entries if entry.activity != "wait-core"]
    whole = shares_by(on_core, lambda entry: entry.at)
    of_storage = shares_by(filter(stored, on_core), lambda entry: entry.at)
    chosen = {at for at, share in of_storage.items() if share >= max(LEAST_WAITED, LEAST_STORED * whole[at])}
    return lines_of(entry for entry in entries if entry.at in chosen and (entry.where is not None or stored(entry)))


class _Timed(NamedTuple):
    """What the hook measured of a stall: its share of the time, and its seconds in each step that had it.

    That is of the window, or of the last `over` seconds, where the window has at most one step that had it.
    """

    share: float = 0.0
    bursts: tuple[float, ...] = ()
    over: float | None = None


_NOT_TIMED = _Timed()


def _timed(snapshot: Snapshot, seconds: Callable[[StepRecord], float], series: str) -> _Timed:
    """What the hook measured; _NOT_TIMED if that is hardly anything, since other calls take the time then.

    `series` has the same for each second of the last minutes.
    """
    share = share_of_steps(records(snapshot), seconds) or 0.0
    bursts = tuple(spent for step in records(snapshot) if (spent := seconds(step)) > 0.0)
    if share < LEAVE:
        return _NOT_TIMED
    minutes = values_since(snapshot, series, math.inf)
    earlier = tuple(spent for _, spent in minutes if spent > 0.0)
    if len(bursts) < 2 <= len(earlier):
        over = snapshot.time - minutes[0][0] + 1.0
        return _Timed(min(share, sum(earlier) / over), earlier, over)
    return _Timed(share, bursts)


def _stall(
    snapshot: Snapshot, title: str, lines: Lines, fixes: Sequence[Fix], timed: _Timed = _NOT_TIMED
) -> Explanation | None:
    """The verdict on time lost between steps."""
    share, steps = lines.share, records(snapshot)
    if timed.over is not None:
        # The window happens to have one of the bursts: over minutes they take less of the time.
        share = min(share, timed.share)
    if share < LEAVE:
        return None
    sampled = bool(lines.lines) and lines.samples >= LEAST_SAMPLES
    kernel = lines.part(lambda entry: entry.activity in STORAGE_WAITS) > 0.5
    # One burst tells what it costs, but not how often it comes.
    once = len(timed.bursts) == 1 if timed.bursts else seen_once(snapshot, lines)
    evidence = _often(timed, len(steps))
    if timed.bursts:
        around = ", the rest around the calls that are timed" if share - timed.share >= LEAVE else ""
        evidence.append(f"{percent(timed.share)} of {each_unit(snapshot)}, measured in the process{around}")
    if once and not timed.bursts:
        evidence.append(ONCE)
    if lines.where:
        at = short_place(lines.where[0])
        evidence.append(f"{lines.samples:.0f} stack samples ({percent(share)}), most of them at {at}")
    return Explanation(
        severity="info" if once else None,
        share=share,
        # Steps are timed; the lines were sampled; the kernel saw waits for storage.
        signals=(bool(steps), sampled, kernel),
        # On a GPU, host times may be waits for the device.
        doubtful=once or host_unproven(snapshot),
        title=f"{percent(share)} of the time {title}",
        lines=lines,
        evidence=evidence,
        fixes=fixes,
    )


def _rarer(snapshot: Snapshot, what: str, share: float, timed: _Timed) -> Fix:
    """The fix "do it less often": so rarely that it costs at most CHEAP; in steps, if its rhythm is known."""
    bursts, share = timed.bursts, share if timed.over is None else min(share, timed.share)
    factor, steps = _factor(share), len(records(snapshot))
    often = f"{factor} times as rarely"
    if timed.over is None and 2 <= len(bursts) <= steps:
        every = steps / len(bursts)
        instead = f" instead of every {every:.0f}" if every >= 1.5 else ""
        often = f"every {round(every * factor) if instead else factor} steps{instead}"
    return fix(f"{what} {often}", _saved_rarely(share))


def _factor(share: float) -> int:
    """How many times rarer it must be to cost at most CHEAP of a step; a round number."""
    needed = share / max(1e-3, 1.0 - share) / CHEAP
    return next((factor for factor in (2, 5, 10, 20, 50, 100, 200, 500) if factor >= needed), 1000)


def _saved_rarely(share: float) -> float:
    return share * (1.0 - 1.0 / _factor(share))


def _often(timed: _Timed, steps: int) -> list[str]:
    """Evidence of how often the bursts came and what each cost."""
    bursts = timed.bursts
    if not bursts:
        return []
    if timed.over is not None:
        return [f"{len(bursts)} times in {timed.over:.0f} s, {duration(sum(bursts) / len(bursts))} each"]
    if len(bursts) == 1:
        return [f"once in {steps} steps so far, {duration(bursts[0])}: how often it comes is not known yet"]
    cost = duration(sum(bursts) / len(bursts))
    return [f"{len(bursts)} times in {steps} steps (every {steps / len(bursts):.0f}), {cost} each"]
