"""Makes the events of a run second by second, and gives them to the engine: for what is judged over minutes."""

from __future__ import annotations

import random

from aitop.engine.core import Engine
from aitop.model.host import HostSample, MachineSample, ProcessSample
from aitop.model.serving import RequestRecord
from aitop.model.snapshot import Target, Tick
from aitop.model.stacks import Frame, StackCount, StackWindow
from aitop.model.steps import HookFacts, HookSample, StepRecord

RANK = 100
START, WALL = 1000.0, 1_700_000_000.0
TRAIN = "/x/train.py"


class Noise:
    """Factors around 1 that resemble their neighbours; `spread` is their standard deviation."""

    def __init__(self, seed=1, spread=0.05, memory=0.6):
        self._random, self._spread, self._memory, self._state = random.Random(seed), spread, memory, 0.0

    def __call__(self):
        fresh = self._random.gauss(0.0, self._spread * (1 - self._memory**2) ** 0.5)
        self._state = self._memory * self._state + fresh
        return max(0.2, 1.0 + self._state)


def plan(**phases):
    """What a step takes from now on: seconds by phase, and what is no phase (`_BESIDE`)."""
    return {"forward": 0.02, "backward": 0.03, "optimizer": 0.005, **phases}


def watched(seconds, what, *, noise=None, requests=False):
    """Run an engine over `seconds` of a run; `what(second)` gives the plan of each. The last Snapshot."""
    engine = Engine(Target(pid=RANK, command="python train.py", script=TRAIN))
    noise, index, end, last = noise or Noise(), 0, START, None
    for second in range(seconds):
        now, wanted = START + second + 1, what(second)
        parts = {name: value for name, value in wanted.items() if name not in _BESIDE}
        records = []
        while end < now:
            scale = noise()
            own = {name: value * scale for name, value in parts.items()}
            length = (
                sum(own.values())
                + 0.002
                + sum(wanted.get(name, 0.0) for name in ("save", "evaluation") if not index % wanted.get("every", 10))
            )
            end, index = end + length, index + 1
            records.append(_record(index, end, length, own, wanted, requests=requests))
        facts = HookFacts(way="run", python="3.11", torch="2", recompiles=wanted.get("recompiles"))
        made = {"requests" if requests else "steps": tuple(records)}
        engine.handle(HookSample(time=now, pid=RANK, facts=facts, **made))
        engine.handle(_host(now, wanted))
        if second % 2:
            engine.handle(_window(now, wanted))
        last = engine.handle(Tick(time=now + 0.1, wall=WALL + now - START))
    return last


_BESIDE = frozenset({"save", "evaluation", "every", "others", "waited", "tokens", "recompiles", "gc", "line"})


def _record(index, end, length, own, wanted, *, requests):
    if requests:
        return RequestRecord(end=end, seconds=length, model=own["forward"], preprocess=own.get("preprocess"))
    beside = {
        name: wanted[name]
        for name in ("save", "evaluation")
        if name in wanted and not (index - 1) % wanted.get("every", 10)
    }
    host = own.pop("host", 0.0)
    own = {name.replace("data", "data_wait"): value for name, value in own.items()}
    return StepRecord(
        index=index,
        end=end,
        seconds=length + 0.0 * host,
        gc=wanted.get("gc", 0.0),
        tokens=wanted.get("tokens"),
        **own,
        **beside,
    )


def _host(now, wanted):
    process = ProcessSample(
        pid=RANK,
        ppid=1,
        started=0.0,
        role="rank",
        name="python",
        command="python",
        cpu=0.9,
        waited=wanted.get("waited", 0.02),
    )
    others = wanted.get("others", 0.1)
    machine = MachineSample(cores=2, core_busy=((0.9 + others) / 2,) * 2)
    return HostSample(time=now, processes=(process,), machine=machine, usable_cores=2.0)


def _window(now, wanted):
    frames = (Frame("main", TRAIN, 10, user=True), Frame("forward", "/x/torch/nn/modules/module.py", 1))
    return StackWindow(
        time=now, seconds=1.0, rate=20.0, frames=frames, stacks=(StackCount(RANK, "MainThread", True, (0, 1), 20),)
    )
