"""What numbers of collectives, Flight Recorder, NCCL's RAS and the driver say of a hang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aitop.model.ranks import FlightRecord, Standstill
from aitop.model.snapshot import Snapshot

MOST_FLIGHTS, MOST_RAS = 4, 6


def behind(still: Standstill) -> tuple[int, ...]:
    """The ranks that have begun fewer collectives than others, where that is known of all; those who wait for nothing
    there are the ones that the others wait for.
    """
    notes = still.notes
    # Each group counts for itself.
    alike = notes is not None and len({one.group for one in notes.flights}) == 1
    flights = {one.rank: one.sequence for one in notes.flights} if notes and alike else {}
    called = {one.rank: one.sequence for one in still.ranks if one.rank is not None and one.sequence}
    for numbers in (flights, called):
        if len(numbers) == len(still.ranks) > 1 and len(set(numbers.values())) > 1:
            return tuple(sorted(rank for rank, number in numbers.items() if number == min(numbers.values())))
    return ()


def noted(still: Standstill, snapshot: Snapshot) -> list[str]:
    """In lines of evidence."""
    lines = _sequences({one.rank: one.sequence for one in still.ranks if one.rank is not None and one.sequence})
    if still.notes is not None:
        lines += [_flight(one) for one in _telling(still.notes.flights)]
        lines += [f"NCCL RAS: {line}" for line in still.notes.ras[:MOST_RAS]]
    for device in snapshot.gpu.devices if snapshot.gpu else ():
        if device.xid:
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


def _telling(flights: Sequence[FlightRecord]) -> list[FlightRecord]:
    """The first few, those that are behind first."""
    return sorted(flights, key=lambda one: (one.sequence, one.rank))[:MOST_FLIGHTS]


def _flight(one: FlightRecord) -> str:
    place = f" at {one.where}" if one.where else ""
    how = one.state if one.waiting else "its last one"
    return f"Flight Recorder of rank {one.rank}: {one.call}{place}, number {one.sequence:,} of {one.group}, {how}"
