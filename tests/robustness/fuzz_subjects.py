"""What fuzz.py feeds: each subject takes bytes to the end of the way that hostile bytes can go.

A subject raises Finding (or anything else: that is a finding as well) where the bytes did what they must not.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import fuzz_subjects_text as text
import msgspec
from fuzz_subjects_text import Finding, check_recordable

from aitop.commands.compare import read_run, render
from aitop.diagnosis.run_comparison import compare_runs
from aitop.engine.core import Engine
from aitop.engine.replay import last_snapshot
from aitop.errors import AitopError, UnreadableRecordingError
from aitop.model.event import Event
from aitop.model.run import Run
from aitop.model.serving import Histogram, IterationRecord, Pause, RequestRecord, ServerSample
from aitop.model.snapshot import Snapshot, Tick
from aitop.model.stacks import StackDump, StackWindow
from aitop.model.steps import HookSample
from aitop.outputs.formats.stacks import sampled, to_collapsed, to_speedscope
from aitop.outputs.formats.table import to_csv
from aitop.outputs.formats.trace import to_trace
from aitop.outputs.html.page import to_html
from aitop.outputs.report import as_json, report_of
from aitop.outputs.text import to_text
from aitop.protocol import ring
from aitop.protocol.events import KINDS
from aitop.sources.replay import Recording, read_recording
from aitop.sources.ring.reader import HookRing
from aitop.sources.source import SourceError
from aitop.sources.stacks import dump, speedscope
from aitop.sources.stacks.window import CodeOfProcesses, WindowBuilder

if TYPE_CHECKING:
    from fuzz_screen import Screen

RECORDINGS = Path(__file__).parents[1] / "recordings"
MOST_EVENTS = 100
OWN_SCRIPTS = 2
"""Of the HTML report: its data and what draws them."""
FACTS = {"facts": {"way": "attach", "python": "3.11", "torch": "2.7", "watches": ["transfer", "blocking"]}}


class Subject(NamedTuple):
    """`seeds` are good inputs, `feed` takes any, `json_at` says where texts of JSON begin and end in one."""

    name: str
    seeds: Callable[[], list[bytes]]
    feed: Callable[[bytes], None]
    json_at: Callable[[bytes], list[tuple[int, int]]]


# The ring: 35 words of header, JSON as long as the header says, then events.

WORDS = ring.W_TRAINS_UNTIL + 1
_ring_fd = -1
_screen: Screen | None = None


def ring_seeds() -> list[bytes]:
    """Rings of runs that train, serve and copy, and one that has only begun."""
    area = json.dumps(FACTS).encode()
    now = time.monotonic_ns()
    seeds = []
    for kinds in ((0, 1, 3, 5, 6, 7, 16, 17, 18), (4, 4, 14), tuple(range(KINDS)), ()):
        events = [
            (kind, now - 10**9 + step * 10**7 + at * 10**6, now - 10**9 + step * 10**7 + (at + 1) * 10**6, 1, 32)
            for step in range(12)
            for at, kind in enumerate(kinds)
        ]
        seeds.append(_header(len(events), len(area)) + area + b"".join(struct.pack("=5q", *event) for event in events))
    return seeds


def _header(events: int, facts: int) -> bytes:
    words = [0] * WORDS
    words[:13] = (
        ring.MAGIC,
        ring.VERSION,
        os.getpid(),
        ring.STRIDE,
        ring.CAPACITY,
        ring.JSON_ROOM,
        events,
        1,
        0,
        0,
        0,
        2,
        facts,
    )
    words[ring.W_WRITING], words[ring.W_STEPS], words[ring.W_TRAINS_UNTIL] = events, 12, time.monotonic_ns() + 10**9
    return struct.pack(f"={WORDS}Q", *words)


def feed_ring(data: bytes) -> None:
    """Through the ring's reader and the step maker to a sample that can be recorded; twice, as the next bytes come."""
    global _ring_fd
    if _ring_fd < 0:
        _ring_fd = os.memfd_create("aitop-hook", os.MFD_CLOEXEC)
        os.ftruncate(_ring_fd, ring.SIZE)
        os.pwrite(_ring_fd, ring_seeds()[0][: 8 * WORDS], 0)
    good = _header(0, 0)
    head, body = data[: 8 * WORDS].ljust(8 * WORDS, b"\0"), data[8 * WORDS :]
    length = struct.unpack_from("=Q", head, 8 * 12)[0]
    facts, events = body[: min(length, ring.JSON_ROOM)], body[min(length, ring.JSON_ROOM) :]
    os.pwrite(_ring_fd, good, 0)
    try:
        reader = HookRing(os.getpid())
    except SourceError:
        return
    try:
        os.pwrite(_ring_fd, events, ring.RECORDS_AT)
        os.pwrite(_ring_fd, facts, ring.HEADER_SIZE)
        os.pwrite(_ring_fd, head, 0)
        for _ in range(2):
            reader.renew()
            check_recordable(reader.read(time.monotonic()))
            written = struct.unpack_from("=Q", head, 8 * 6)[0]
            os.pwrite(_ring_fd, struct.pack("=Q", (written + 64) % 2**64), 8 * 6)
        reader.release()
        _ = reader.state, reader.way
    finally:
        reader.close()


def forget_ring() -> None:
    """Close the ring that was fed, which others would find in this process."""
    global _ring_fd
    if _ring_fd >= 0:
        os.close(_ring_fd)
        _ring_fd = -1


# A recording, to the end of the report.


def recording_seeds() -> list[bytes]:
    """A few events of each type from the start, the middle and the end of real recordings, with ticks."""
    seeds = []
    for path in sorted(RECORDINGS.glob("*.jsonl.gz")):
        lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
        for start in (1, len(lines) // 2, max(1, len(lines) - 80)):
            taken: Counter[bytes] = Counter()
            chosen = [lines[0]]
            for line in lines[start : start + 200]:
                kind = line[:24]
                taken[kind] += 1
                if taken[kind] <= 2:
                    chosen.append(line)
            seeds.append(b"".join(chosen))
    return [*seeds, served_seed(lines[0])]


def served_seed(header: bytes) -> bytes:
    """A server: requests, iterations and pauses from the hook, and its own metrics, over some seconds."""
    latency = Histogram(bounds=(0.3, 0.5), counts=(1.0, 4.0), sum=2.0, count=5.0)
    events: list[Event] = []
    for second in range(100, 112):
        requests = tuple(
            RequestRecord(end=second - part / 10, seconds=0.2, queue=0.1, first_token=0.15, tokens=9)
            for part in range(8)
        )
        turns = tuple(
            IterationRecord(end=second - part / 20, seconds=0.04, idle=0.0, requests=3, decode_tokens=3, waiting=2)
            for part in range(16)
        )
        pauses = (Pause(end=second - 0.5, seconds=0.2, kind="collect"),)
        events += [
            HookSample(time=float(second), pid=7, requests=requests, iterations=turns, pauses=pauses, alive=3),
            ServerSample(
                time=second + 0.1,
                pid=7,
                counters={"requests": 8.0 * second, "tokens": 72.0 * second},
                gauges={"running": 3.0, "waiting": 2.0, "kv_used": 0.5},
                histograms={"latency": msgspec.structs.replace(latency, sum=2.0 * second, count=5.0 * second)},
            ),
            Tick(time=second + 0.2, wall=1.7e9),
        ]
    return header + b"".join(msgspec.json.encode(event) + b"\n" for event in events)


def feed_recording(data: bytes) -> None:
    """Through the reader, the engine and the rules to the report as text, JSON and HTML, and to the exports."""
    replayed = _replayed(data)
    if replayed is None:
        return
    events, snapshot = replayed
    report = as_json(report_of(snapshot))
    page, stacks = to_html(snapshot), list(sampled(events))
    for written in (report, to_trace(events), to_speedscope(stacks, "run")):
        json.loads(written, parse_constant=_no_constant)
    for written in (to_text(snapshot), page, report, to_collapsed(stacks), to_csv([snapshot])):
        if not written.replace("\n", "").isprintable():
            raise Finding("a control character in a report")
    if page.count("<script") != OWN_SCRIPTS:
        raise Finding("a script in the HTML report")


def feed_screen(data: bytes) -> None:
    """The same to a screen that stays up, with keys that open its other views."""
    global _screen
    replayed = _replayed(data)
    if replayed is None:
        return
    snapshot = replayed[1]
    from fuzz_screen import Screen

    _screen = _screen or Screen()
    try:
        lines = _screen.show(snapshot, data)
    except BaseException:
        _screen.close()
        _screen = None
        raise
    if not all(line.isprintable() for line in lines):
        raise Finding("a control character on the screen")


def _replayed(data: bytes) -> tuple[list[Event], Snapshot] | None:
    """The first events of these bytes, and what a replay of them ends with; None where they are no recording."""
    path = Path("/dev/shm") / f"aitop-fuzz-{os.getpid()}"
    path.write_bytes(data)
    try:
        header, events = read_recording(path)
    except UnreadableRecordingError as error:
        if "\n" in str(error):
            raise Finding("the error has several lines") from error
        return None
    finally:
        path.unlink()
    engine, snapshot = Engine(header.target), None
    first = list(islice(events, MOST_EVENTS))
    events.close()
    for event in first:
        snapshot = engine.handle(event) or snapshot
    snapshot = snapshot or engine.handle(Tick(time=1e9, wall=1.7e9))
    return (first, snapshot) if snapshot is not None else None


def _no_constant(name: str) -> None:
    raise Finding(f"{name} in the JSON report")


# What py-spy writes.


def spy_seeds() -> list[bytes]:
    """Real windows, and a dump's frames in the same form."""
    return [path.read_bytes() for path in sorted((RECORDINGS / "pyspy").glob("*.json"))]


def feed_spy(data: bytes) -> None:
    """Through the parser to a window that can be recorded."""
    try:
        frames, threads = speedscope.parse(data, frozenset({"29253"}))
    except ValueError:
        return
    builder = WindowBuilder("/home/ada/proj/train.py", CodeOfProcesses())
    builder.add(os.getpid(), frames, threads)
    table, stacks = builder.result()
    check_recordable(StackWindow(time=1.0, seconds=1.0, rate=20.0, frames=table, stacks=stacks))


def dump_seeds() -> list[bytes]:
    """A dump as py-spy writes it."""
    frame = {"name": "step", "filename": "/home/ada/proj/train.py", "module": None, "short_filename": None, "line": 7}
    thread = {"pid": 1, "thread_id": 140, "thread_name": "MainThread", "os_thread_id": 1, "active": True}
    other = {**thread, "thread_name": None, "os_thread_id": None, "owns_gil": False, "frames": []}
    return [json.dumps([{**thread, "owns_gil": True, "frames": [frame, frame]}, other]).encode()]


def feed_dump(data: bytes) -> None:
    """Through the parser to a dump that can be recorded."""
    try:
        answer = dump.parse(data)
    except ValueError:
        return
    builder = WindowBuilder(None, CodeOfProcesses())
    threads = dump.threads_of(os.getpid(), answer, builder)
    check_recordable(StackDump(time=1.0, frames=builder.result()[0], threads=tuple(threads)))


def _lines(data: bytes) -> list[tuple[int, int]]:
    """Where each line begins and ends."""
    places, start = [], 0
    for line in data.splitlines(keepends=True):
        places.append((start, start + len(line.rstrip(b"\n"))))
        start += len(line)
    return places


def _area(data: bytes) -> list[tuple[int, int]]:
    if len(data) < 8 * WORDS:
        return []
    length = struct.unpack_from("=Q", data, 8 * 12)[0]
    return [(8 * WORDS, 8 * WORDS + length)] if 0 < length <= len(data) - 8 * WORDS else []


# A JSON report of an earlier run, to the comparison with another.


def comparison_seeds() -> list[bytes]:
    """Reports of real recordings."""
    return [
        as_json(report_of(snapshot)).encode()
        for path in sorted(RECORDINGS.glob("*.jsonl.gz"))
        if (snapshot := last_snapshot(Recording(path))) is not None
    ]


def feed_comparison(data: bytes) -> None:
    """As the run before and as the run after that of a recording, to the text, the JSON and the page."""
    path = Path("/dev/shm") / f"aitop-fuzz-{os.getpid()}.json"
    path.write_bytes(data)
    try:
        run, other = read_run(path), _other_run()
    except AitopError as error:
        if "\n" in str(error):
            raise Finding("the error has several lines") from error
        return
    finally:
        path.unlink()
    for compared in (compare_runs(run, other), compare_runs(other, run)):
        written = [render(compared, form) for form in ("text", "json", "html")]
        json.loads(written[1], parse_constant=_no_constant)
        if not all(text.replace("\n", "").isprintable() for text in written):
            raise Finding("a control character in a comparison")
        if written[2].count("<script") != OWN_SCRIPTS:
            raise Finding("a script in the page of a comparison")


@cache
def _other_run() -> Run:
    return read_run(RECORDINGS / "slow-loader.jsonl.gz")


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("ring", ring_seeds, feed_ring, _area),
        Subject("recording", recording_seeds, feed_recording, _lines),
        Subject("screen", recording_seeds, feed_screen, _lines),
        Subject("comparison", comparison_seeds, feed_comparison, lambda data: [(0, len(data))]),
        Subject("spy", spy_seeds, feed_spy, lambda data: [(0, len(data))]),
        Subject("dump", dump_seeds, feed_dump, lambda data: [(0, len(data))]),
        Subject("source", text.source_seeds, text.feed_source, lambda data: []),
        Subject("trace", text.trace_seeds, text.feed_trace, lambda data: [(0, len(data))]),
        Subject("metrics", text.metrics_seeds, text.feed_metrics, lambda data: []),
        Subject("notes", text.notes_seeds, text.feed_notes, lambda data: []),
        Subject("elf", text.elf_seeds, text.feed_elf, lambda data: []),
        Subject("kernel", text.kernel_seeds, text.feed_kernel, lambda data: []),
    )
}
