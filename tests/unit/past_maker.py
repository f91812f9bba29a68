"""Makes the events of a run second by second, and gives them to an engine: for what is judged over minutes."""

from __future__ import annotations

import random

from aitop.engine.core import Engine
from aitop.model.gpu import GpuDevice, GpuSample
from aitop.model.host import HostSample, MachineSample, ProcessSample
from aitop.model.serving import RequestRecord
from aitop.model.snapshot import Target, Tick
from aitop.model.stacks import Frame, StackCount, StackWindow
from aitop.model.steps import HookFacts, HookSample, StepRecord

RANK = 100
START, WALL = 1000.0, 1_700_000_000.0
TRAIN = "/x/train.py"
MODEL, LOGS = 10, 20
"""Lines of TRAIN: one calls the model, the other stands after the update."""
# Ticks at the end that are judged: a verdict needs two.
JUDGED = 4


class Noise:
    """Factors around 1 that resemble their neighbours; `spread` is their standard deviation."""

    def __init__(self, seed=1, spread=0.05, memory=0.6):
        self._random, self._spread, self._memory, self._state = random.Random(seed), spread, memory, 0.0

    def __call__(self):
        self._state = self._memory * self._state + self._random.gauss(0.0, self._spread * (1 - self._memory**2) ** 0.5)
        return max(0.2, 1.0 + self._state)


def noise_of(count, seed, *, like=0.6, spread=0.05):
    """So many of these factors."""
    noise = Noise(seed, spread=spread, memory=like)
    return [noise() for _ in range(count)]


def plan(**parts):
    """What a unit takes: seconds by field of its record; `host` of it lies in no phase.

    `save` and `evaluation` come once in `every` units. `others` and `waited` are cores, `clock` MHz; `tokens`, `gc` and
    the counter `recompiles` are those of a step.
    """
    return {"forward": 0.02, "backward": 0.03, "optimizer": 0.005, "host": 0.002, **parts}


def watched(seconds, planned, *, tick_every=1, noise=None, unit="step", facts_first=False):
    """The last Snapshot of a run of so many seconds; `planned(second)` gives the plan of each.

    A tick comes once in `tick_every` seconds.

    With `facts_first` the hook's facts come in a sample before the one with the steps.
    """
    engine = Engine(Target(pid=RANK, command="python train.py", script=TRAIN))
    noise, index, last = noise or Noise(), 1, None
    record = _record(1, START, planned(0), noise(), unit)
    for second in range(0, seconds, tick_every):
        now, what, records = START + second + 1, planned(second), []
        while record.end <= now:
            records.append(record)
            index += 1
            record = _record(index, record.end, what, noise(), unit)
        facts = HookFacts(way="run", python="3.11", torch="2", recompiles=what.get("recompiles"))
        if facts_first:
            engine.handle(HookSample(time=now - 0.5, pid=RANK, facts=facts))
            facts = None
        made = {"steps": tuple(records)} if unit == "step" else {"requests": tuple(records)}
        engine.handle(HookSample(time=now, pid=RANK, facts=facts, **made))
        engine.handle(_host(now, what))
        engine.handle(_window(now, what))
        if "clock" in what:
            device = GpuDevice(index=0, mine=True, sm_clock=what["clock"])
            engine.handle(GpuSample(time=now, devices=(device,)))
        tick = Tick(time=now + 0.1, wall=WALL + now + 0.1 - START)
        last = engine.handle(tick, judged=second >= seconds - JUDGED * tick_every) or last
    return last


def _record(index, end, what, scale, unit):
    phases = ("data_wait", "forward", "backward", "optimizer", "preprocess", "model", "host")
    parts = {name: what[name] * scale for name in phases if name in what}
    if unit == "request":
        parts = {name: parts[name] for name in ("preprocess", "model") if name in parts}
        seconds = sum(parts.values())
        return RequestRecord(end=end + seconds, seconds=seconds, **parts)
    parts |= {name: what[name] for name in ("save", "evaluation") if name in what and index % what["every"] == 0}
    seconds = sum(parts.values()) + what.get("gc", 0.0)
    del parts["host"]
    beside = {name: what[name] for name in ("tokens", "gc") if name in what}
    return StepRecord(index=index, end=end + seconds, seconds=seconds, **parts, **beside)


def _host(now, what):
    process = ProcessSample(
        pid=RANK, ppid=1, started=0.0, role="rank", name="python", command="python", cpu=0.9,
        waited=what.get("waited", 0.02), run_delay=what.get("run_delay"),
    )  # fmt: skip
    machine = MachineSample(cores=2, core_busy=((0.9 + what.get("others", 0.1)) / 2,) * 2)
    return HostSample(time=now, processes=(process,), machine=machine, usable_cores=2.0)


def _window(now, what):
    """Twenty samples: the model's call, and the line after the update for as much as `host` takes."""
    frames = (
        Frame("main", TRAIN, MODEL, user=True),
        Frame("Module._call_impl", "/x/site-packages/torch/nn/modules/module.py", 1),
        Frame("main", TRAIN, LOGS, user=True),
    )
    after = round(20 * what["host"] / sum(what[name] for name in ("forward", "backward", "optimizer", "host")))
    stacks = [StackCount(RANK, "MainThread", True, (0, 1), 20 - after)]
    stacks += [StackCount(RANK, "MainThread", True, (2,), after)] if after else []
    return StackWindow(time=now, seconds=1.0, rate=20.0, frames=frames, stacks=tuple(stacks))
