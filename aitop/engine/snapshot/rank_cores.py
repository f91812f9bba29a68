"""What ranks need cores for and wait for cores, and what a step would save if one of them got its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from statistics import fmean

import msgspec

from aitop.engine.history import History

DELAYS = 15
# A rank that waits this many times as long for a core as the others is held up by neighbours of its own.
TIMES_THE_OTHERS = 2.0


class OnCores(msgspec.Struct, frozen=True):
    """Means of a rank's last seconds, in cores: the main thread's time on one (`ran`) and its wait for one (`delay`);
    what all threads together ran on or waited for (`wanted`), and what they only waited for (`waited`), None where
    there are too many threads to read.
    """

    ran: float
    delay: float
    wanted: float | None = None
    waited: float | None = None


def on_cores(history: History) -> dict[int, OnCores]:
    """What each rank ran and waited lately, by pid; without ranks whose waits the kernel does not report."""
    samples: dict[int, dict[str, list[float]]] = {}
    for host in islice(reversed(history.hosts), DELAYS):
        for process in host.processes:
            if process.role != "rank":
                continue
            fields = {
                "ran": process.main_cpu,
                "delay": process.run_delay,
                "wanted": process.wanted,
                "waited": process.waited,
            }
            for name, value in fields.items():
                if value is not None:
                    samples.setdefault(process.pid, {}).setdefault(name, []).append(value)
    means = {pid: {name: fmean(each) for name, each in fields.items()} for pid, fields in samples.items()}
    return {
        pid: OnCores(mean.get("ran", 0.0), mean["delay"], mean.get("wanted"), mean.get("waited"))
        for pid, mean in means.items()
        if "delay" in mean
    }


def held(cores: Mapping[int, OnCores], work: Mapping[int, float], step: float) -> tuple[int | None, float]:
    """The rank that waits longest for a core, and by how many seconds a step would be shorter if it never waited.

    `work` has the seconds that each rank works itself. The step then lasts as before without that wait, or as long as
    the others need, whichever is longer; the others keep their own waits. None where the kernel tells of no waits.
    """
    known = {pid: waits for pid, waits in cores.items() if pid in work}
    if len(known) < 2 or len(known) < len(work):
        return None, 0.0
    last = max(known, key=lambda pid: known[pid].delay)
    mine, others = known[last], [pid for pid in known if pid != last]
    excess = mine.delay - fmean(known[pid].delay for pid in others)
    if excess <= 0:
        return last, 0.0
    left = max([step - _waited(mine, work[last], step), *(_needed(known[pid], work[pid], step) for pid in others)])
    alone = min(1.0, excess / mine.delay * TIMES_THE_OTHERS / (TIMES_THE_OTHERS - 1.0))
    return last, alone * max(0.0, step - left)


def _waited(rank: OnCores, work: float, step: float) -> float:
    """Seconds of a step in which a rank gets no core: its main thread; and another thread, while the main one sleeps in
    an exchange. What several threads wait for at the same time may count more than once, but no longer than that sleep.
    """
    main = (rank.ran + rank.delay) * step
    asleep = max(0.0, step - max(main, work))
    return rank.delay * step + min(asleep, max(0.0, ((rank.waited or 0.0) - rank.delay) * step))


def _needed(rank: OnCores, work: float, step: float) -> float:
    """Seconds of a step that a rank needs, were no other rank late: all its threads on cores, the waits of the main
    thread for one, and its sleep in work of its own, as for a device. Other threads mostly wait for those of their own
    rank.
    """
    ran = rank.ran if rank.wanted is None else max(rank.ran, rank.wanted - (rank.waited or 0.0))
    return min(step, (ran + rank.delay) * step + max(0.0, work - rank.ran * step))


def own_part(history: History) -> float:
    """The job's own part (0..1) of the CPU time lately used on all cores; 0 where that is not measured."""
    own, whole = 0.0, 0.0
    for host in islice(reversed(history.hosts), DELAYS):
        used = [process.cpu for process in host.processes if process.cpu is not None]
        if host.machine.core_busy is not None and used:
            own += sum(used)
            whole += max(sum(used), sum(host.machine.core_busy))
    return own / whole if whole > 0 else 0.0


def apart(cores: Mapping[int, OnCores], work: Mapping[int, float], step: float, own: float, at_hand: float) -> float:
    """Seconds of a step if the ranks exchanged nothing: those of the rank that works longest, on `at_hand` cores.

    Threads that exchange keep those that compute from their cores: `own` is the part of these waits that is their
    doing, and not that of other programs.
    """
    delays = {pid: own * cores[pid].delay * step if pid in cores else 0.0 for pid in work}
    undisturbed = {pid: max(0.0, seconds - delays[pid]) for pid, seconds in work.items()}
    on_cores = sum(min(cores[pid].ran * step, seconds) for pid, seconds in undisturbed.items() if pid in cores)
    return max(*undisturbed.values(), on_cores / at_hand)
