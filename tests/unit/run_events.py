"""The events of a run that steps once in a tenth of a second, and the Snapshots that an engine makes of them."""

import msgspec
from snapshot_builder import RANK, host, step

from aitop.engine.core import Engine
from aitop.model.event import Event
from aitop.model.snapshot import Target, Tick
from aitop.model.source import SourceStatus
from aitop.model.steps import HookFacts, HookSample

TARGET = Target(pid=RANK, command="python train.py")


def at(time, event):
    return msgspec.structs.replace(event, time=time)


def session(seconds=20, step_seconds=0.1, **durations):
    """The events of a run: a hook, a host, and a tick a second."""
    events: list[Event] = [SourceStatus(time=0.0, source="hook", state="ok")]
    made = 0
    for second in range(1, seconds + 1):
        count = round(1 / step_seconds)
        records = tuple(step(made + index, step_seconds, **durations) for index in range(count))
        records = tuple(
            msgspec.structs.replace(record, end=second - 1 + (index + 1) * step_seconds)
            for index, record in enumerate(records)
        )
        made += count
        facts = HookFacts(way="attach", python="3.11", torch="2", cost_us=5.0)
        events.append(HookSample(time=float(second), pid=RANK, steps=records, facts=facts))
        events.append(at(float(second), host(2, worker_cpu=0.9)))
        events.append(Tick(time=float(second), wall=1e9 + second, monitor_cpu=0.02))
    return events


def play(events):
    engine = Engine(TARGET)
    return [snapshot for snapshot in map(engine.handle, events) if snapshot is not None]
