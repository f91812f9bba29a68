"""The reader of the ring: what comes through, and what hostile bytes can do to it (nothing)."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aitop
from aitop.hook.ring import Ring
from aitop.model.steps import HookSample
from aitop.protocol import events as kinds
from aitop.protocol import ring as layout
from aitop.sources.ring import reader as reader_module
from aitop.sources.ring import source as source_module
from aitop.sources.ring.reader import HookRing, find_ring, should_stay
from aitop.sources.ring.source import HookSource
from aitop.sources.source import SourceError


def step_events(number: int, **values: int) -> list[int]:
    """A training step: the end of an optimizer's step, `number` microseconds ago its beginning."""
    now = time.monotonic_ns()
    event = {
        "kind": kinds.OPTIMIZER_ENDS,
        "start": now - number * 1000,
        "end": now,
        "a": 1,
        "b": -1,
        **values,
    }
    return [event[name] for name in ("kind", "start", "end", "a", "b")]


def lengths(sample: HookSample) -> list[int]:
    return [round(step.optimizer * 1e6) for step in sample.steps]


@pytest.fixture
def ring():
    made = Ring("attach")
    yield made
    made.close()


@pytest.fixture
def reader(ring):
    opened = HookRing(os.getpid())
    yield opened
    opened.close()


def test_the_areas_of_the_ring_do_not_overlap():
    assert layout.WORD * layout.HEADER_WORDS <= layout.HEADER_SIZE
    assert reader_module.slot_offset(layout.SLOTS) <= layout.WORD * layout.W_WRITING
    assert reader_module._EVENT.size == layout.STRIDE


def test_every_kind_of_event_has_a_number_of_its_own():
    numbers = {name: value for name, value in vars(kinds).items() if name.isupper() and isinstance(value, int)}
    count = numbers.pop("KINDS")
    assert numbers.pop("NOT_MEASURED") == -1
    assert sorted(numbers.values()) == list(range(count))


def test_events_become_steps(ring, reader):
    for number in range(1, 4):
        ring.write(step_events(number * 100))
    sample = reader.read(time.monotonic())
    assert [step.index for step in sample.steps] == [1, 2], "where the first began was not seen"
    assert lengths(sample) == pytest.approx([0, 0], abs=300) and sample.lost == 0
    assert all(step.optimizer <= step.seconds for step in sample.steps)
    assert reader.read(time.monotonic()).steps == ()
    ring.write(step_events(100))
    assert [step.index for step in reader.read(time.monotonic()).steps] == [3]


def test_a_late_reader_begins_with_the_last_events(ring, reader):
    for _ in range(reader_module.FIRST_EVENTS + 100):
        ring.write(step_events(1))
    ring.write_progress(5000, 0)
    sample = reader.read(time.monotonic())
    assert len(sample.steps) == reader_module.FIRST_EVENTS - 1
    assert (sample.lost, sample.steps[-1].index) == (0, 5000)


def test_overwritten_events_are_counted(ring, reader):
    reader.read(time.monotonic())
    for count in (layout.CAPACITY // 2, layout.CAPACITY // 2, 10):
        ring.write([word for _ in range(count) for word in step_events(1)])
    sample = reader.read(time.monotonic())
    assert (sample.lost, len(sample.steps)) == (10, layout.CAPACITY - 1)


def test_more_than_has_room_at_once(ring, reader):
    reader.read(time.monotonic())
    block = [word for _ in range(layout.CAPACITY + 7) for word in step_events(1)]
    ring.write(block)
    sample = reader.read(time.monotonic())
    assert (sample.lost, len(sample.steps)) == (0, layout.CAPACITY - 1)


def test_events_that_are_overwritten_while_being_read_are_dropped(ring, reader, monkeypatch):
    reader.read(time.monotonic())
    for _ in range(100):
        ring.write(step_events(1))
    whole, read = reader._pread, []

    def overtaken(size, offset):
        data = whole(size, offset)
        if offset >= layout.RECORDS_AT and not read:
            read.append(offset)
            ring._words[layout.W_WRITING] = layout.CAPACITY + 40
        return data

    monkeypatch.setattr(reader, "_pread", overtaken)
    sample = reader.read(time.monotonic())
    assert (sample.lost, len(sample.steps)) == (40, 59)


def test_what_is_no_word_is_not_written(ring, reader):
    for words in ([1, 2, 3, 4, 2**63], [1, 2, 3, 4, "five"]):
        with pytest.raises((OverflowError, TypeError)):
            ring.write(words)
    assert ring.written == 0
    ring.write(step_events(1) + step_events(1))
    assert len(reader.read(time.monotonic()).steps) == 1


def test_a_rank_that_is_none_costs_no_other_fact(ring, reader):
    facts = {"way": "run", "python": "3.11.0", "torch": "2.0", "rank": -1, "world_size": 2**70}
    ring.write_facts(json.dumps({"facts": facts}).encode())
    found = reader.read(time.monotonic()).facts
    assert (found.way, found.rank, found.world_size) == ("run", None, None)


def test_facts_only_when_they_changed(ring, reader):
    facts = {"way": "run", "python": "3.11.0", "torch": "2.0", "loaders": [{"workers": 2}]}
    allocator = {"device": 0, "allocated": 10, "reserved": 20}
    ring.write_facts(json.dumps({"facts": facts, "allocators": [allocator]}).encode())
    sample = reader.read(time.monotonic())
    assert sample.facts.loaders[0].workers == 2
    assert sample.allocators[0].reserved == 20
    assert reader.read(time.monotonic()).facts is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 5000,
        b'{"facts": {"way": "run", "python": "3", "torch": "2", "cost_us": NaN}}',
        b'{"facts": {"way": "run", "python": "3", "torch": "2", "cost_us": 1e999}}',
        b'{"facts": {"way": "run", "python": "3", "torch": "2", "parameters": -1}}',
        b'{"facts": {"way": "run", "python": "3", "torch": "2", "parameters": 99999999999999999999999}}',
        b'{"facts": {"way": "' + b"x" * 1001 + b'", "python": "3", "torch": "2"}}',
        b'{"facts": {"way": "run", "python": "3", "torch": "2", "loaders": [{"workers": -9}]}}',
    ],
)
def test_facts_that_make_no_sense_are_none(ring, reader, text):
    ring.write_facts(text)
    assert reader.read(time.monotonic()).facts is None


@pytest.mark.parametrize(
    "nonsense",
    [{"kind": 99}, {"kind": -1}, {"start": 2**62}, {"start": 0}, {"end": 0}, {"end": 2**62}, {"start": -5}],
)
def test_events_that_make_no_sense_are_dropped(ring, reader, nonsense):
    ring.write(step_events(1))
    ring.write(step_events(1, **nonsense))
    ring.write(step_events(1))
    sample = reader.read(time.monotonic())
    assert (len(sample.steps), sample.lost) == (1, 1)


@pytest.fixture
def scratch(monkeypatch):
    """A function that opens a reader of memory that a test can write to, with no hook behind it."""
    opened = []

    def open_scratch() -> HookRing:
        monkeypatch.setattr(reader_module, "_open", lambda pid, access: ("", os.memfd_create("scratch")))
        opened.append(HookRing(os.getpid()))
        return opened[-1]

    yield open_scratch
    for each in opened:
        each.close()


word = st.integers(0, 2**64 - 1) | st.integers(0, 5000)
# What a reader looks at after the words that say that this is a ring; each is often such that it goes on reading.
WORDS = {
    layout.W_PID: word,
    layout.W_WRITTEN: st.just(40) | st.integers(0, 60) | word,
    layout.W_STATE: st.just(layout.STATE_INSTALLED) | st.integers(0, 4),
    layout.W_WAY: st.integers(0, 2) | st.integers(0, 2) | st.integers(0, 2**64 - 1),
    layout.W_FACTS_SEQ: word,
    layout.W_FACTS_LENGTH: st.integers(0, 300) | st.integers(0, layout.JSON_ROOM + 1),
    layout.W_BURST: word,
    layout.W_SLOTS: word,
    layout.W_SLOTS + 1: word,
    layout.W_WRITING: st.just(40) | st.integers(0, 60) | word,
    layout.W_STEPS: word,
    layout.W_TRAINS_UNTIL: word,
    layout.W_SEQUENCE: word,
    layout.W_ALIVE: st.integers(0, 3) | word,
}


def header_of(values: dict[int, int]) -> bytes:
    words = [0] * layout.HEADER_WORDS
    words[layout.W_MAGIC], words[layout.W_VERSION] = layout.MAGIC, layout.VERSION
    words[layout.W_STRIDE], words[layout.W_CAPACITY] = layout.STRIDE, layout.CAPACITY
    words[layout.W_JSON_ROOM] = layout.JSON_ROOM
    for place, value in values.items():
        words[place] = value
    return struct.pack(f"={len(words)}Q", *words)


headers = st.fixed_dictionaries(WORDS).map(header_of)
signed = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
# Nanoseconds from an event's start to now, and to its end.
ago, long = (st.integers(0, most) | st.integers(-(2**62), 2**62) for most in (2**40, 2**20))
kind = st.just(kinds.FORWARD_ALONE) | st.integers(0, kinds.KINDS - 1) | signed
event = st.tuples(kind, ago, long, signed, signed)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=headers | st.binary(max_size=600),
    facts=st.binary(max_size=300),
    events=st.lists(event, max_size=40) | st.binary(max_size=2000),
    size=st.just(layout.SIZE) | st.integers(0, layout.SIZE),
    read_up_to=st.integers(0, 50) | st.none(),
)
def test_no_bytes_hurt_the_reader(scratch, header, facts, events, size, read_up_to):
    reader = scratch()
    os.ftruncate(reader._fd, size)
    if isinstance(events, list):
        now = time.monotonic_ns()
        events = b"".join(
            struct.pack("=5q", kind, now - before, min(now - before + lasts, 2**63 - 1), a, b)
            for kind, before, lasts, a, b in events
        )
    os.pwrite(reader._fd, header, 0)
    os.pwrite(reader._fd, facts, layout.HEADER_SIZE)
    os.pwrite(reader._fd, events, layout.RECORDS_AT)
    reader._read_up_to = read_up_to
    for _ in range(2):
        sample = reader.read(time.monotonic())
        assert isinstance(sample, HookSample)
        assert 0 <= sample.lost <= 10**9
        for step in sample.steps:
            assert 0 <= step.forward <= step.seconds
            assert step.end <= time.monotonic() + 2
    assert reader.state in ("installed", "removed", "unreadable")
    reader.renew()
    reader.release()
    reader.close()


def test_a_closed_ring_is_not_found():
    made = Ring("run")
    assert find_ring(os.getpid()) is not None
    assert should_stay(os.getpid())
    made.close()
    assert find_ring(os.getpid()) is None
    assert not should_stay(os.getpid())


def test_no_ring_and_no_process():
    with pytest.raises(SourceError, match="no hook") as error:
        HookRing(os.getpid())
    assert error.value.state == "absent"
    with pytest.raises(SourceError, match="gone"):
        HookRing(2**22 - 1)
    assert find_ring(2**22 - 1) is None


def test_a_forked_child_is_not_taken_for_its_parent(ring):
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b".")
        os.read(done[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"."
        assert find_ring(child) is None
        with pytest.raises(SourceError):
            HookRing(child)
    finally:
        os.write(done[1], b".")
        os.waitpid(child, 0)
        for end in (*ready, *done):
            os.close(end)


def test_the_memory_cannot_be_cut_from_under_the_process(ring):
    fd = os.open(find_ring(os.getpid()), os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 10)
    finally:
        os.close(fd)


def test_leases_are_counted_apart(ring, reader, monkeypatch):
    other = HookRing(os.getpid())
    monkeypatch.setattr(os, "getpid", lambda: 4_000_000)
    other.renew()
    monkeypatch.undo()
    reader.renew()
    slots = reader_module.decode_slots(reader._pread(layout.HEADER_SIZE, 0))
    assert sorted(pid for pid, _ in slots if pid) == sorted([os.getpid(), 4_000_000])
    now = time.monotonic_ns()
    assert should_stay(os.getpid())
    reader.release()
    assert ring.wanted(now)
    assert not ring.wanted(now + 6 * 10**9)
    other.close()


class TestSource:
    """Several processes, each a Python without torch that only holds a ring."""

    CODE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from aitop.hook.ring import Ring
ring = Ring("attach")
for _ in range(4):
    end = time.monotonic_ns()
    ring.write([7, end - 1000, end, 1, -1])
print("ready", flush=True)
sys.stdin.read()
"""

    @pytest.fixture
    def start(self):
        started = []

        def begin():
            root = os.path.dirname(aitop.__file__)
            command = [sys.executable, "-S", "-c", self.CODE, os.path.dirname(root)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            started.append(process)
            assert process.stdout.readline() == b"ready\n"
            return process

        yield begin
        for process in started:
            process.stdin.close()
            process.stdout.close()
            process.wait(10)

    def test_ranks_that_come_and_go(self, start, monkeypatch):
        entered, withdrawn = [], []

        def way_in(pid):
            entered.append(pid)
            raise SourceError("denied", "not allowed", "be root")

        one, other = start(), start()
        pids = [one.pid, other.pid, 2**22 - 1]
        source = HookSource(lambda: pids, way_in, withdrawn.append)
        source.open()
        samples = source.read()
        assert {sample.pid: len(sample.steps) for sample in samples} == {one.pid: 3, other.pid: 3}
        assert entered == [2**22 - 1]
        assert source.read() == [] and source.interval == 0.25
        monkeypatch.setattr(source_module, "MANY", 1)
        assert source.read() == [] and source.interval == 1.0
        other.stdin.close()
        other.wait(10)
        assert source.read() == []
        assert list(source._rings) == [one.pid]
        pids[:] = [one.pid]
        assert source.read() == [] and 2**22 - 1 in withdrawn and one.pid not in withdrawn
        source.close()
        assert not should_stay(one.pid)

    def test_a_queued_request_is_withdrawn_although_the_source_was_opened_anew(self):
        wanted, entered, withdrawn = [os.getpid()], [], []

        def way_in(pid):
            entered.append(pid)
            raise SourceError("denied", "it is in a long call", transient=True)

        source = HookSource(lambda: wanted, way_in, withdrawn.append)
        for _ in range(2):
            with pytest.raises(SourceError, match="long call"):
                source.open()
            source.close()
        assert (entered, withdrawn) == ([os.getpid()] * 2, []), "it is tried again at once"
        wanted.clear()
        with pytest.raises(SourceError, match="no process to hook"):
            source.open()
        assert withdrawn == [os.getpid()]

    def test_without_any_ring_it_says_why(self):
        def way_in(pid):
            raise SourceError("denied", "not allowed", "be root")

        source = HookSource(lambda: [os.getpid()], way_in, way_in)
        with pytest.raises(SourceError, match="not allowed") as error:
            source.open()
        assert (error.value.state, error.value.remedy) == ("denied", "be root")
        with pytest.raises(SourceError, match="no process"):
            HookSource(list, way_in, way_in).open()

    def test_a_collective_that_never_ends_is_told_once(self):
        made = []
        source = HookSource(lambda: [os.getpid()], lambda pid: made.append(Ring("attach")), made.append)
        source.open()
        assert source.read() == []
        made[0].write_sequence(501)
        assert [sample.sequence for sample in source.read()] == [501]
        assert source.read() == []
        source.close()
        made[0].close()

    @pytest.mark.parametrize("late", [True, False], ids=["after the end", "before the end"])
    def test_a_ring_that_nobody_takes_is_closed(self, monkeypatch, late):
        ring, opened, answers = Ring("attach"), [], threading.Event()

        def enter(source, pid):
            answers.wait(20)
            opened.append(HookRing(pid))
            return opened[-1]

        monkeypatch.setattr(HookSource, "_enter", enter)
        monkeypatch.setattr(source_module, "LONGEST_ENTRY_SECONDS", 0.05)
        source = HookSource(lambda: [os.getpid()], list, list)
        with pytest.raises(SourceError, match="on its way in"):
            source.open()
        (entry,) = [one for one in threading.enumerate() if one.name == f"aitop-hook-{os.getpid()}"]
        for do in (source.close, answers.set, entry.join) if late else (answers.set, entry.join, source.close):
            do()
        assert [reader._fd for reader in opened] == [-1]
        monkeypatch.undo()
        source.open()
        assert list(source._rings) == [os.getpid()]
        source.close()
        ring.close()

    def test_the_way_in_is_gone_when_there_is_no_hook(self):
        made = []
        source = HookSource(lambda: [os.getpid()], lambda pid: made.append(Ring("attach")), made.append)
        source.open()
        assert source.read() == []
        assert len(made) == 1
        made[0].close()
        with pytest.raises(SourceError) as error:
            source._pids = list
            source.read()
        assert error.value.state == "absent"
        source.close()
