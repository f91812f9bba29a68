"""What processes used between two reads, from counters kept per process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aitop.model.host import ProcessSample
from aitop.model.text import printable
from aitop.sources import procfs
from aitop.sources.host.roles import Place
from aitop.sources.host.tree import Member

# Reading a thread's times takes 8 µs.
MOST_THREADS = 256
# A thread that runs, or waits for a core, for more than this share of the time counts as wanting one.
SOME = 0.02


class Counters(NamedTuple):
    """What a process has used since its start. `used` has numbers by name, None where one cannot be read.

    All were read at `time`, but `cpu` with the process's line of /proc/PID/stat, at `stat_time`.
    These are `cpu` (seconds); bytes read and written; and of the main thread `main` (seconds on a core), `delay`
    (seconds runnable without a core) and `switches`. `threads` has the times of every thread. `mapped` is as in
    ProcessSample.
    """

    time: float
    stat_time: float
    used: dict[str, float | None]
    threads: dict[int, procfs.Scheduled] | None
    mapped: int | None


class ProcessRates:
    """Makes samples of processes; remembers each one's counters for the next read."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], Counters] = {}

    def samples(
        self, members: Iterable[Member], places: dict[int, Place], parts: Mapping[int, str]
    ) -> tuple[ProcessSample, ...]:
        """A sample of each process, with rates for those that were also in the last call.

        `parts` has, by pid, what a process does in a server.
        """
        now: dict[tuple[int, int], Counters] = {}
        samples = []
        for member in members:
            place = places.get(member.stat.pid, Place("other"))
            part = parts.get(member.stat.pid)
            computes = place.role in ("rank", "loader-worker") or part is not None
            counters = read_counters(member, computes=computes)
            now[member.key] = counters
            samples.append(_sample(member, place, self._before.get(member.key), counters, part=part))
        self._before = now
        return tuple(samples)


def read_counters(member: Member, *, computes: bool = False) -> Counters:
    """The counters of a process now, those of its threads if it `computes`."""
    folder = f"{procfs.PROC}/{member.stat.pid}"
    status, io = procfs.numbers(f"{folder}/status"), procfs.numbers(f"{folder}/io")
    main = procfs.parse_schedstat(procfs.read(f"{folder}/schedstat"))
    used = {
        "cpu": (member.stat.user + member.stat.system) / procfs.TICKS_PER_SECOND,
        "main": main[0] if main else None,
        "delay": main[1] if main else None,
        "switches": status.get("voluntary_ctxt_switches"),
        "read_bytes": io.get("read_bytes"),
        "write_bytes": io.get("write_bytes"),
    }
    # The sum, as each misses something: VmData what is shared, and VmSize the growth of a thread's heap, which is
    # reserved 64 MB at a time.
    mapped = status["VmSize"] + status["VmData"] if "VmSize" in status and "VmData" in status else None
    return Counters(time.monotonic(), member.stat.read_at, used, _threads(member, main) if computes else None, mapped)


def _threads(member: Member, main: procfs.Scheduled | None) -> dict[int, procfs.Scheduled] | None:
    """The times of each thread by its id; None where too many, or not told by the kernel."""
    pid = member.stat.pid
    if member.stat.threads == 1:
        return None if main is None else {pid: main}
    folder = f"{procfs.PROC}/{pid}/task"
    numbers = procfs.numbered(folder)
    if not 0 < len(numbers) <= MOST_THREADS:
        return None
    read = ((number, procfs.parse_schedstat(procfs.read(f"{folder}/{number}/schedstat"))) for number in numbers)
    return {number: times for number, times in read if times is not None} or None


def _sample(member: Member, place: Place, before: Counters | None, now: Counters, *, part: str | None) -> ProcessSample:
    seconds = now.time - before.time if before else 0.0
    stat_seconds = now.stat_time - before.stat_time if before else 0.0
    old = before.used if before else {}
    rates = {
        name: None if value is None or (then := old.get(name)) is None or span <= 0 else max(0.0, value - then) / span
        for name, value in now.used.items()
        for span in [stat_seconds if name == "cpu" else seconds]
    }
    delay, main = rates["delay"], rates["main"]
    wanting, wanted, waited = _wanting(before.threads if before else None, now.threads, seconds)
    stat = member.stat
    return ProcessSample(
        pid=stat.pid,
        ppid=stat.ppid,
        started=procfs.started(stat.start),
        role=place.role,
        part=part,
        name=printable(stat.comm),
        command=member.command,
        rank=place.numbers.rank,
        local_rank=place.numbers.local_rank,
        world_size=place.numbers.world_size,
        local_world_size=place.numbers.local_world,
        channel=_channel(stat.pid) if rates["switches"] == 0 else None,
        cpu=rates["cpu"],
        rss=None if stat.state == "Z" else stat.rss * procfs.PAGE_SIZE,
        mapped=now.mapped,
        threads=stat.threads,
        state=stat.state,
        run_delay=None if delay is None else min(1.0, delay),
        voluntary_switches=rates["switches"],
        read_bytes=rates["read_bytes"],
        write_bytes=rates["write_bytes"],
        main_cpu=None if main is None else min(1.0, main),
        wanting=wanting,
        wanted=wanted,
        waited=waited,
    )


def _channel(pid: int) -> str | None:
    """What the main thread waits in, in the kernel's words; None where it does not say."""
    channel = procfs.text(f"{procfs.PROC}/{pid}/wchan")
    return None if channel in (None, "", "0") else printable(channel or "")


def _wanting(
    before: dict[int, procfs.Scheduled] | None, now: dict[int, procfs.Scheduled] | None, seconds: float
) -> tuple[int, float, float] | tuple[None, None, None]:
    """Threads that wanted a core, the cores they wanted, and those they did not get; None where not measured."""
    if before is None or now is None or seconds <= 0:
        return None, None, None
    spans = [
        (max(0.0, ran - before[thread][0]) / seconds, max(0.0, waited - before[thread][1]) / seconds)
        for thread, (ran, waited) in now.items()
        if thread in before
    ]
    wanting = sum(1 for ran, waited in spans if ran + waited > SOME)
    return wanting, sum(ran + waited for ran, waited in spans), sum(waited for _, waited in spans)
