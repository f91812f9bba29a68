"""More faults: of the machine around the monitor (disk, driver, clock), and of what the target does meanwhile."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import fake_nvml
from fault_kinds import READY, UP, disturbance, fault
from fault_scene import Scene
from terminal import OnTerminal

from aitop.sources.nvml.source import NvmlSource
from aitop.sources.ring.reader import find_ring

# The time until the driver is called again, until a call counts as one that hangs, until that is drawn; and as much
# again, on a busy machine.
TOLD_OF_HANGS = 2.0 * (1.0 + NvmlSource.patience)

CLOCK = Path(__file__).parents[1] / "fakes" / "clock" / "jump.c"


@functools.cache
def small_disks() -> bool:
    """Whether a file system of a few kilobytes can be mounted in a namespace of our own."""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"], check=False, capture_output=True
    )
    return done.returncode == 0


@fault("disk-full")
def disk_full(scene: Scene) -> None:
    """A small disk where that can be had, else the longest file that a process may write."""
    path = scene.folder / "recording.jsonl"
    kilobytes = scene.dice.randint(12, 120)
    place = f"mount -t tmpfs -o size={kilobytes}k none {scene.folder} && " if small_disks() else ""
    limit = "" if place else f"ulimit -f {2 * kilobytes}; "
    wrap = f'exec unshare -m sh -c \'{place}exec "$@"\' sh "$@"' if place else f'{limit}exec "$@"'
    monitor = scene.watch("--record", str(path), "--interval", "0.2", wrap=wrap)
    scene.expect(monitor.until(UP, 20.0), "no screen")
    scene.shows(monitor, "REC STOPPED", 60.0)
    seen = Path(f"/proc/{monitor.pid}/root{path}")
    copy = scene.folder / "kept.jsonl"
    shutil.copyfile(seen, copy)
    scene.expect(scene.readable(copy) > 3, "nothing was recorded")
    scene.recovers(monitor)
    scene.quits(monitor, 1)
    scene.expect("has stopped: " in monitor.screen.left.replace("\r\n", ""), f"said: {monitor.screen.left!r}")


def driver(scene: Scene, text: str) -> dict[str, str]:
    """The environment in which the driver is a fake that behaves so."""
    path = fake_nvml.write_scenario(scene.folder / "scenario.txt", text)
    return fake_nvml.environment(path, TARGET_PID=str(scene.target.pid))


@fault("nvml-hangs")
def nvml_hangs(scene: Scene) -> None:
    """For good, or for some seconds; while starting, too."""
    moment = scene.dice.uniform(0.0, 3.0)
    function = scene.dice.choice(("nvmlDeviceGetUtilizationRates", "*", "nvmlDeviceGetComputeRunningProcesses_v3"))
    passes = scene.dice.random() < 0.4
    seconds = scene.dice.uniform(4.5, 9.0)
    length = f"{seconds:.2f}" if passes else ""
    env = driver(scene, f"include h200-busy.txt\nhang {function} {moment:.2f} {length}\n")
    monitor = scene.watch(env=env)
    scene.shows(monitor, "gpu◐", 30.0)
    if passes and seconds < TOLD_OF_HANGS:
        # The driver was called late, and it was over before anybody had to be told.
        scene.shown, scene.not_shown = scene.shown or None, ""
    if passes:
        scene.recovers(monitor, sources="host●.* gpu●.* stacks●.* hook●")
    else:
        scene.recovers(monitor)
    scene.quits(monitor)


@fault("nvml-loses-a-gpu")
def nvml_loses_a_gpu(scene: Scene) -> None:
    moment = scene.dice.uniform(0.0, 4.0)
    env = driver(scene, f"include two-gpus.txt\ngpu 1 xid 79 {moment:.2f}\ngpu 1 lost {moment:.2f}\n")
    monitor = scene.watch(env=env)
    scene.shows(monitor, r"(?i)lost|fell off", 25.0)
    scene.recovers(monitor, sources="host●.* gpu●.* stacks●.* hook●")
    scene.quits(monitor)


@fault("nvml-errors")
def nvml_errors(scene: Scene) -> None:
    """Every call of a device fails from a moment on, for some seconds or for good."""
    moment, code = scene.dice.uniform(0.0, 4.0), scene.dice.choice((999, 1, 9, 4, 18))
    passes = scene.dice.random() < 0.5
    until = f"{moment + scene.dice.uniform(1.5, 4.0):.2f}" if passes else ""
    env = driver(scene, f"include h200-busy.txt\nreturn * {code} {moment:.2f} {until}\n")
    monitor = scene.watch(env=env)
    if not passes:
        scene.shows(monitor, "gpu[✗⊘○]", 25.0)
    else:
        time.sleep(moment + 1.0)
    scene.recovers(monitor)
    scene.quits(monitor)


@fault("nvml-absurd")
def nvml_absurd(scene: Scene) -> None:
    """Figures that cannot be, names with escape codes in them; from the start, or values from a moment on."""
    if scene.dice.random() < 0.5:
        text = "include garbage.txt\n"
    else:
        at = f"{scene.dice.uniform(0.0, 4.0):.2f}"
        wrong = ("4294967295", "-1", "1e300", "nan", "9223372036854775000", "0")
        keys = ("busy", "memory.used", "power", "temperature", "sm_clock", "throttle", "pcie.width", "fan", "gpm.sm")
        lines = [f"gpu 0 {key} steps 0:50 {at}:{scene.dice.choice(wrong)}" for key in keys]
        text = "\n".join(["include h200-busy.txt", *lines]) + "\n"
    monitor = scene.watch(env=driver(scene, text))
    scene.recovers(monitor, sources="host●.* gpu●.* stacks●.* hook●")
    scene.pause(1.0, 4.0)
    shown = monitor.screen.text()
    for nonsense in ("4294967295", "nan", "e+", "922337", "-1 "):
        scene.expect(nonsense not in shown, f"{nonsense!r} is on the screen")
    # The toolkit itself ends what it asks of the terminal's title and pointer with a bell.
    raw = re.sub(rb"\x1b\][0-9]+;[ -~]*\x07", b"", bytes(monitor.raw))
    for sequence in (b"\x1b[31m H200", b"\x07", b"\xc2\x9b"):
        scene.expect(
            sequence not in raw,
            f"a terminal was told to do something: {raw.partition(sequence)[0][-60:]!r}{sequence!r}",
        )
    scene.quits(monitor)


@fault("proc-vanishes", "churn")
def proc_vanishes(scene: Scene) -> None:
    """Workers come and go while every source reads about them."""
    monitor = scene.watch("--interval", "0.1")
    scene.pause(2.0, 6.0)
    scene.recovers(monitor)
    scene.quits(monitor)


@functools.cache
def clock_shim() -> Path:
    """The library that shifts the clock of whoever loads it, built once."""
    folder = Path(tempfile.mkdtemp(prefix="clock-"))
    subprocess.run(
        ["cc", "-O1", "-Wall", "-shared", "-fPIC", "-o", str(folder / "jump.so"), str(CLOCK), "-ldl"], check=True
    )
    return folder / "jump.so"


@fault("clock-jumps")
def clock_jumps(scene: Scene) -> None:
    """The wall clock of the monitor goes back and forth by hours and years. The monotonic one never does on Linux."""
    shift = scene.folder / "shift"
    shift.write_bytes((0).to_bytes(8, "little", signed=True))
    path = scene.folder / "recording.jsonl"
    env = {**os.environ, "LD_PRELOAD": str(clock_shim()), "CLOCK_SHIFT_FILE": str(shift)}
    monitor = scene.watch("--record", str(path), env=env)
    scene.moment(monitor)
    for _ in range(4):
        seconds = scene.dice.choice((-1, 1)) * scene.dice.choice((1, 3600, 86_400, 400 * 86_400, 40_000 * 86_400))
        with shift.open("r+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))
        scene.pause(0.3, 1.5)
    scene.recovers(monitor)
    scene.quits(monitor)
    scene.readable(path, whole=True)


@disturbance("target-forks", up="", moment=False)
def target_forks(scene: Scene, monitor: OnTerminal) -> None:
    """Children that train, that become other programs and that are started by subprocess, in the midst of attach."""
    scene.pause(0.5, 3.0)
    for _ in range(3):
        answer = scene.target.ask("fork")
        scene.expect(not answer["bad"], f"a child was harmed: {answer['bad']}")
        scene.pause(0.0, 0.6)


@fault("target-execs")
def target_execs(scene: Scene) -> None:
    """The target becomes another program, and begins anew."""
    monitor = scene.watch()
    scene.expect(monitor.until(READY, 20.0), "no screen")
    scene.moment(monitor)
    starts = len(scene.target.runs())
    scene.target.ask_to("exec")
    deadline = time.monotonic() + 60.0
    while len(scene.target.runs()) == starts and time.monotonic() < deadline:
        time.sleep(0.05)
    scene.target.goes_on(10)
    deadline = time.monotonic() + 60.0
    while find_ring(scene.target.pid) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    scene.expect(find_ring(scene.target.pid) is not None, "the hook did not come into the new program")
    scene.recovers(monitor)
    scene.expect(monitor.until(r"last [1-9]\d* steps", 20.0), f"no steps of the new program:\n{monitor.screen.text()}")
    scene.quits(monitor)


@fault("worker-killed")
def worker_killed(scene: Scene) -> None:
    """A loader worker is killed, which ends the run as it does without a monitor."""
    monitor = scene.watch()
    scene.expect(monitor.until(READY, 20.0), "no screen")
    scene.moment(monitor)
    workers = [process for process in scene.target.tree() if process.pid != scene.target.pid]
    workers[0].send_signal(signal.SIGKILL)
    code = scene.target.process.wait(60)
    scene.target.killed = True
    # Where it was about to hand something over, the queue's own code is what fails; and what torch raises when it is
    # told of the worker's end may come in the midst of Python's telling of that.
    explained = any(
        words in scene.target.log() for words in ("DataLoader worker", "multiprocessing", "lost sys.stderr")
    )
    scene.expect(code == 1 and explained, f"the target ended with {code}: {scene.target.log()}")
    scene.shows(monitor, "target ended", 20.0)
    scene.quits(monitor)
