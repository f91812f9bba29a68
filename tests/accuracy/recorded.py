"""A recording of a scenario, and the verdicts that the engine gives on it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from expectation import Row, Seen, row_of
from expected import BY_NAME, Scenario

from aitop.engine.core import Engine
from aitop.model.event import Event, Header
from aitop.model.snapshot import Snapshot, Target
from aitop.model.source import SourceStatus
from aitop.model.steps import HookSample
from aitop.sources.replay import read_recording

RECORDINGS = Path(__file__).resolve().parent / "recordings"
_COLON = "+"
_NAME = re.compile(r"(?P<name>.+)\.t(?P<tier>[123])\.jsonl\.gz")


def of_hook(event: Event) -> bool:
    """Whether an event came from the hook, or tells how the hook fares."""
    return isinstance(event, HookSample) or (isinstance(event, SourceStatus) and event.source == "hook")


def snapshots_of(header: Header, events: Iterable[Event]) -> Iterator[Snapshot]:
    """What the engine makes of these events: a Snapshot a tick, each of them judged."""
    engine = Engine(header.target)
    for event in events:
        if (snapshot := engine.handle(event)) is not None:
            yield snapshot


def replayed(path: Path, tier: int = 3) -> Iterator[Snapshot]:
    """The Snapshots of any recording; tier 2 is the same without the hook."""
    header, events = read_recording(path)
    return snapshots_of(header, (event for event in events if tier == 3 or not of_hook(event)))


@dataclass(frozen=True)
class Recorded:
    """One run of a scenario at one tier. `files` has the true names of files that are called otherwise in it."""

    scenario: Scenario
    tier: int
    header: Header
    events: tuple[Event, ...]
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> Target:
        return self.header.target

    def without_hook(self) -> Recorded:
        """The same run at tier 2: without anything that came from the hook."""
        return replace(self, tier=2, events=tuple(event for event in self.events if not of_hook(event)))

    def row(self) -> Row:
        """Replay it, and hold the verdicts against what is expected."""
        return row_of(self.scenario, self.tier, self.ticks(), self.files)

    def ticks(self) -> list[Seen]:
        """The verdicts of every tick."""
        snapshots = list(snapshots_of(self.header, self.events))
        return [Seen(snapshot.time - snapshots[0].time, snapshot.diagnosis.verdicts) for snapshot in snapshots]


def read(path: Path, tier: int | None = None, scenarios: Mapping[str, Scenario] = BY_NAME) -> Recorded:
    """Read NAME.tTIER.jsonl.gz, NAME one of the `scenarios`, at a lower tier if one is given.

    Raises ValueError where the file holds lines that are no events.
    """
    name, recorded_tier = scenario_and_tier(path)
    header, events = read_recording(path)
    recorded = Recorded(scenarios[name], recorded_tier, header, tuple(events))
    if events.skipped:
        raise ValueError(f"{path}: {events.skipped} lines are no events")
    return recorded.without_hook() if tier == 2 < recorded_tier else recorded


def cases(folder: Path = RECORDINGS) -> list[tuple[Path, int]]:
    """Recordings and the tiers to judge them at: one of tier 3 stands for tier 2 as well where that has none."""
    paths = list(recordings(folder))
    own = {scenario_and_tier(path) for path in paths}
    chosen = []
    for path in paths:
        name, tier = scenario_and_tier(path)
        if tier == 3 and (name, 2) not in own:
            chosen.append((path, 2))
        chosen.append((path, tier))
    return chosen


def recordings(folder: Path = RECORDINGS) -> Iterator[Path]:
    """The recordings of known scenarios in a folder, in the order of the scenarios, tier 3 after tier 2."""
    order = list(BY_NAME)
    paths = [path for path in folder.glob("*.jsonl.gz") if _NAME.fullmatch(path.name)]
    known = [path for path in paths if scenario_and_tier(path)[0] in BY_NAME]
    return iter(sorted(known, key=lambda path: (order.index(scenario_and_tier(path)[0]), path.name)))


def scenario_and_tier(path: Path) -> tuple[str, int]:
    """What the name of a recording says."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name} is not called NAME.tTIER.jsonl.gz")
    return match["name"].replace(_COLON, ":"), int(match["tier"])


def recording_name(name: str, tier: int) -> str:
    """The file name of a scenario's recording; without a colon, which not every file system takes."""
    return f"{name.replace(':', _COLON)}.t{tier}.jsonl.gz"
