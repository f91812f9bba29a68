"""The job's processes as rows of a tree: order, folding, sorting and filtering. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from aitop.model.gpu import GpuProcess, GpuSample
from aitop.model.host import ProcessSample, Role
from aitop.ui.state import children, descendants, labels_of, matches

ROLE_ORDER: dict[Role, int] = {"launcher": 0, "rank": 1, "loader-worker": 2, "helper": 3, "other": 4}
UNNUMBERED = 1 << 30
ADDED = ("cpu", "rss", "reads", "writes", "threads", "gpu_memory")


class Figures(msgspec.Struct, frozen=True):
    """What one process uses, or a folded one with all below it. None is not measured.

    `cpu` in cores, `rss` and `gpu_memory` in bytes, `reads` and `writes` in bytes per second, `gpu` a share of its
    devices, `age` in seconds, `state` the kernel's letter. `on_gpu` says that a device lists it.
    """

    pid: int = 0
    cpu: float | None = None
    rss: int | None = None
    reads: float | None = None
    writes: float | None = None
    threads: int | None = None
    state: str | None = None
    age: float | None = None
    gpu: float | None = None
    gpu_memory: int | None = None
    on_gpu: bool = False


class ProcessRow(msgspec.Struct, frozen=True):
    """A row: the process, the lines that lead to it in the tree, its name to people, and its figures.

    `folded` counts the processes hidden below it. `parent` tells whether anything is below it, shown or not. `matches`
    is False for a row that is shown only because it leads to one that the filter wants.
    """

    process: ProcessSample
    guide: str
    label: str
    figures: Figures
    folded: int = 0
    parent: bool = False
    matches: bool = True


class Order(msgspec.Struct, frozen=True):
    """How siblings are sorted: by a field of Figures or 'pid', largest first unless `inverted`; None by role."""

    by: str | None = None
    inverted: bool = False


BY_ROLE = Order()


def process_rows(
    processes: Sequence[ProcessSample],
    gpu: GpuSample | None,
    wall: float,
    *,
    folded: Collection[int] = (),
    order: Order = BY_ROLE,
    wanted: str = "",
    lead: str = "rank",
) -> list[ProcessRow]:
    """Rows from the top down, children below their parents. `wall` (seconds since the epoch) gives the ages.

    While something is `wanted`, rows that hold it are shown with those that lead to them, whatever is folded.
    """
    use = gpu_use(gpu)
    figures = {
        process.pid: Figures(
            pid=process.pid,
            cpu=process.cpu,
            rss=process.rss,
            reads=process.read_bytes,
            writes=process.write_bytes,
            threads=process.threads,
            state=process.state,
            age=max(0.0, wall - process.started) if process.started > 0 else None,
            on_gpu=process.pid in use,
            **use.get(process.pid, {}),
        )
        for process in processes
    }
    below, labels = children(processes), labels_of(processes, lead)
    wanted_pids = _wanted(processes, below, labels, wanted)
    rows: list[ProcessRow] = []

    def walk(siblings: Iterable[ProcessSample], guide: str, top: bool) -> None:
        shown = [process for process in _sorted(siblings, figures, order) if process.pid in wanted_pids]
        for number, process in enumerate(shown):
            last = number == len(shown) - 1
            mine = below.get(process.pid, [])
            closed = not wanted and process.pid in folded and bool(mine)
            all_below = descendants(process.pid, below) if closed else []
            rows.append(
                ProcessRow(
                    process=process,
                    guide=guide if top else guide + ("└ " if last else "├ "),
                    label=labels[process.pid],
                    figures=_summed([figures[process.pid], *(figures[pid] for pid in all_below)]),
                    folded=len(all_below),
                    parent=bool(mine),
                    matches=not wanted or wanted_pids[process.pid],
                )
            )
            if not closed:
                walk(mine, guide if top else guide + ("  " if last else "│ "), False)

    walk(below.get(0, []), "", True)
    return rows


def gpu_use(sample: GpuSample | None) -> dict[int, dict[str, Any]]:
    """By pid, its share of the multiprocessors (the most of its devices) and its memory on all devices together."""
    by_pid: dict[int, list[GpuProcess]] = {}
    for device in sample.devices if sample else ():
        for process in device.processes or ():
            by_pid.setdefault(process.pid, []).append(process)
    return {
        pid: {
            "gpu": max((each.sm for each in uses if each.sm is not None), default=None),
            "gpu_memory": sum(each.memory or 0 for each in uses)
            if any(each.memory is not None for each in uses)
            else None,
        }
        for pid, uses in by_pid.items()
    }


def _wanted(
    processes: Sequence[ProcessSample],
    below: Mapping[int, Sequence[ProcessSample]],
    labels: Mapping[int, str],
    wanted: str,
) -> dict[int, bool]:
    """The pids to show: True for those that match the filter, False for those above one that does."""
    if not wanted:
        return {process.pid: True for process in processes}
    matching = {
        process.pid: True
        for process in processes
        if matches(wanted, str(process.pid), labels[process.pid], process.role, process.name, process.command)
    }
    parents = {child.pid: pid for pid, some in below.items() for child in some}
    for pid in list(matching):
        while (pid := parents.get(pid, 0)) and pid not in matching:
            matching[pid] = False
    return matching


def _sorted(siblings: Iterable[ProcessSample], figures: Mapping[int, Figures], order: Order) -> list[ProcessSample]:
    """By role, rank and age; or by a column, what is not measured last in either direction."""
    by_role = sorted(
        siblings,
        key=lambda process: (
            process.part is None,
            ROLE_ORDER[process.role],
            process.rank if process.role == "rank" and process.rank is not None else UNNUMBERED,
            process.started,
            process.pid,
        ),
    )
    if order.by is None:
        return by_role[::-1] if order.inverted else by_role
    by = order.by
    known = [process for process in by_role if getattr(figures[process.pid], by) is not None]
    known.sort(key=lambda process: getattr(figures[process.pid], by), reverse=order.inverted == (by == "pid"))
    return known + [process for process in by_role if getattr(figures[process.pid], by) is None]


def _summed(all_figures: Sequence[Figures]) -> Figures:
    """The figures of several processes together: sums, the largest GPU share, and for all else the first one's."""
    if len(all_figures) == 1:
        return all_figures[0]
    changes: dict[str, Any] = {"on_gpu": any(figures.on_gpu for figures in all_figures)}
    for name in (*ADDED, "gpu"):
        known = [value for figures in all_figures if (value := getattr(figures, name)) is not None]
        changes[name] = (max if name == "gpu" else sum)(known) if known else None
    return replace(all_figures[0], **changes)
