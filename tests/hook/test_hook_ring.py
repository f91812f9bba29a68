"""The reader of the ring: what comes through, and what hostile bytes can do to it (nothing)."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aitop.hook import layout
from aitop.hook.ring import Presence, Ring
from aitop.model.steps import HookSample
from aitop.sources import hook_ring, ring_format
from aitop.sources.hook_ring import HookRing, HookSource, find_ring, should_stay
from aitop.sources.source import SourceError


def fields(number: int, **values: int) -> tuple[int, ...]:
    """A record of a second's length, all else 0 or not measured."""
    known = {"index": number, "kind": 0, "end": time.monotonic_ns(), "seconds": 10**9, **values}
    unknown = ("transfer", "cpu", "samples", "queue_ready")
    return tuple(
        known.get(name, -1 if name in unknown or name.startswith("device") else 0) for name in layout.FIELDS[1:-1]
    )


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


def test_both_sides_state_the_same_layout():
    names = ("MAGIC", "VERSION", "HEADER_SIZE", "JSON_ROOM", "RECORDS_AT", "CAPACITY", "STRIDE", "SIZE", "WAYS")
    names += ("W_CONTROL", "W_BURST", "W_SLOTS", "SLOTS", "CONTROL_LEAVE")
    names += ("STATE_INSTALLED", "STATE_REMOVING", "STATE_REMOVED")
    assert all(getattr(layout, name) == getattr(ring_format, name) for name in names)
    assert len(layout.FIELDS) == ring_format.FIELD_COUNT
    assert struct.calcsize(layout.RECORD_FORMAT) <= layout.STRIDE
    assert f"/memfd:{layout.MEMFD_NAME} (deleted)" == ring_format.MEMFD_LINK


def test_a_record_comes_through(ring, reader):
    values = {name: 1000 * number for number, name in enumerate(layout.FIELDS[5:15])}
    ring.write(fields(7, kind=1, samples=32, queue_ready=3, cpu=5 * 10**8, device_idle=2 * 10**8, **values))
    (step,) = reader.read(time.monotonic()).steps
    assert (step.index, step.kind, step.samples, step.queue_ready) == (7, "infer", 32, 3)
    assert step.seconds == pytest.approx(1.0)
    assert step.cpu == pytest.approx(0.5)
    assert step.device_idle == pytest.approx(0.2)
    assert step.device_forward is None
    assert [getattr(step, name) for name in values] == pytest.approx([value * 1e-9 for value in values.values()])


def test_only_new_steps_and_the_first_read_the_last_64(ring, reader):
    for index in range(100):
        ring.write(fields(index))
    first = reader.read(time.monotonic())
    assert [step.index for step in first.steps] == list(range(36, 100))
    assert first.lost == 0
    assert reader.read(time.monotonic()).steps == ()
    ring.write(fields(100))
    assert [step.index for step in reader.read(time.monotonic()).steps] == [100]


def test_overwritten_records_are_counted(ring, reader):
    reader.read(time.monotonic())
    for index in range(layout.CAPACITY + 10):
        ring.write(fields(index))
    sample = reader.read(time.monotonic())
    assert (sample.lost, len(sample.steps)) == (10, layout.CAPACITY)
    assert [step.index for step in sample.steps] == list(range(10, layout.CAPACITY + 10))


def test_facts_only_when_they_changed(ring, reader):
    facts = {"way": "run", "python": "3.11.0", "torch": "2.0", "loaders": [{"workers": 2, "worker_pids": [5]}]}
    allocator = {"device": 0, "allocated": 10, "reserved": 20}
    ring.write_facts(json.dumps({"facts": facts, "allocators": [allocator]}).encode())
    sample = reader.read(time.monotonic())
    assert sample.facts.loaders[0].worker_pids == (5,)
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
        b'{"facts": {"way": "' + b"x" * 300 + b'", "python": "3", "torch": "2"}}',
        b'{"facts": {"way": "run", "python": "3", "torch": "2", "loaders": [{"workers": 1, "worker_pids": [-9]}]}}',
    ],
)
def test_facts_that_make_no_sense_are_none(ring, reader, text):
    ring.write_facts(text)
    assert reader.read(time.monotonic()).facts is None


@pytest.mark.parametrize(
    "nonsense",
    [{"kind": 2}, {"seconds": -1}, {"seconds": 2**62}, {"end": 0}, {"end": 2**62}, {"index": -5}],
)
def test_records_that_make_no_sense_are_dropped(ring, reader, nonsense):
    ring.write(fields(1, **nonsense))
    ring.write(fields(2))
    sample = reader.read(time.monotonic())
    assert [step.index for step in sample.steps] == [2]
    assert sample.lost == 1


def test_phases_longer_than_the_step_are_clamped(ring, reader):
    ring.write(fields(1, forward=2**62, backward=-5, samples=2**62, forwards=2**62, cpu=2**62))
    (step,) = reader.read(time.monotonic()).steps
    assert (step.forward, step.backward, step.samples, step.cpu) == (pytest.approx(1.0), 0.0, None, pytest.approx(1.0))
    assert step.forwards <= 10**6


@pytest.fixture(scope="module")
def scratch():
    """A reader whose bytes a test can set, without any ring."""
    opened = HookRing.__new__(HookRing)
    opened.pid, opened._read_up_to, opened._facts_seq, opened._slot = 1, None, -1, None
    opened._fd = os.memfd_create("scratch")
    yield opened
    opened.close()


def header_words(values: list[int]) -> bytes:
    good = [ring_format.MAGIC, ring_format.VERSION, 1, ring_format.STRIDE, ring_format.CAPACITY, ring_format.JSON_ROOM]
    return struct.pack("=13Q", *good, *values)


word = st.integers(0, 2**64 - 1) | st.integers(0, 5000)


@settings(max_examples=150, deadline=None)
@given(
    header=st.binary(max_size=600) | st.lists(word, min_size=7, max_size=7).map(header_words),
    facts=st.binary(max_size=300),
    records=st.binary(max_size=2000) | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=25, max_size=25),
    size=st.integers(0, ring_format.SIZE),
    number=st.integers(0, 8),
)
def test_no_bytes_hurt_the_reader(scratch, header, facts, records, size, number):
    os.ftruncate(scratch._fd, 0)
    os.ftruncate(scratch._fd, size)
    if isinstance(records, list):
        records[0] = records[-1] = number
        records = struct.pack("=25q", *records)
    os.pwrite(scratch._fd, header, 0)
    os.pwrite(scratch._fd, facts, ring_format.HEADER_SIZE)
    os.pwrite(scratch._fd, records, ring_format.RECORDS_AT)
    scratch._read_up_to = 0
    for _ in range(2):
        sample = scratch.read(time.monotonic())
        assert isinstance(sample, HookSample)
        assert 0 <= sample.lost <= 10**9
        for step in sample.steps:
            assert 0 <= step.forward <= step.seconds
            assert step.end <= time.monotonic() + 2
    assert scratch.state in ("installed", "removing", "removed", "unreadable")
    scratch.renew()
    scratch.release()


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
    presence = Presence()
    assert presence[0] == 1
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], bytes([presence[0]]))
        os.read(done[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"\0"
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
    other.renew(5)
    monkeypatch.undo()
    reader.renew(5)
    slots = ring_format.decode_slots(reader._pread(ring_format.HEADER_SIZE, 0))
    assert sorted(pid for pid, _ in slots if pid) == sorted([os.getpid(), 4_000_000])
    now = time.monotonic_ns()
    assert should_stay(os.getpid())
    reader.release()
    assert ring.wanted(now, stays=False)
    assert not ring.wanted(now + 6 * 10**9, stays=False)
    assert ring.wanted(now + 6 * 10**9, stays=True)
    other.close()


class TestSource:
    """Several processes, each a Python without torch that only holds a ring."""

    CODE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from aitop.hook.ring import Ring
ring = Ring("attach")
for index in range(1, 4):
    end = time.monotonic_ns()
    ring.write((index, 0, end, 1000) + (0,) * 9 + (-1,) * 2 + (0,) * 2 + (-1,) * 6)
print("ready", flush=True)
sys.stdin.read()
"""

    @pytest.fixture
    def start(self):
        started = []

        def begin():
            root = os.path.dirname(os.path.dirname(os.path.abspath(hook_ring.__file__)))
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

    def test_ranks_that_come_and_go(self, start):
        entered = []

        def way_in(pid):
            entered.append(pid)
            raise SourceError("denied", "not allowed", "be root")

        one, other = start(), start()
        pids = [one.pid, other.pid, 2**22 - 1]
        source = HookSource(lambda: pids, way_in)
        source.open()
        samples = source.read()
        assert {sample.pid: len(sample.steps) for sample in samples} == {one.pid: 3, other.pid: 3}
        assert entered == [2**22 - 1]
        assert source.read() == []
        other.stdin.close()
        other.wait(10)
        assert source.read() == []
        assert list(source._rings) == [one.pid]
        pids[:] = [one.pid]
        source.close()
        assert not should_stay(one.pid)

    def test_without_any_ring_it_says_why(self):
        def way_in(pid):
            raise SourceError("denied", "not allowed", "be root")

        source = HookSource(lambda: [os.getpid()], way_in)
        with pytest.raises(SourceError, match="not allowed") as error:
            source.open()
        assert (error.value.state, error.value.remedy) == ("denied", "be root")
        with pytest.raises(SourceError, match="no process"):
            HookSource(list, way_in).open()

    def test_the_way_in_is_gone_when_there_is_no_hook(self):
        made = []
        source = HookSource(lambda: [os.getpid()], lambda pid: made.append(Ring("attach")))
        source.open()
        assert source.read() == []
        assert len(made) == 1
        made[0].close()
        with pytest.raises(SourceError) as error:
            source._pids = list
            source.read()
        assert error.value.state == "absent"
        source.close()
