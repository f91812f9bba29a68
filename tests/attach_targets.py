"""Hostile targets for the ways in, and a stand-in for the hook, shared by the tests and the stress bench."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from waiting import line_of

from aitop.attach.ways.gdb import fault_of_gdb

STAND_IN = (
    (
        "hook.__init__",
        "from .store import STATE\n"
        "def install(way, load=None):\n"
        "    if STATE: return 'already'\n"
        "    STATE.append(way); return 'installed'\n"
        "def remove():\n"
        "    if not STATE: return 'absent'\n"
        "    STATE.clear(); return 'removed'\n",
    ),
    ("hook.store", "STATE = []\n"),
)

# Every target runs `turn()` until it is told to stop, then says how long its turns took (p50, p99, p99.9 and the
# longest, in microseconds), whether it was harmed and what is left in it.
FRAME = """
import gc, math, os, sys, threading, time
STOP, TICKS = sys.argv[1], sys.argv[2]
bad = 0
def going():
    return not os.path.exists(STOP)
def ways_in():
    return len(sys.meta_path), len(gc.callbacks)
def fds():
    # Of several counts the least: a thread that ends (which join does not wait for) gives its memory back, for which
    # the C library opens /proc/sys/vm/overcommit_memory for a moment. What was left open is in every count.
    return min(len(os.listdir('/proc/self/fd')) for _ in range(20) if not time.sleep(0.001))
ticks = os.open(TICKS, os.O_RDWR | os.O_CREAT)
done, last, longest, bins = 0, None, 0.0, [0] * 600
def tick():
    global done, last, longest
    done += 1
    os.pwrite(ticks, done.to_bytes(8, 'little'), 0)
    now = time.perf_counter()
    if last is not None:
        longest = max(longest, now - last)
        bins[min(599, int(20 * math.log2(1 + (now - last) * 1e6)))] += 1
    last = now
def at_most(share):
    left = share * sum(bins)
    for number, count in enumerate(bins):
        left -= count
        if left <= 0: return 2 ** ((number + 1) / 20) - 1
{setup}
before = (fds(), ways_in(), sorted(globals()) + ['before'])
print('ready', flush=True)
while going():
{turn}
    tick()
{end}
names = sorted(set(globals()) - set(before[2]))
left = [m for m in sys.modules if 'aitop' in m]
same = (fds(), ways_in()) == before[:2] and not names and not left
print('turns', round(at_most(0.5)), round(at_most(0.99)), round(at_most(0.999)), round(longest * 1e6))
print('bad', bad, 'same', same, names, left, fds(), before[0], flush=True)
"""

THREADS = """
def work():
    while going(): {body}
crowd = [threading.Thread(target=work) for _ in range({n})]
[t.start() for t in crowd]
"""
JOIN = "[t.join() for t in crowd]"

KINDS: dict[str, tuple[str, str, str]] = {
    "busy": ("", "    sum(range(2000))", ""),
    "lock": ("L = threading.Lock(); L.acquire()", "    L.acquire(timeout=0.3)", ""),
    "queue": (
        "import queue; Q = queue.Queue()\ndef get():\n    try: Q.get(timeout=0.3)\n    except queue.Empty: pass",
        "    get()",
        "",
    ),
    "sleep": ("", "    time.sleep(0.05)", ""),
    "select": ("import select; r, w = os.pipe()", "    select.select([r], [], [], 0.05)", ""),
    "longsleep": ("", "    time.sleep(0.5)", ""),
    "longselect": ("import select; r, w = os.pipe()", "    select.select([r], [], [], 0.5)", ""),
    "epoll": (
        "import asyncio\nasync def nap(): await asyncio.sleep(0.5)\nloop = asyncio.new_event_loop()",
        "    loop.run_until_complete(nap())",
        "",
    ),
    "allocating": (
        THREADS.format(body="[bytearray(3000 + i * 37) for i in range(100)]", n=3),
        "    [[None] * (600 + i) for i in range(200)]",
        JOIN,
    ),
    # What is open for a moment now and then, as files are in any program.
    "opening": (THREADS.format(body="os.close(os.open('/dev/null', 0))", n=1), "    sum(range(2000))", JOIN),
    "leaking": ("", "    os.dup(1); time.sleep(0.01)", ""),
    "native-allocating": (
        "import zlib; D = os.urandom(100_000)" + THREADS.format(body="zlib.decompress(zlib.compress(D, 1))", n=2),
        "    [bytearray(3000 + i * 37) for i in range(200)]",
        JOIN,
    ),
    "importing": (
        "import importlib\n"
        "def again():\n"
        "    for name in ('_bz2', '_lzma', '_decimal', '_sqlite3', 'zlib'):\n"
        "        sys.modules.pop(name, None); importlib.import_module(name)\n"
        "again()\n" + THREADS.format(body="again()", n=1),
        "    sum(range(2000))",
        JOIN,
    ),
    "timers": (
        "import signal; hits = 0\n"
        "def hit(*_):\n    global hits; hits += 1\n"
        "signal.signal(signal.SIGALRM, hit); signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)",
        "    sum(range(2000))",
        "signal.setitimer(signal.ITIMER_REAL, 0); bad += hits < 5",
    ),
    "forking": (
        "p = 0",
        "    p = os.fork()\n    if not p: os._exit(sum(range(999)) % 1)\n    bad += os.waitpid(p, 0)[1] != 0",
        "",
    ),
    "vector": (
        "import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'; import numpy\n"
        "def normal(*shape): return numpy.random.default_rng(1).standard_normal(shape).astype('float32')\n"
        "x, y, m = normal(50_000), normal(2, 50_000)[1], normal(96, 96); n = x.astype(float)\n"
        "def f(): return (float((numpy.exp(x) * y).astype(float).cumsum()[-1]), float(numpy.dot(x, y)), "
        "float(numpy.sin(x).sum()), float((n * n).sum()), float((m @ m).sum()))\n"
        "ref = f()",
        "    bad += f() != ref",
        "",
    ),
    "c-call": ("import torch; torch.set_num_threads(1); X = torch.randn(500, 500)", "    torch.linalg.svd(X)", ""),
    "training": (
        "import torch, torch.nn as nn; from torch.utils.data import DataLoader, Dataset\n"
        "torch.set_num_threads(1); torch.manual_seed(0)\n"
        "class D(Dataset):\n"
        "    def __len__(self): return 4000\n"
        "    def __getitem__(self, i): return torch.randn(32, generator=torch.Generator().manual_seed(i)), i % 10\n"
        "net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))\n"
        "opt = torch.optim.AdamW(net.parameters())\n"
        "lossf = nn.CrossEntropyLoss(); losses = []\n"
        "def batches():\n"
        "    while True: yield from DataLoader(D(), batch_size=16, num_workers=2, multiprocessing_context='fork')\n"
        "it = batches(); next(it)\n"
        "LIMIT = int(os.environ.get('STEPS', 10**9))",
        "    x, y = next(it); loss = lossf(net(x), y); opt.zero_grad(); loss.backward(); opt.step()\n"
        "    losses.append(loss.item())\n"
        "    if len(losses) == LIMIT: break",
        "it.close(); del x, y, loss; import gc; gc.collect()\n"
        "print('losses', [v.hex() for v in losses])\n"
        # Workers and their pipes come and go by themselves.
        "before = (fds(), *before[1:2], before[2] + ['x', 'y', 'loss', 'gc'])",
    ),
}


_setup, _turn, _end = KINDS["training"]
# With the hook itself, which measures steps meanwhile, instead of the stand-in; also of a model that inductor compiled.
KINDS["hooked-training"] = KINDS["training"]
KINDS["hooked-compiled"] = (
    # Compiled before it is looked at what is open and imported.
    "import os; os.environ['TORCHINDUCTOR_COMPILE_THREADS'] = '1'\n"
    + _setup.replace("opt = torch", "net = torch.compile(net)\nopt = torch")
    + "\nx, y = next(it); lossf(net(x), y).backward(); opt.zero_grad(set_to_none=False)\n"
    "net.zero_grad(); torch.manual_seed(0)",
    _turn,
    _end,
)


def torch_stand_in(folder: Path, code: str) -> str:
    """Python code that passes for a process with torch loaded, and then runs `code`."""
    library = folder / "libtorch_stand_in.so"
    library.write_bytes(bytes(4096))
    return (
        f"import mmap, sys, types\nfile = open({str(library)!r}, 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)\n"
        "sys.modules['torch'] = types.ModuleType('torch')\n"
    ) + code


class Victim:
    """One target process of a kind. `end()` tells it to stop and returns what it printed."""

    def __init__(self, kind: str, python: str = sys.executable, **more: object) -> None:
        setup, turn, end = KINDS[kind]
        self._folder = tempfile.TemporaryDirectory()
        self.stop_file = Path(self._folder.name, "stop")
        self.ticks_file = Path(self._folder.name, "ticks")
        code = FRAME.format(setup=setup, turn=turn, end=end)
        self.process = subprocess.Popen(
            [python, "-c", code, str(self.stop_file), str(self.ticks_file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,  # type: ignore[call-overload]
        )
        if (line := line_of(self.process)) != "ready\n":
            self.process.kill()
            complaint = self.process.communicate()[1]
            self._folder.cleanup()
            raise AssertionError(f"it is not ready: {line}{complaint}")

    @property
    def pid(self) -> int:
        return self.process.pid

    def ticks(self) -> int:
        return int.from_bytes(self.ticks_file.read_bytes()[:8], "little")

    def goes_on(self, within: float = 20.0) -> bool:
        """Whether it makes progress."""
        before, deadline = self.ticks(), time.monotonic() + within
        while time.monotonic() < deadline and self.process.returncode is None:
            if self.ticks() > before:
                return True
            time.sleep(0.005)
        return False

    def end(self, timeout: float = 30.0) -> tuple[int, str, str]:
        """Exit status, output and errors."""
        self.stop_file.touch()
        return self.finish(timeout)

    def finish(self, timeout: float) -> tuple[int, str, str]:
        """The same for one that ends by itself."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._folder.cleanup()


def unharmed(victim: Victim) -> None:
    """The target went on, ended by itself with right results, and nothing of ours was left in it or on disk."""
    assert victim.goes_on()
    code, out, err = victim.end()
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("bad 0 same True"), out
    assert leftovers(victim.pid) == []


def why_no_gdb() -> str | None:
    """Why there is no gdb to test with on this machine, None where there is one that works."""
    program = shutil.which("gdb")
    if program is None:
        return "no gdb at hand"
    fault = fault_of_gdb(program)
    return None if fault is None else fault.reason


def leftovers(pid: int) -> list[str]:
    """Files of ours that belong to that target."""
    return [str(path) for folder in ("/tmp", "/dev/shm", "/var/tmp") for path in Path(folder).glob(f".aitop-{pid}-*")]
