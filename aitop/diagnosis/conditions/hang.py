"""hang: no rank makes progress, or no request of a server. Names the rank or the line that the others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Sized

import msgspec

from aitop.diagnosis.conditions.stalled import stalled
from aitop.diagnosis.evidence import entries_of, short_place, where_of
from aitop.diagnosis.rule import Explanation, condition
from aitop.diagnosis.what_if import fix
from aitop.model.ranks import FlightRecord, Standing, Standstill
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration
from aitop.model.verdict import Where

SURE, LIKELY, UNSURE, BLIND = 0.95, 0.85, 0.6, 0.5
MOST_GROUPS = 6
MOST_STOPPED = 8
MOST_FLIGHTS = 4
# Calls in which a process may wait without any other rank.
OF_ONE = ("backward", "synchronize")
# The call in which all ranks meet first.
MEETS = "init_process_group"


class Odd(msgspec.Struct, frozen=True):
    """The process or call that keeps all others waiting. `standing` is where to look first, empty if it is gone."""

    subtype: str
    title: str
    confidence: float
    standing: tuple[Standing, ...] = ()
    ranks: tuple[int, ...] = ()
    fix: str = ""


@condition("hang")
def hang(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict if all ranks, or all requests of a server, stand still for longer than is usual for this run."""
    still = snapshot.standstill
    if still is None or (not still.ranks and not still.gone):
        return stalled(snapshot)
    odd = odd_one(still)
    where = tuple(place for process in odd.standing if (place := _place(process)) is not None)
    others = tuple(
        place for process in still.ranks if process not in odd.standing and (place := _place(process)) is not None
    )
    return Explanation(
        subtype=odd.subtype,
        severity="critical",
        share=1.0,
        gains=False,
        confidence=odd.confidence,
        title=odd.title,
        where=(where + others)[:MOST_GROUPS],
        evidence=(*_evidence(still), *noted(still, snapshot)),
        fixes=(fix(odd.fix),) if odd.fix else (),
        ranks=odd.ranks,
        level=1.0,
        # Nothing else slows a run that stands.
        claims=entries_of(snapshot),
    )


def odd_one(still: Standstill) -> Odd:
    """The process or call that keeps the others waiting, by the surest sign that there is."""
    return (
        _stopped(still.ranks + still.workers)
        or _missing(still)
        or _in_a_worker(still)
        or _elsewhere(still)
        or _different_calls(still.ranks)
        or _behind(still)
        or _alike(still)
    )


def _stopped(standing: Sequence[Standing]) -> Odd | None:
    """The finding that processes are stopped; None if none is."""
    stopped = [process for process in standing if process.state in ("T", "t")]
    if not stopped:
        return None
    ranks = [process for process in stopped if process.role == "rank"]
    who = named(ranks) if ranks else _workers(stopped)
    title = f"{who} {_by_number(ranks or stopped, 'is', 'are')} stopped by a signal or a debugger"
    if any(other.role == "rank" and other not in stopped for other in standing):
        title += f": all others wait for {_by_number(ranks or stopped, 'it', 'them')}"
    pids = [str(process.pid) for process in stopped[:MOST_STOPPED]]
    return Odd("stopped", title, SURE, tuple(stopped), _numbers(stopped), f"let it go on: kill -CONT {' '.join(pids)}")


def _missing(still: Standstill) -> Odd | None:
    """The finding that ranks have ended; None if none has."""
    if not still.gone:
        return None
    has, it = _by_number(still.gone, "has", "have"), _by_number(still.gone, "it", "them")
    waiting = next((process.call for process in still.ranks if process.doing == "collective" and process.call), None)
    ended = f"{has} not come, or {has} ended" if waiting == MEETS else f"{has} ended"
    title = f"{_numbered(still.gone, 'rank', 'ranks')} {ended}, and the others wait for {it}" + (
        f" in {waiting}" if waiting else ""
    )
    fix = "find out why it ended (its log, `dmesg` for the out-of-memory killer) and have the launcher end all with it"
    return Odd("rank-gone", title, LIKELY if waiting else UNSURE, (), still.gone, fix)


def _in_a_worker(still: Standstill) -> Odd | None:
    """The finding that a rank waits for its loader, and a worker of that stands in the user's code; None if not so."""
    loading = {process.rank for process in still.ranks if process.doing == "loading"}
    others = [process for process in still.ranks if process.doing not in ("loading", "collective")]
    stuck = [process for process in still.workers if process.doing == "fetching" and process.rank in loading]
    if not stuck or others:
        return None
    place = f" at {_line(stuck[0])}" if stuck[0].where else ""
    worker = _by_number(stuck, "a loader worker", f"{len(stuck)} loader workers") + _of_ranks(stuck)
    title = f"{worker} {_by_number(stuck, 'does', 'do')} not come back{place}"
    fix = 'hold no lock and start no thread before the workers are forked, or use multiprocessing_context="spawn"'
    sure = LIKELY if all(process.doing in ("collective", "loading") for process in still.ranks) else UNSURE
    return Odd("loader-worker", title, sure, tuple(stuck), _numbers(stuck), fix)


def _elsewhere(still: Standstill) -> Odd | None:
    """The finding that some ranks wait in a collective while one does something else; None if not so."""
    ranks = still.ranks
    waiting = [process for process in ranks if process.doing == "collective"]
    odd = [process for process in ranks if process.doing is not None and process.doing != "collective"]
    if not odd or (not waiting and len(ranks) > 1):
        return None
    first = odd[0]
    if first.doing == "loading":
        what = _by_number(odd, "waits for its DataLoader", "wait for their DataLoaders")
    else:
        what = f"{_by_number(odd, 'stands', 'stand')} in {first.call or _by_number(odd, 'its', 'their') + ' own code'}"
    stuck = " in uninterruptible sleep" if first.state == "D" else ""
    behind = f", and {_ranks(waiting)} in {_calls(waiting)}" if waiting else ""
    title = f"{named(odd)} {what}{stuck} at {_line(first)}{behind}"
    fix = "a lock, queue or read that is never answered: give it a time-out, and see who ought to answer"
    sure = SURE if len(odd) == 1 and waiting else UNSURE
    return Odd("rank-blocked", title, sure, tuple(odd), _numbers(odd), fix)


def _different_calls(ranks: Sequence[Standing]) -> Odd | None:
    """The finding that some ranks wait in one collective and the others in another; None if not so."""
    waiting = [rank for rank in ranks if rank.doing == "collective"]
    if len(waiting) < 2 or len({_where_key(rank) for rank in waiting}) < 2:
        return None
    conditions = [_conditions(rank) for rank in waiting]
    shared = frozenset.intersection(*conditions)
    guarded = [rank for rank, under in zip(waiting, conditions, strict=True) if under - shared]
    fix = "let every rank make the same collectives in the same order: none under a condition that not all ranks share"
    if guarded and len(guarded) < len(waiting):
        odd = [rank for rank in waiting if rank not in guarded]
        if len({_where_key(rank) for rank in guarded}) == 1 and len({_where_key(rank) for rank in odd}) == 1:
            left_out = guarded[0]
            now = f"{_by_number(odd, 'is', 'are')} in {odd[0].call} at {_line(odd[0])}"
            title = f"{named(odd)} left out {left_out.call} at {_line(left_out)} and {now}"
            return Odd("skipped-collective", title, LIKELY, (*odd, *guarded[:1]), _numbers(odd), fix)
    odd = _minority(waiting)
    rest = [rank for rank in waiting if rank not in odd]
    others = f"{_ranks(rest)} in {_calls(rest)} at {_line(rest[0])}"
    title = f"{named(odd)} {_by_number(odd, 'is', 'are')} in {odd[0].call} at {_line(odd[0])}, {others}"
    sure = LIKELY if len(odd) < len(rest) else UNSURE
    return Odd("mismatched-collectives", title, sure, tuple(odd), _numbers(odd), fix)


def _behind(still: Standstill) -> Odd | None:
    """The finding that all ranks are in one call, but some have skipped a collective before it; None if not so."""
    numbers = _behind_by_number(still)
    odd = [process for process in still.ranks if process.rank in numbers]
    if not odd or any(process.doing != "collective" for process in still.ranks):
        return None
    verb, they = _by_number(odd, "is", "are"), _by_number(odd, "it", "they")
    title = f"{named(odd)} {verb} behind the others by collectives that {they} left out"
    fix = "let every rank make the same collectives in the same order: look for a condition that not all ranks share"
    return Odd("skipped-collective", title, UNSURE, tuple(odd), numbers, fix)


def _alike(still: Standstill) -> Odd:
    """The finding where no rank differs from the others."""
    calls = _calls(still.ranks)
    if all(process.doing is None for process in still.ranks):
        title = f"no rank has run for {still.seconds:.0f} s; which one the others wait for only stacks could tell"
        return Odd("unknown", title, BLIND)
    if still.elsewhere:
        waits = _by_number(still.ranks, "waits", "wait")
        title = f"{_ranks(still.ranks)} {waits} in {calls} for {still.elsewhere} ranks that are not on this machine"
        return Odd("rank-elsewhere", title, UNSURE, fix="look at the other machines, or at why a rank has ended")
    if len(still.ranks) == 1 and still.ranks[0].doing == "collective" and calls not in OF_ONE:
        title = f"the only rank that is here waits in {calls} for others: they have ended, or are on other machines"
        fix = "look at their logs, and at the other machines; have the launcher end all ranks with the first that ends"
        return Odd("rank-elsewhere", title, UNSURE, still.ranks[:1], fix=fix)
    if len(still.ranks) == 1:
        title = f"the only process waits in {calls}" + (f" at {_line(still.ranks[0])}" if still.ranks[0].where else "")
        return Odd("rank-blocked", title, UNSURE, still.ranks[:1])
    title = f"all ranks stand in {calls}: the exchange itself does not get on"
    return Odd("exchange", title, UNSURE, still.ranks[:1], fix="look at the network and at the backend's own log")


def _by_number(of: Sized, one: str, several: str) -> str:
    return one if len(of) == 1 else several


def _minority(waiting: Sequence[Standing]) -> list[Standing]:
    """The ranks at the place where fewest stand; of equally many, those at the place without rank 0."""
    counts = Counter(_where_key(process) for process in waiting)
    zero = next((_where_key(process) for process in waiting if process.rank == 0), None)
    fewest = min(counts, key=lambda key: (counts[key], key == zero, str(key)))
    return [process for process in waiting if _where_key(process) == fewest]


def _conditions(process: Standing) -> frozenset[tuple[str, str, str]]:
    """The `if` conditions that the rank stands under, in all functions of the user's on its stack."""
    return frozenset(
        (frame.file, frame.function, frame.guard) for frame in process.frames if frame.user and frame.guard
    )


def _where_key(process: Standing) -> tuple[str | None, str | None, int | None]:
    return process.call, process.where.file if process.where else None, process.where.line if process.where else None


def _evidence(still: Standstill) -> list[str]:
    since = f"nothing has run for {still.seconds:.0f} s"
    if still.usual is not None:
        since += f"; the longest step so far took {duration(still.usual)}"
    lines = [since]
    groups: dict[tuple[object, ...], list[Standing]] = {}
    for process in (*still.ranks, *(worker for worker in still.workers if worker.doing == "fetching")):
        groups.setdefault(
            (process.role, process.doing, *_where_key(process), process.state, process.channel), []
        ).append(process)
    for members in list(groups.values())[:MOST_GROUPS]:
        lines.append(_stands(members))
    if still.gone:
        lines.append(f"gone: {_numbered(still.gone, 'rank', 'ranks')}")
    return lines


def _stands(members: Sequence[Standing]) -> str:
    process = members[0]
    who = _ranks(members) if process.role == "rank" else _workers(members) + _of_ranks(members)
    parts = [
        f"{who}: in {process.call or ('code of its own' if process.frames else 'a wait that only stacks could name')}"
    ]
    if process.where is not None:
        condition = next(
            (frame.guard for frame in reversed(process.frames) if frame.user and frame.guard), process.where.guard
        )
        parts.append(f"at {_line(process)}" + (f", under `{condition}`" if condition else ""))
    if process.state is not None:
        parts.append(f"[{process.state}{' ' + process.channel if process.channel else ''}]")
    return " ".join(parts)


def _place(process: Standing) -> Where | None:
    return where_of(process.pid, process.where) if process.where is not None else None


def _line(process: Standing) -> str:
    return short_place(process.where) if process.where is not None else f"process {process.pid}"


def _numbers(standing: Sequence[Standing]) -> tuple[int, ...]:
    return tuple(sorted({process.rank for process in standing if process.rank is not None}))


def named(standing: Sequence[Standing]) -> str:
    """The ranks, or the processes where they have no number."""
    if any(process.rank is None for process in standing):
        return _numbered([process.pid for process in standing], "process", "processes")
    return _ranks(standing)


def _ranks(standing: Sequence[Standing]) -> str:
    return _numbered(["?" if process.rank is None else process.rank for process in standing], "rank", "ranks")


def _workers(standing: Sequence[Standing]) -> str:
    return _numbered([process.pid for process in standing], "loader worker", "loader workers")


def _of_ranks(workers: Sequence[Standing]) -> str:
    """Words for the ranks that the workers belong to; empty where these have no number."""
    return f" of {_numbered(numbers, 'rank', 'ranks')}" if (numbers := _numbers(workers)) else ""


def _numbered(numbers: Sequence[object], one: str, several: str) -> str:
    return f"{_by_number(numbers, one, several)} {_list([str(number) for number in numbers])}"


def _calls(standing: Sequence[Standing]) -> str:
    return _list(sorted({process.call or "their own code" for process in standing}))


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def _behind_by_number(still: Standstill) -> tuple[int, ...]:
    """The ranks that have begun the fewest collectives, which the others wait for.

    Empty unless the number is known of all ranks and differs between them.
    """
    notes = still.notes
    # Each process group numbers its own collectives.
    alike = notes is not None and len({flight.group for flight in notes.flights}) == 1
    flights = {flight.rank: flight.sequence for flight in notes.flights} if notes and alike else {}
    called = {rank.rank: rank.sequence for rank in still.ranks if rank.rank is not None and rank.sequence}
    for numbers in (flights, called):
        if len(numbers) == len(still.ranks) > 1 and len(set(numbers.values())) > 1:
            return tuple(sorted(rank for rank, number in numbers.items() if number == min(numbers.values())))
    return ()


def noted(still: Standstill, snapshot: Snapshot) -> list[str]:
    """Evidence on a hang from the numbers of collectives, from torch's Flight Recorder, and from the driver."""
    lines = _sequences({rank.rank: rank.sequence for rank in still.ranks if rank.rank is not None and rank.sequence})
    if still.notes is not None:
        # The ranks that are behind come first.
        flights = sorted(still.notes.flights, key=lambda flight: (flight.sequence, flight.rank))
        lines += [_flight(flight) for flight in flights[:MOST_FLIGHTS]]
    for device in snapshot.gpu.devices if snapshot.gpu else ():
        if device.xid and (device.mine or device.lost):
            lines.append(f"GPU {device.index} reported Xid {', '.join(str(xid) for xid in device.xid[-3:])}")
    return lines


def _sequences(numbers: Mapping[int, int]) -> list[str]:
    if len(numbers) < 2:
        return []
    by_number: dict[int, list[int]] = {}
    for rank, number in sorted(numbers.items()):
        by_number.setdefault(number, []).append(rank)
    calls = [f"{number:,} by rank {', '.join(map(str, ranks))}" for number, ranks in sorted(by_number.items())]
    if len(calls) == 1:
        return [f"all ranks called collective {next(iter(by_number)):,} last"]
    return [f"last collective called: {'; '.join(calls)}"]


def _flight(one: FlightRecord) -> str:
    place = f" at {one.where}" if one.where else ""
    how = one.state if one.waiting else "its last one"
    return f"Flight Recorder of rank {one.rank}: {one.call}{place}, number {one.sequence:,} of {one.group}, {how}"
