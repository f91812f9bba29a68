"""The faults: each is done to a scene at a moment of the dice, and says in `scene.bad` what the monitor made of it."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
from fault_scene import AITOP, Scene
from terminal import COLUMNS, ROWS, OnTerminal

from aitop.sources.ring.reader import LEASE_SECONDS, find_ring

UP = r"host."
READY = r"host●"


@dataclass(frozen=True)
class Fault:
    """What to do to a scene, and the kind of run that it needs."""

    do: Callable[[Scene], None]
    kind: str = "steady"


FAULTS: dict[str, Fault] = {}


def fault(name: str, kind: str = "steady") -> Callable[[Callable[[Scene], None]], None]:
    """Register a fault under a name."""

    def register(do: Callable[[Scene], None]) -> None:
        FAULTS[name] = Fault(do, kind)

    return register


def disturbance(
    name: str, *, up: str = UP, moment: bool = True
) -> Callable[[Callable[[Scene, OnTerminal], None]], None]:
    """Register a fault after which the monitor has to show everything again, and to end when it is asked to.

    The monitor shows `up` before, "" for anything; then a random `moment` is waited for.
    """

    def register(do: Callable[[Scene, OnTerminal], None]) -> None:
        def whole(scene: Scene) -> None:
            monitor = scene.watch()
            # What "" finds, in anything, is "".
            scene.expect(monitor.until(up, 20.0) is not None, "no screen")
            if moment:
                scene.moment(monitor)
            do(scene, monitor)
            scene.recovers(monitor)
            scene.quits(monitor)

        FAULTS[name] = Fault(whole)

    return register


def ended_by(number: signal.Signals) -> Callable[[Scene], None]:
    """The monitor gets a signal, while it records."""

    def do(scene: Scene) -> None:
        path = scene.folder / "recording.jsonl"
        monitor = scene.watch("--record", str(path))
        scene.moment(monitor)
        drawn = monitor.written > 0
        os.kill(monitor.pid, number)
        if number == signal.SIGKILL:
            scene.ends(monitor, -9, restored=False)
        else:
            # Before aitop is up, a signal does what it does to every Python.
            scene.ends(monitor, 128 + number, *(() if drawn else (-number, 1)), quiet=drawn)
        if path.exists() and path.stat().st_size:
            scene.readable(path, whole=number != signal.SIGKILL)

    return do


fault("monitor-term")(ended_by(signal.SIGTERM))
fault("monitor-kill")(ended_by(signal.SIGKILL))
fault("monitor-hup")(ended_by(signal.SIGHUP))
fault("monitor-int")(ended_by(signal.SIGINT))


@fault("terminal-closed")
def terminal_closed(scene: Scene) -> None:
    path = scene.folder / "recording.jsonl"
    monitor = scene.watch("--record", str(path))
    scene.moment(monitor)
    monitor.close()
    # Whichever comes first: the signal, or that nothing can be read and written any more.
    scene.ends(monitor, 129, 1, -1, restored=False)
    if path.exists() and path.stat().st_size:
        scene.readable(path, whole=True)


@fault("terminal-stuck")
def terminal_stuck(scene: Scene) -> None:
    """Nobody reads what the screen writes; then somebody does again, or the monitor is ended in the midst of it."""
    monitor = scene.watch("--interval", "0.2")
    scene.moment(monitor)
    monitor.unread = True
    # Tall and wide pictures fill the terminal's buffer.
    for _ in range(6):
        monitor.resize(scene.dice.randint(60, 120), scene.dice.randint(200, 400))
        scene.pause(0.3, 0.9)
    if scene.dice.random() < 0.5:
        os.kill(monitor.pid, signal.SIGTERM)
        scene.ends(monitor, 143, restored=False)
        return
    monitor.resize(ROWS, COLUMNS)
    monitor.unread = False
    scene.recovers(monitor)
    scene.quits(monitor)


@fault("quit-in-attach")
def quit_in_attach(scene: Scene) -> None:
    """The key for leaving at any moment of the start."""
    monitor = scene.watch()
    scene.expect(monitor.until(UP, 20.0), "no screen")
    scene.pause(0.0, 1.2)
    scene.quits(monitor)
    scene.expect(find_ring(scene.target.pid) is None, "the hook is in after the monitor has left")


@fault("detach-in-attach")
def detach_in_attach(scene: Scene) -> None:
    monitor = scene.watch()
    scene.expect(monitor.until(UP, 20.0), "no screen")
    scene.pause(0.0, 1.5)
    monitor.press(b"d")
    if scene.shows(monitor, r"hook○", 15.0):
        scene.shows(monitor, "detached|the hook is out of the target", 5.0)
    scene.expect(find_ring(scene.target.pid) is None, "the hook is in after a detach")
    scene.recovers(monitor, sources="host●.* stacks●.* hook○")
    scene.expect(find_ring(scene.target.pid) is None, "the hook came back after a detach")
    scene.quits(monitor)


@fault("target-killed")
def target_killed(scene: Scene) -> None:
    path = scene.folder / "recording.jsonl"
    monitor = scene.watch("--record", str(path))
    scene.expect(monitor.until(UP, 20.0), "no screen")
    scene.moment(monitor)
    scene.target.kill()
    scene.shows(monitor, rf"target ended: process {scene.target.pid} has ended", 15.0)
    scene.quits(monitor)
    scene.readable(path, whole=True)


@disturbance("target-stopped")
def target_stopped(scene: Scene, monitor: OnTerminal) -> None:
    """Stopped for long enough that it must be told, or for a moment."""
    os.killpg(scene.target.pid, signal.SIGSTOP)
    try:
        if scene.dice.random() < 0.6:
            # Without a step seen before, a process that stands is one that has nothing to do.
            wanted = r"is stopped|stopped by a signal|CONT"
            if not scene.shows(monitor, wanted, 30.0):
                scene.bad.append("nothing said of a stopped target")
        else:
            scene.pause(0.1, 2.0)
    finally:
        os.killpg(scene.target.pid, signal.SIGCONT)


def spies(monitor: OnTerminal) -> list[psutil.Process]:
    """The samplers that a monitor has running."""
    samplers = []
    for process in monitor.tree():
        with contextlib.suppress(psutil.Error):
            if process.name() == "py-spy":
                samplers.append(process)
    return samplers


def to_spies(scene: Scene, monitor: OnTerminal, number: signal.Signals, seconds: float) -> int:
    """Send a signal to every sampler for so long; how many got one."""
    hit: set[int] = set()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or not hit:
        for process in spies(monitor):
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
                hit.add(process.pid)
        if time.monotonic() > deadline + 40.0:
            scene.bad.append("no sampler was seen")
            break
        time.sleep(0.02)
    return len(hit)


@disturbance("spy-killed", up=READY)
def spy_killed(scene: Scene, monitor: OnTerminal) -> None:
    long = scene.dice.random() < 0.5
    to_spies(scene, monitor, signal.SIGKILL, 4.0 if long else 0.0)
    if long:
        scene.shows(monitor, r"stacks[✗◐○]", 15.0)


@fault("spy-stopped")
def spy_stopped(scene: Scene) -> None:
    monitor = scene.watch()
    scene.expect(monitor.until(READY, 20.0), "no screen")
    scene.pause(0.0, 2.0)
    to_spies(scene, monitor, signal.SIGSTOP, 0.0)
    if scene.dice.random() < 0.5:
        scene.quits(monitor)
        return
    scene.pause(4.0, 8.0)
    scene.recovers(monitor)
    scene.quits(monitor)


@fault("native-killed")
def native_killed(scene: Scene) -> None:
    """The sampler is killed while it looks below Python; the run may be in an uninterruptible sleep meanwhile."""
    monitor = scene.watch()
    scene.expect(monitor.until(READY, 20.0), "no screen")
    monitor.press(b"h")
    scene.expect(monitor.until("Where the ranks stand.*read at ", 20.0), "no ranks to look at")
    pipe = scene.target.folder / "awake"
    asleep = scene.dice.random() < 0.6
    if asleep:
        os.mkfifo(pipe)
        scene.target.ask_to("sleep")
        scene.pause(0.2, 0.5)
    monitor.press(b"n")
    scene.pause(0.0, 0.6)
    to_spies(scene, monitor, signal.SIGKILL, 1.0)
    if asleep:
        os.close(os.open(pipe, os.O_WRONLY))
    scene.target.goes_on(10)
    monitor.press(b"\x1b")
    # Else it is taken for the beginning of another key.
    scene.pause(0.5, 1.0)
    scene.recovers(monitor)
    scene.quits(monitor)


@disturbance("resize-storm", up="")
def resize_storm(scene: Scene, monitor: OnTerminal) -> None:
    for _ in range(scene.dice.randint(40, 120)):
        rows, columns = scene.dice.choice(((0, 0), (1, 1), (2, 300), (90, 10), (24, 80), (50, 200), (7, 33)))
        monitor.resize(rows, columns)
        time.sleep(scene.dice.uniform(0.0, 0.04))
    monitor.resize(ROWS, COLUMNS)


@disturbance("monitor-starved", up="")
def monitor_starved(scene: Scene, monitor: OnTerminal) -> None:
    """It gets a few milliseconds of CPU now and then."""
    deadline = time.monotonic() + scene.dice.uniform(2.0, 5.0)
    while time.monotonic() < deadline:
        os.kill(monitor.pid, signal.SIGSTOP)
        time.sleep(scene.dice.uniform(0.2, 0.8))
        os.kill(monitor.pid, signal.SIGCONT)
        time.sleep(scene.dice.uniform(0.005, 0.03))


@disturbance("monitor-frozen")
def monitor_frozen(scene: Scene, monitor: OnTerminal) -> None:
    """It stands for longer than the hook waits for it, and comes back."""
    os.kill(monitor.pid, signal.SIGSTOP)
    scene.pause(LEASE_SECONDS + 1.0, LEASE_SECONDS + 4.0)
    os.kill(monitor.pid, signal.SIGCONT)


@disturbance("monitor-idle", up="")
def monitor_idle(scene: Scene, monitor: OnTerminal) -> None:
    """The least priority, on one core with somebody who takes all of it."""
    core = scene.dice.choice(sorted(os.sched_getaffinity(0)))
    everything = os.sched_getaffinity(monitor.pid)
    burner = psutil.Popen([sys.executable, "-S", "-c", "while True: pass"], start_new_session=True)
    try:
        os.sched_setaffinity(burner.pid, {core})
        for thread in os.listdir(f"/proc/{monitor.pid}/task"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), {core})
                os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
        scene.pause(2.0, 5.0)
    finally:
        burner.kill()
        burner.wait()
    for thread in os.listdir(f"/proc/{monitor.pid}/task"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(thread), everything)
            # On a machine with no time to spare it would be starved still, and nothing be learned of what comes after.
            os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))


@fault("no-descriptors")
def no_descriptors(scene: Scene) -> None:
    """It may open nothing more for a while."""
    monitor = scene.watch()
    scene.expect(monitor.until(UP, 20.0), "no screen")
    scene.moment(monitor)
    drawn = monitor.until(READY, 0.0) is not None
    open_now = len(os.listdir(f"/proc/{monitor.pid}/fd"))
    soft, hard = resource.prlimit(monitor.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(monitor.pid, resource.RLIMIT_NOFILE, (open_now + scene.dice.randint(-4, 4), hard))
    scene.pause(1.0, 4.0)
    if drawn:
        scene.shown = re.search(r"[✗◐⊘]", monitor.screen.text().partition("\n")[0]) is not None or None
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(monitor.pid, resource.RLIMIT_NOFILE, (soft, hard))
    if not drawn and monitor.wait(1.0) is not None:
        # What it needs to start at all was not to be had: a sentence, and no traceback.
        scene.ends(monitor, 1, 2, 3)
        scene.expect("aitop: " in monitor.screen.left, "ended without a word")
        return
    scene.recovers(monitor)
    grown = len(os.listdir(f"/proc/{monitor.pid}/fd")) - open_now
    scene.expect(grown <= 12, f"{grown} descriptors more than before")
    scene.quits(monitor)


@fault("three-monitors")
def three_monitors(scene: Scene) -> None:
    """A second and a third one on the same target; they go in any order, each in a way of its own."""
    monitors = []
    for _ in range(3):
        monitors.append(scene.watch())
        scene.pause(0.0, 2.0)
    for monitor in monitors:
        scene.recovers(monitor)
    scene.dice.shuffle(monitors)
    for left, monitor in zip((2, 1, 0), monitors, strict=True):
        way = scene.dice.choice(("key", "term", "kill", "detach"))
        if way == "key":
            scene.quits(monitor)
        elif way == "detach":
            monitor.press(b"d")
            scene.expect(monitor.until("hook○", 15.0), "no detach")
            scene.quits(monitor)
        else:
            os.kill(monitor.pid, signal.SIGTERM if way == "term" else signal.SIGKILL)
            scene.ends(monitor, 143 if way == "term" else -9, restored=way == "term")
        if left:
            scene.pause(0.5, 1.5)
            scene.recovers(monitors[-1])


@fault("record-ended")
def record_ended(scene: Scene) -> None:
    """`aitop record` without a screen, ended by any signal; compressed or not."""
    path = scene.folder / scene.dice.choice(("recording.jsonl", "recording.jsonl.gz"))
    monitor = scene.start([*AITOP, "record", "--pid", str(scene.target.pid), "-o", str(path)])
    scene.pause(0.8, 5.0)
    number = scene.dice.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
    begun = path.exists() and path.stat().st_size > 0
    os.kill(monitor.pid, number)
    codes = {signal.SIGKILL: (-9,), signal.SIGINT: (0, 130)}.get(number, (128 + number,))
    scene.ends(monitor, *codes, *(() if begun else (-number, 1)), restored=number != signal.SIGKILL)
    if begun:
        scene.readable(path, whole=number != signal.SIGKILL)
