"""The transformations of a recording change what they say and nothing else, and trimming keeps what was recorded."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from expected import BY_NAME
from msgspec import structs
from recorded import Recorded, read, recording_name
from renamed import WORDS, names_defined_for, renamed
from transform import shuffled, without_source
from trim import trimmed

from aitop.model.event import Event
from aitop.model.snapshot import GrowthSite, GrowthSites
from aitop.model.stacks import Frame, Look, StackCount, StackWindow, ThreadState
from aitop.model.steps import HookFacts, HookSample, LoaderInfo
from aitop.sources.replay import read_recording

SLOW_LOADER = Path(__file__).parents[1] / "recordings" / "slow-loader.jsonl.gz"


@pytest.fixture(scope="module")
def slow_loader() -> Recorded:
    header, events = read_recording(SLOW_LOADER)
    return Recorded(BY_NAME["slow-loader"], 3, header, tuple(events))


def user_frames(recorded: Recorded) -> list[Frame]:
    return [f for event in recorded.events if isinstance(event, StackWindow) for f in event.frames if f.user]


def with_event(recorded: Recorded, event: Event) -> Recorded:
    return replace(recorded, events=(event,))


def test_renaming_replaces_every_name_of_the_user_and_no_other(slow_loader: Recorded) -> None:
    other = renamed(1)(slow_loader)
    before, after = user_frames(slow_loader), user_frames(other)

    assert before
    for old, new in zip(before, after, strict=True):
        assert old.line == new.line
        assert not set(Path(old.file).parts[1:]) & set(Path(new.file).parts)
        own = re.compile(r"\w+")
        parts = {part for part in own.findall(old.function) if part.startswith("__") or part in ("module", "locals")}
        assert set(own.findall(old.function)) & set(own.findall(new.function)) <= parts
    libraries = [
        [f for e in each.events if isinstance(e, StackWindow) for f in e.frames if not f.user]
        for each in (slow_loader, other)
    ]
    assert libraries[0] == libraries[1]


def test_renaming_is_consistent_and_never_makes_two_names_one(slow_loader: Recorded) -> None:
    pairs = zip(user_frames(slow_loader), user_frames(renamed(2)(slow_loader)), strict=True)
    given = {(old.file, old.function, old.text): (new.file, new.function, new.text) for old, new in pairs}

    assert len(set(given.values())) == len(given)
    other = renamed(3)(slow_loader)
    assert user_frames(other) != user_frames(renamed(2)(slow_loader))
    assert user_frames(other) == user_frames(renamed(3)(slow_loader))


def test_renaming_reaches_command_facts_threads_and_growth(slow_loader: Recorded) -> None:
    file = "/home/user/project/aitop/workloads/slow_loader.py"
    own = sorted(names_defined_for(slow_loader.scenario))
    dataset = next(name for name in own if name[0].isupper())
    frame = Frame(
        f"{dataset}.__getitem__", file, 17, True, f"for {dataset} in loader:  # say 'loader'", "while loader:"
    )
    window = StackWindow(
        time=1.0,
        seconds=1.0,
        rate=20.0,
        frames=(frame,),
        stacks=(
            StackCount(1, f"Thread-1 ({own[0]})", False, (0,), 1),
            StackCount(1, "Thread-2 (_serve)", False, (0,), 1),
        ),
    )
    facts = HookFacts(way="run", python="3", torch="2", root=dataset, optimizers=("Adam",))
    facts = structs.replace(facts, loaders=(LoaderInfo(workers=1, dataset=dataset),))
    site = GrowthSite(file=file, line=3, function="main", text="loader.append(1)")
    events = (window, HookSample(time=1.0, pid=1, facts=facts), GrowthSites(time=1.0, sites=(site,)))

    other = renamed(0)(replace(slow_loader, events=events))
    new_window, new_hook, new_growth = other.events

    assert isinstance(new_window, StackWindow)
    assert isinstance(new_hook, HookSample)
    assert isinstance(new_growth, GrowthSites)
    new = new_window.frames[0]
    assert new.function.endswith(".__getitem__")
    assert re.fullmatch(r"for \w+ in (\w+):  # \w+ '\1'", new.text or "")
    assert "loader" not in (new.text or "").replace(new.file, "").split()
    assert own[0] not in new_window.stacks[0].thread
    assert new_window.stacks[1].thread == "Thread-2 (_serve)"
    assert new_hook.facts is not None
    assert new_hook.facts.root == new_hook.facts.loaders[0].dataset == new.function.partition(".")[0]
    assert new_hook.facts.optimizers == ("Adam",)
    assert new_growth.sites[0].file == new.file
    assert new_growth.sites[0].text != "loader.append(1)"
    assert re.fullmatch(r"\w+\.\w+\(1\)", new_growth.sites[0].text)
    assert other.files[Path(new.file).name] == "slow_loader.py"
    assert "slow_loader" not in other.target.command + str(other.target.script)
    assert other.target.command == f"python {Path(new.file).name}"


def test_misleading_words_come_first(slow_loader: Recorded) -> None:
    names = {frame.function.partition(".")[0].lower() for frame in user_frames(renamed(1)(slow_loader))}

    assert names - {"<module>"} <= {word.replace("_", "") for word in WORDS} | set(WORDS)


def test_without_source_no_text_is_left(slow_loader: Recorded) -> None:
    other = without_source()(slow_loader)

    assert any(frame.text for frame in user_frames(slow_loader))
    assert not any(frame.text or frame.guard for frame in user_frames(other))
    assert not any(isinstance(event, GrowthSites) for event in other.events)
    assert len(user_frames(other)) == len(user_frames(slow_loader))


def test_shuffling_keeps_every_stack(slow_loader: Recorded) -> None:
    frames = tuple(Frame(f"f{n}", "/x.py", n, True) for n in range(20))
    stacks = tuple(StackCount(n, "MainThread", True, (n, n + 1, n + 2), n + 1) for n in range(10))
    states = tuple(ThreadState(pid=n, thread="t", main=True, asked=4, running=n, waits={}) for n in range(10))
    look = Look(pid=1, kind="gil", asked=9, stacks=stacks)
    window = StackWindow(time=1.0, seconds=1.0, rate=20.0, frames=frames, stacks=stacks, looks=(look,), states=states)

    def resolved(window: StackWindow, stacks: tuple[StackCount, ...]) -> Counter[tuple[object, ...]]:
        return Counter((s.pid, s.thread, tuple(window.frames[i] for i in s.frames), s.count) for s in stacks)

    (other,) = shuffled(1)(with_event(slow_loader, window)).events

    assert isinstance(other, StackWindow)
    assert other.frames != window.frames
    assert resolved(other, other.stacks) == resolved(window, window.stacks)
    assert resolved(other, other.looks[0].stacks) == resolved(window, look.stacks)
    assert other.stacks != window.stacks
    assert other.states != states
    assert sorted(other.states, key=lambda each: each.pid) == list(states)


def test_trimming_keeps_the_verdicts_and_no_path_of_the_machine(slow_loader: Recorded, tmp_path: Path) -> None:
    raw, out = tmp_path / recording_name("slow-loader", 3), tmp_path / "out" / recording_name("slow-loader", 3)
    out.parent.mkdir()
    with gzip.open(SLOW_LOADER, "rb") as file:
        text = file.read().replace(b"/home/ana/train/", b"/root/secret/aitop/workloads/")
    # As it is recorded, with digits that nothing depends on.
    raw.write_bytes(gzip.compress(re.sub(rb"(\.\d+)(?=[,}\]])", rb"\g<1>02468", text)))

    size = trimmed(raw, out)

    assert size < raw.stat().st_size
    assert read(out).row().answer == read(raw).row().answer
    with gzip.open(out, "rb") as file:
        assert b"/root/" not in file.read()
