"""The way of the data: queue, loader workers, disk and network."""

from __future__ import annotations

from aitop.model.host import MachineSample, ProcessSample
from aitop.model.snapshot import Series, Snapshot
from aitop.model.steps import LoaderInfo
from aitop.model.units import NOT_SUPPORTED, NOT_YET, count, percent, rate
from aitop.ui.line import Line, columns
from aitop.ui.palette import DATA, DIM, FAINT, HOST_CHART, TEXT
from aitop.ui.view import View
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.widgets.timeline import bar, braille
from aitop.ui.words import plural, share_text, state_line

LANE = 22
STATE_WORDS = {"R": "runs", "S": "sleeps", "D": "disk", "T": "stopped", "t": "traced", "Z": "zombie", "I": "idle"}


class DataPane(Pane):
    """Is there a batch ready when the step asks for one; and if not, what are the workers doing."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        if snapshot is None or snapshot.host is None:
            status = view.source("host")
            return Drawing([state_line("host", status) if status else Line(NOT_YET, DIM)], "Data")
        loader = main_loader(snapshot)
        workers = _workers(view, snapshot)
        lanes = _lanes(workers, width, height - 6)
        spare = height - 3 - len(lanes)
        lines = queue_lines(snapshot, loader, width, 1 + max(0, min(6, spare)))
        if height >= 5:
            lines.append(loader_line(loader, len(workers)))
        lines.append(_traffic(snapshot.host.machine, width))
        return Drawing(lines + lanes, "Data", _cpu_note(workers), view.stale("host"))


def main_loader(snapshot: Snapshot) -> LoaderInfo | None:
    """The loader with most workers: that is the one that feeds the training."""
    loaders = snapshot.facts.loaders if snapshot.facts else ()
    return max(loaders, key=lambda loader: loader.workers, default=None)


def queue_lines(snapshot: Snapshot, loader: LoaderInfo | None, width: int, rows: int) -> list[Line]:
    """Batches that lay ready at the last step, of how many there is room for, and how that went."""
    series = snapshot.series.get("queue_ready", Series())
    known = [value for value in series.values if value is not None]
    line = Line("queue   ", DIM)
    if not known:
        return [line.add(NOT_SUPPORTED, DIM).add("  " + _no_queue(snapshot, loader), FAINT)]
    capacity = loader.workers * (loader.prefetch or 2) if loader and loader.workers else None
    ready = known[-1]
    of = f" of {capacity} ready" if capacity else " ready"
    line.add(f"{ready:2.0f}", TEXT).add(of, DIM).add("  ")
    chart = max(4, width - line.width)
    drawn = braille(series.values, chart, rows, capacity or max(known) or 1)
    rest = [Line().to(width - chart).add(row, DATA.ink) for row in drawn[1:]]
    return [line.add(drawn[0], DATA.ink), *rest]


def loader_line(loader: LoaderInfo | None, workers: int) -> Line:
    """How the loader is set up."""
    line = Line("loader  ", DIM)
    if loader is None:
        seen = f"{plural(workers, 'worker')} seen" if workers else NOT_SUPPORTED
        return line.add(seen, TEXT if workers else DIM)
    line.add(plural(loader.workers, "worker") if loader.workers else "in the main process", TEXT)
    facts = [
        f"batch {count(loader.batch_size)}" if loader.batch_size is not None else "",
        f"prefetch {loader.prefetch}" if loader.prefetch is not None else "",
        "pinned" if loader.pin_memory else "",
        "persistent" if loader.persistent else "",
        loader.dataset or "",
    ]
    return line.add("".join(f" · {fact}" for fact in facts if fact), DIM)


def _no_queue(snapshot: Snapshot, loader: LoaderInfo | None) -> str:
    if loader is not None and loader.workers == 0:
        return "no queue: batches are made in the main process"
    return "not measured yet" if snapshot.facts is not None else "needs the hook"


def _traffic(machine: MachineSample, width: int) -> Line:
    disk = Line("disk    ", DIM).add(f"in {rate(machine.disk_read).rjust(8)} out {rate(machine.disk_write).rjust(8)}")
    net = Line("net ", DIM).add(f"in {rate(machine.net_received).rjust(8)} out {rate(machine.net_sent).rjust(8)}")
    wait = Line("iowait ", DIM).add(percent(machine.iowait).rjust(5), TEXT)
    if disk.width + net.width + wait.width + 4 <= width:
        return disk.add("  ").join(net).add("  ").join(wait)
    return disk.add("  ").join(wait)


def _workers(view: View, snapshot: Snapshot) -> list[ProcessSample]:
    pids = view.pids()
    host = snapshot.host
    found = [process for process in host.processes if process.role == "loader-worker"] if host else []
    return [process for process in found if pids is None or process.pid in pids]


def _cpu_note(workers: list[ProcessSample]) -> Line | None:
    used = [process.cpu for process in workers if process.cpu is not None]
    return Line(f"workers use {sum(used):.1f} cores", DIM) if used else None


def _lanes(workers: list[ProcessSample], width: int, height: int) -> list[Line]:
    """A bar for each worker, side by side where rows are few: busy, or waiting and for what."""
    per_row = 1 if len(workers) <= height else max(1, (width + 2) // (LANE + 2))
    cell = (width - 2 * (per_row - 1)) // per_row
    lanes = [_lane(process, cell) for process in workers]
    return [columns([(lane, cell) for lane in lanes[at : at + per_row]]) for at in range(0, len(lanes), per_row)]


def _lane(process: ProcessSample, width: int) -> Line:
    state = STATE_WORDS.get(process.state or "", process.state or NOT_SUPPORTED)
    line = Line(str(process.pid).ljust(7 if width < 30 else 8), DIM).add(share_text(process.cpu), TEXT).add(" ")
    return line.join(bar(process.cpu, max(3, width - line.width - 8), HOST_CHART)).add(f" {state}", DIM)
