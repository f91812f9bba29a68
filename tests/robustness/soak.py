"""Whether aitop's memory, files, threads or children grow in long runs, played in a short time.

`live` is the real screen at ten looks a second on a training run that starts new loader workers several times a second:
thousands of epochs, each with pids of its own. `simulated` feeds days of samples to the engine and a recorder: those of
a recorded run over and over, their times stretched by the pace, with new workers each time and at times a new rank.
Memory, files, threads and children are printed first, after a third, last, and as a slope over the last two thirds.
What is kept of a run fills up first, up to its bounds: five minutes of samples, 4096 steps, and the toolkit's tables of
what it has drawn. A run shorter than a quarter of an hour shows that and not a leak: it tells nothing.

    python tests/robustness/soak.py [live] [simulated] [--minutes M] [--interval S] [--days D] [--pace P]
"""

from __future__ import annotations

import contextlib
import gc
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from results import Figure, options, publish  # isort: split

from fault_scene import AITOP, Target
from monitor_hour import RECORDING, samples
from terminal import OnTerminal

from aitop.engine.core import Engine
from aitop.engine.recorder import Recorder
from aitop.model.event import Event
from aitop.model.host import HostSample
from aitop.model.snapshot import Tick
from aitop.model.stacks import StackDump, StackWindow
from aitop.model.steps import HookSample
from aitop.sources.replay import Recording

EVERY_SECONDS = 5.0
# Until then what is kept fills up, and nothing is known of leaks.
LEAST_MINUTES = 15.0
LOOPS_OF_A_RANK = 40
FIRST_PID = 100_000
# What may be more at the end than after a third of the time: noise, and what comes and goes.
SLACK = {"memory MB": 4.0, "series": 30.0, "files": 4.0, "threads": 3.0, "children": 2.0, "objects": 3000.0}


@dataclass
class Figures:
    """What was read over time: seconds (or days), and the figures by name."""

    unit: str
    times: list[float] = field(default_factory=list)
    read: dict[str, list[float]] = field(default_factory=dict)

    def add(self, at: float, **figures: float) -> None:
        self.times.append(at)
        for name, value in figures.items():
            self.read.setdefault(name.replace("_", " "), []).append(value)

    def growing(self) -> list[str]:
        """Print a line for each; the names of those that are not flat."""
        growing = []
        print(f"{'':22}{'first':>10}{'after ⅓':>10}{'last':>10}{f'slope a {self.unit}':>16}")
        for name, values in self.read.items():
            cut = len(values) // 3
            third = max(1, len(values) // 6)
            # The least of several looks: what comes and goes is in only some of them.
            early, late = min(values[cut : cut + third]), min(values[-third:])
            slope = statistics.linear_regression(self.times[cut:], values[cut:]).slope
            flat = late - early <= next((most for word, most in SLACK.items() if name.endswith(word)), 0.0)
            growing += [] if flat else [f"{name} {early:.0f} → {late:.0f}"]
            words = "flat" if flat else "GROWS"
            print(f"{name:22}{values[0]:10.1f}{early:10.1f}{late:10.1f}{slope:16.2f}  {words}")
        return growing


def renamed(event: Event, loop: int) -> Event:
    """The same event with workers of its own in each loop, and a rank of its own in each so many."""
    rank = FIRST_PID + loop // LOOPS_OF_A_RANK

    def pid_of(pid: int, worker: bool) -> int:
        return FIRST_PID * 2 + loop * 16 + pid % 16 if worker else rank

    replace = msgspec.structs.replace
    if isinstance(event, HostSample):
        processes = tuple(
            replace(
                process,
                pid=pid_of(process.pid, process.role == "loader-worker"),
                ppid=rank,
                started=process.started + loop,
            )
            for process in event.processes
        )
        return replace(event, processes=processes)
    if isinstance(event, HookSample):
        return replace(event, pid=rank)
    if isinstance(event, StackWindow):
        mains = {stack.pid for stack in event.stacks if "worker" not in stack.thread}
        first = min(mains, default=0)
        return replace(
            event, stacks=tuple(replace(stack, pid=pid_of(stack.pid, stack.pid != first)) for stack in event.stacks)
        )
    if isinstance(event, StackDump):
        return replace(event, threads=tuple(replace(thread, pid=pid_of(thread.pid, False)) for thread in event.threads))
    return event


def simulated(days: float, pace: float = 1.0, looks: int = 30) -> Figures:
    """Feed them to the engine and the recorder of a live run."""
    over_time, me = Figures("day"), psutil.Process()
    engine, recorder = Engine(Recording(RECORDING).header.target), Recorder(lambda path, new: None)  # type: ignore[arg-type, return-value]
    began, due = None, 0.0
    for event in samples(days * 86_400, pace, renamed):
        recorder.write(event)
        engine.handle(event)
        began = event.time if began is None else began
        day = (event.time - began) / 86_400
        if isinstance(event, Tick) and day >= due:
            gc.collect()
            due += days / looks
            over_time.add(day, memory_MB=me.memory_info().rss / 1e6, objects=float(len(gc.get_objects())))
    return over_time


def live(minutes: float, interval: float) -> tuple[Figures, list[str]]:
    """The screen on a run whose workers come and go, and what is not as it should be once the screen is closed."""
    over_time = Figures("hour")
    with tempfile.TemporaryDirectory() as folder:
        target, monitor = Target("churn"), None
        try:
            target.ready()
            command = [*AITOP, "--pid", str(target.pid), "--interval", str(interval)]
            monitor = OnTerminal([*command, "--record", str(Path(folder) / "soak.jsonl.gz")])
            monitor.must_show("hook●", 120.0)
            began, steps = time.monotonic(), target.steps()
            me, it = psutil.Process(monitor.pid), psutil.Process(target.pid)
            while time.monotonic() - began < minutes * 60:
                time.sleep(EVERY_SECONDS)
                with contextlib.suppress(psutil.NoSuchProcess):
                    over_time.add(
                        (time.monotonic() - began) / 3600,
                        memory_MB=me.memory_info().rss / 1e6,
                        files=float(me.num_fds()),
                        threads=float(me.num_threads()),
                        children=float(len(me.children(recursive=True))),
                        target_memory_MB=it.memory_info().rss / 1e6,
                        target_files=float(it.num_fds()),
                        target_threads=float(it.num_threads()),
                    )
                if monitor.ended():
                    raise SystemExit(f"the monitor ended with {monitor.code}: {monitor.screen.left[-500:]}")
            made = target.steps() - steps
            print(
                f"{made} steps in {made // 6} epochs, as many times 2 new workers; {monitor.written / 1e6:.1f} MB drawn"
            )
            monitor.press(b"q")
            code = monitor.wait(15)
            harm = [*([f"the monitor ended with {code}"] if code != 0 else []), *target.harm()]
        finally:
            if monitor is not None and not monitor.ended():
                monitor.tree()[0].send_signal(signal.SIGKILL)
            target.kill()
            target.clear()
    return over_time, harm


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("what", nargs="*", help="live, simulated (default: both)")
    parser.add_argument("--minutes", type=float, default=30.0, help="of the live run")
    parser.add_argument("--interval", type=float, default=0.1, help="between two looks of the live run, in seconds")
    parser.add_argument("--days", type=float, default=3.0, help="of the simulated one")
    parser.add_argument("--pace", type=float, default=10.0, help="seconds between two ticks of the simulated one")
    args = parser.parse_args()
    figures = []
    if "live" in (args.what or "live"):
        over_time, harm = live(args.minutes, args.interval)
        growing = over_time.growing()
        what = f"figures that grow in {args.minutes:g} min with a look every {args.interval:g} s"
        known = len(growing) if args.minutes >= LEAST_MINUTES else None
        figures.append(Figure(what, known, most=0, spread=", ".join(growing)))
        figures.append(Figure("harm to the run, or of the monitor's end", len(harm), most=0, spread="; ".join(harm)))
    if "simulated" in (args.what or "simulated"):
        growing = simulated(args.days, args.pace).growing()
        what = f"figures that grow in {args.days:g} simulated days with a tick every {args.pace:g} s"
        figures.append(Figure(what, len(growing), most=0, spread=", ".join(growing)))
    return publish(args, figures)


if __name__ == "__main__":
    sys.exit(main())
