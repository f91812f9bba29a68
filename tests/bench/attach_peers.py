"""Getting code into a training run under way, aitop beside its peers: `python tests/bench/attach_peers.py [-n 10]`.

The same training run, one for each way in, is entered and left `-n` times at random moments. Told are the time until
the code is in, the longest that a step of the run was held up by it, and to how many runs harm was done (died, froze,
other losses than of a run that nobody entered). Beside both stands what the longest step of the undisturbed run was.

  aitop     its hook, put in and taken out again
  memray    `memray attach` and `memray detach`, if memray can be imported here
  gdb       the gdb script of pyrasite and others: PyGILState_Ensure, PyRun_SimpleString, in whatever thread it stopped

It needs a torch in this Python; gdb for the last two.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import mmap
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from aitop.attach import AttachRefused, install, remove

STATE = struct.Struct("=Qd")  # steps so far, the longest since it was set to 0
RUN = """
import mmap, struct, sys, time
import torch
from torch import nn
torch.set_num_threads(1); torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer, criterion = torch.optim.AdamW(net.parameters()), nn.CrossEntropyLoss()
with open(sys.argv[1], "r+b") as file: state = mmap.mmap(file.fileno(), 0)
losses, count, last = open(sys.argv[2], "w", buffering=1 << 16), 0, time.monotonic()
while True:
    rows, labels = torch.randn(32, 64), torch.randint(10, (32,))
    loss = criterion(net(rows), labels)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.write(loss.item().hex() + "\\n")
    count, now = count + 1, time.monotonic()
    longest = struct.unpack_from("=d", state, 8)[0]
    struct.pack_into("=Qd", state, 0, count, max(longest, now - last))
    last = now
"""
# As quick as gdb can be told to be: it loads the symbols of Python alone.
GDB = ("-batch", "-nx", "-iex", "set debuginfod enabled off", "-iex", "set auto-solib-add off")
PLAIN_CYCLES_SECONDS = 0.4
PATIENCE = 30.0


@dataclass
class Way:
    """What the cycles of one way in came to; milliseconds."""

    name: str
    cycles: int = 0
    refused: int = 0
    acks: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    harm: str = ""


class Run:
    """The training run. Use as a context."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="aitop-attach-")
        self._losses = Path(self._folder.name, "losses")
        place = Path(self._folder.name, "state")
        place.write_bytes(bytes(STATE.size))
        with place.open("r+b") as file:
            self._state = mmap.mmap(file.fileno(), 0)
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(place), str(self._losses)], stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> Run:
        deadline = time.monotonic() + 60
        while self.steps() < 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the training run did not start")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._state.close()
        self._folder.cleanup()

    def steps(self) -> int:
        """How many there were."""
        return int(STATE.unpack(self._state[:])[0])

    def forget(self) -> None:
        """The longest step is looked for from now on."""
        self._state[8:16] = bytes(8)

    def longest_ms(self) -> float:
        """The longest step since then, the one under way included once it is over."""
        before, deadline = self.steps(), time.monotonic() + PATIENCE
        while self.steps() < before + 2 and time.monotonic() < deadline and self.process.poll() is None:
            time.sleep(0.002)
        return float(STATE.unpack(self._state[:])[1]) * 1e3

    def harm(self, losses: list[str]) -> str:
        """In words, empty where there is none; `losses` are those of a run that nobody entered."""
        if self.process.poll() is not None:
            return f"died ({self.process.returncode})"
        before, deadline = self.steps(), time.monotonic() + PATIENCE
        while self.steps() == before:
            if time.monotonic() > deadline:
                return "froze"
            time.sleep(0.01)
        mine = self.losses()
        compared = min(len(mine), len(losses))
        return "" if mine[:compared] == losses[:compared] else f"other losses within {compared} steps"

    def losses(self) -> list[str]:
        """Whole lines written so far."""
        return self._losses.read_text().split("\n")[:-1]


def by_aitop(pid: int, folder: Path) -> float:
    """In and out; milliseconds until it was in. Raises AttachRefused."""
    began = time.monotonic()
    install(pid)
    took = time.monotonic() - began
    remove(pid)
    return took * 1e3


def by_memray(pid: int, folder: Path) -> float:
    """The same with memray."""
    began = time.monotonic()
    output = folder / f"memray-{began}.bin"
    _call([sys.executable, "-m", "memray", "attach", "--method", "gdb", "-o", str(output), str(pid)])
    took = time.monotonic() - began
    _call([sys.executable, "-m", "memray", "detach", "--method", "gdb", str(pid)])
    return took * 1e3


def by_gdb(pid: int, folder: Path) -> float:
    """A line of Python run by gdb; there is nothing to take out."""
    steps = (
        "sharedlibrary libpython",
        "set $state = (int)PyGILState_Ensure()",
        'call (int)PyRun_SimpleString("import sys")',
    )
    words = [word for step in (*steps, "call (void)PyGILState_Release($state)") for word in ("-ex", step)]
    began = time.monotonic()
    _call(["gdb", *GDB, "-p", str(pid), *words])
    return (time.monotonic() - began) * 1e3


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise ValueError((done.stdout + done.stderr).strip()[-200:])


def ways() -> dict[str, Callable[[int, Path], float]]:
    """Those that are there."""
    found: dict[str, Callable[[int, Path], float]] = {"aitop": by_aitop}
    if shutil.which("gdb"):
        if importlib.util.find_spec("memray"):
            found["memray"] = by_memray
        found["gdb"] = by_gdb
    return found


def measure(name: str, enter: Callable[[int, Path], float] | None, cycles: int, losses: list[str]) -> Way:
    """`cycles` times in and out of a run of its own; None enters nothing and only looks."""
    way = Way(name)
    with Run() as run, tempfile.TemporaryDirectory() as folder:
        for _ in range(cycles):
            time.sleep(random.uniform(0.0, 0.2))
            run.forget()
            way.cycles += 1
            try:
                if enter is None:
                    time.sleep(PLAIN_CYCLES_SECONDS)
                else:
                    way.acks.append(enter(run.process.pid, Path(folder)))
            except (AttachRefused, ValueError) as error:
                way.refused += 1
                way.harm = way.harm or f"refused: {' '.join(str(error).split())[-120:]}"
            except subprocess.TimeoutExpired:
                way.harm = "no answer"
                break
            way.held.append(run.longest_ms())
            if run.process.poll() is not None:
                break
        if enter is None:
            losses += run.losses()
        way.harm = run.harm(losses) or way.harm
    return way


def table(found: list[Way]) -> str:
    """A line for each."""
    lines = [f"{'':10} cycles refused   in after ms: median   worst   held up ms: median   worst   harm"]
    for way in found:
        acks, held = (_two(values) for values in (way.acks, way.held))
        lines.append(f"{way.name:10} {way.cycles:6} {way.refused:7} {acks:>29} {held:>28}   {way.harm or 'none'}")
    return "\n".join(lines)


def _two(values: list[float]) -> str:
    return f"{statistics.median(values):9.1f} {max(values):9.1f}" if values else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--cycles", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    args = parser.parse_args()
    losses: list[str] = []
    found = [measure("nothing", None, args.cycles, losses)]
    found += [measure(name, enter, args.cycles, losses) for name, enter in ways().items()]
    print(table(found))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(way) for way in found]))


if __name__ == "__main__":
    main()
