"""A recording gives back what was written, and no file, however broken, takes the reader down."""

from __future__ import annotations

import gzip
import json
import os
import threading
from pathlib import Path

import msgspec
import pytest

from aitop.engine.recorder import Recorder
from aitop.errors import UnreadableRecordingError, WrongUsageError
from aitop.model.gpu import GpuDevice, GpuSample
from aitop.model.host import HostSample, MachineSample, ProcessSample
from aitop.model.serving import Histogram, IterationRecord, Pause, RequestRecord, ServerSample
from aitop.model.snapshot import GrowthSite, GrowthSites, Target, Tick
from aitop.model.source import SourceStatus
from aitop.model.stacks import Frame, Look, StackCount, StackWindow, ThreadState
from aitop.model.steps import HookFacts, HookSample, LoaderInfo, StepRecord
from aitop.outputs.recording import RecordingWriter
from aitop.sources import replay
from aitop.sources.replay import read_recording

TARGET = Target(pid=4242, command="python train.py", started=1.5, python="3.11.7", script="/x/train.py")
EVENTS = [
    SourceStatus(time=10.0, source="gpu", state="absent", reason="no NVML", remedy="install the driver"),
    HostSample(
        time=10.1,
        processes=(
            ProcessSample(
                pid=4242, ppid=1, started=1.5, role="rank", name="python", command="python train.py", part="engine"
            ),
        ),
        machine=MachineSample(cores=8, core_busy=(0.5,) * 8),
        engine="vllm 0.32.0",
    ),
    GpuSample(time=10.2, devices=(GpuDevice(index=0, name="H200", busy=0.31),)),
    StackWindow(
        time=10.3,
        seconds=2.0,
        rate=20.0,
        frames=(Frame("main", "/x/train.py", 3, True, "for x, y in loader:"), Frame("żółć", "/x/ü.py", 4)),
        stacks=(StackCount(4242, "MainThread", True, (0, 1), 40),),
        looks=(
            Look(pid=4242, kind="gil", asked=24, stacks=()),
            Look(pid=4242, kind="cpu", asked=24, stacks=(StackCount(4242, "MainThread", True, (0,), 9),)),
        ),
        states=(
            ThreadState(
                pid=4242,
                thread="MainThread",
                main=True,
                asked=20,
                running=9,
                waits={"queue": 10, "disk": 1},
                counted=0.4,
            ),
        ),
    ),
    HookSample(
        time=10.4,
        pid=4242,
        steps=(StepRecord(index=7, end=10.35, seconds=0.2, data_wait=0.15, samples=64),),
        facts=HookFacts(way="attach", python="3.11.7", torch="2.13.0", loaders=(LoaderInfo(workers=2, prefetch=2),)),
    ),
    HookSample(
        time=10.45,
        pid=4242,
        requests=(RequestRecord(end=10.4, seconds=0.3, queue=0.1, first_token=0.2, tokens=64, preempted=1),),
        iterations=(IterationRecord(end=10.4, seconds=0.02, kind="mixed", requests=8, decode_tokens=7, kv_used=0.6),),
        pauses=(Pause(end=10.3, seconds=0.4, kind="collect"),),
        alive=3,
    ),
    ServerSample(
        time=10.46,
        pid=4242,
        counters={"requests": 7.0},
        gauges={"running": 3.0},
        histograms={"latency": Histogram(bounds=(0.3, 0.5), counts=(1.0, 2.0), sum=2.5, count=7.0)},
    ),
    GrowthSites(time=10.5, sites=(GrowthSite(file="/x/train.py", line=9, function="main", text="l.append(x)"),)),
    Tick(time=11.0, wall=1.7e9, monitor_cpu=0.02),
    msgspec.structs.replace(TARGET, ended="it ended", time=12.0),
]


def write(path: Path, events=EVENTS) -> Path:
    recording = RecordingWriter(path, TARGET)
    for event in events:
        recording.write(event)
    recording.close()
    recording.close()
    assert recording.failed is None
    return path


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_what_was_written_comes_back(tmp_path, name):
    header, events = read_recording(write(tmp_path / name))
    assert (header.target, header.aitop_recording) == (TARGET, 1)
    assert list(events) == EVENTS
    assert events.skipped == 0


def test_gz_is_compressed_and_told_from_content(tmp_path):
    packed = write(tmp_path / "a.gz")
    assert gzip.decompress(packed.read_bytes()).splitlines()[0].startswith(b'{"aitop_recording":1,')
    assert len(list(read_recording(packed.rename(tmp_path / "b.jsonl"))[1])) == len(EVENTS)


@pytest.mark.parametrize("name", ["run.jsonl", "run.gz"])
def test_what_comes_after_the_end_is_no_failure(tmp_path, name):
    recording = RecordingWriter(tmp_path / name, TARGET)
    recording.close()
    size = recording.written
    for event in EVENTS:
        recording.write(event)
    recording.close()
    assert (recording.failed, recording.written) == (None, size)
    assert list(read_recording(tmp_path / name)[1]) == []


class GivenBack:
    """A lock; `then` is called each time that it has been given back."""

    def __init__(self, then):
        self._lock, self._then = threading.Lock(), then

    def __enter__(self):
        self._lock.acquire()

    def __exit__(self, *error):
        self._lock.release()
        self._then()


def test_no_event_is_lost_between_two_recordings(tmp_path):
    recorder = Recorder(lambda path, new: RecordingWriter(path, TARGET, new=new), tmp_path / "first.jsonl")
    events = [event for event in EVENTS if isinstance(event, (HostSample, Tick))]
    left = events[::-1]
    recorder._lock = GivenBack(lambda: left and recorder.write(left.pop()))
    recorder.begin(tmp_path / "second.jsonl")
    recorder.close()
    first, second = (list(read_recording(tmp_path / f"{name}.jsonl")[1]) for name in ("first", "second"))
    assert first + second == events


@pytest.mark.parametrize("name", ["run.jsonl", "run.gz"])
def test_everything_up_to_the_last_tick_is_readable_while_it_is_being_written(tmp_path, name):
    recording = RecordingWriter(tmp_path / name, TARGET)
    for event in EVENTS[:-1]:
        recording.write(event)
    assert list(read_recording(tmp_path / name)[1]) == EVENTS[:-1]
    recording.close()


def test_a_torn_last_line_is_left_out(tmp_path):
    path = write(tmp_path / "run.jsonl")
    path.write_bytes(path.read_bytes()[:-5])
    events = read_recording(path)[1]
    assert list(events) == EVENTS[:-1]
    assert events.skipped == 0


def test_a_gz_cut_anywhere_gives_a_prefix_once_its_header_is_whole(tmp_path):
    packed = write(tmp_path / "run.gz").read_bytes()
    lengths = []
    for cut in range(60, len(packed), 37):
        (tmp_path / "cut.gz").write_bytes(packed[:cut])
        try:
            seen = list(read_recording(tmp_path / "cut.gz")[1])
        except UnreadableRecordingError:
            assert not lengths, "a shorter one could be read"
            continue
        assert seen == EVENTS[: len(seen)]
        lengths.append(len(seen))
    assert lengths == sorted(lengths) and len(set(lengths)) > 2


def test_bad_lines_in_the_middle_are_skipped_and_counted(tmp_path):
    path = write(tmp_path / "run.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    bad = [
        b"\xff\xfe\n",
        b"{}\n",
        b'{"type":"unheard-of","time":1}\n',
        b'{"type":"tick","time":"x","wall":1}\n',
        b"[" * 5000 + b"\n",
    ]
    path.write_bytes(lines[0] + bad[0] + lines[1] + b"".join(bad[1:]) + b"\n" + b"".join(lines[2:]))
    events = read_recording(path)[1]
    assert list(events) == EVENTS
    assert events.skipped == len(bad)


def test_an_endless_line_is_skipped_without_being_held(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "LONGEST_LINE", 4096)
    path = write(tmp_path / "run.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        lines[0] + b"x" * 10_000 + b"\n" + lines[1] + b"y" * 8192 + b"\n" + b"".join(lines[2:]) + b"z" * 4096
    )
    events = read_recording(path)[1]
    assert list(events) == EVENTS
    assert events.skipped == 3


@pytest.mark.parametrize("moment", [1e300, -5.0])
def test_events_at_impossible_times_are_no_events(tmp_path, moment):
    events = read_recording(write(tmp_path / "run.jsonl", [Tick(time=moment, wall=1.0), *EVENTS]))[1]
    assert list(events) == EVENTS
    assert events.skipped == 1


FRAME = {"function": "f", "file": "/x.py", "line": 3}
STACKS = {"type": "stacks", "time": 1.0, "seconds": 1.0, "rate": 20.0, "frames": [FRAME]}
SERVED = {"type": "hook", "time": 1.0, "pid": 1}
METRICS = {"type": "server", "time": 1.0, "pid": 1, "engine": "vllm"}
RANK = {"pid": 1, "ppid": 1, "started": 0.0, "role": "rank", "name": "python", "command": "python"}
THREAD = {"pid": 1, "thread": "t", "main": True, "count": 1}


@pytest.mark.parametrize(
    "event",
    [
        '{"type":"tick","time":1.0,"wall":1e300}',
        '{"type":"tick","time":1.0,"wall":%s}' % ("9" * 400),
        '{"type":"tick","time":1.0,"wall":NaN}',
        '{"type":"hook","time":1.0,"pid":1,"lost":%s}' % ("9" * 30),
        json.dumps({"type": "dump", "time": 1.0, "frames": [], "threads": [{**THREAD, "frames": [0]}]}),
        json.dumps({**STACKS, "frames": [], "stacks": [{**THREAD, "frames": [0]}]}),
        json.dumps({"type": "host", "time": 1.0, "processes": [], "machine": {"cores": 0}}),
        json.dumps({"type": "host", "time": 1.0, "processes": [{**RANK, "world_size": 4e9}], "machine": {"cores": 8}}),
        json.dumps({"type": "host", "time": 1.0, "processes": [{**RANK, "pid": 0}], "machine": {"cores": 8}}),
        json.dumps({"type": "host", "time": 1.0, "processes": [RANK, RANK], "machine": {"cores": 8}}),
        json.dumps({**STACKS, "stacks": [{**THREAD, "frames": [-1]}]}),
        json.dumps({**STACKS, "stacks": [{**THREAD, "frames": [0], "count": 0}]}),
        json.dumps({**STACKS, "stacks": [{**THREAD, "frames": [0]}], "seconds": 0.0}),
        json.dumps({**STACKS, "frames": [{**FRAME, "text": "a" * 5000}], "stacks": []}),
        json.dumps({**SERVED, "requests": [{"end": 1.0, "seconds": -1.0}]}),
        json.dumps({**SERVED, "requests": [{"end": 1e11, "seconds": 1.0}]}),
        json.dumps({**SERVED, "iterations": [{"end": 1.0, "seconds": 1.0, "decode_tokens": -3}]}),
        json.dumps({**SERVED, "pauses": [{"end": -1.0, "seconds": 1.0, "kind": "collect"}]}),
        json.dumps({**SERVED, "alive": -1}),
        json.dumps({**METRICS, "counters": {"requests": -1.0}}),
        json.dumps({**METRICS, "histograms": {"latency": {"bounds": [0.3], "counts": [], "sum": 1.0, "count": 1.0}}}),
        json.dumps(
            {**METRICS, "histograms": {"x": {"bounds": [0.3, 0.2], "counts": [1.0, 2.0], "sum": 1.0, "count": 1.0}}}
        ),
        json.dumps({"type": "dump", "time": 1.0, "frames": [{**FRAME, "guard": "if " + "a" * 5000}], "threads": []}),
        json.dumps({"type": "growth", "time": 1.0, "sites": [{**FRAME, "text": "a.append(" + "b" * 5000}]}),
    ],
)
def test_an_impossible_event_counts_as_a_damaged_line(tmp_path, event):
    path = write(tmp_path / "run.jsonl")
    path.write_bytes(path.read_bytes() + event.encode() + b"\n")
    events = read_recording(path)[1]
    assert list(events) == EVENTS
    assert events.skipped == 1


def test_a_stack_of_frames_that_are_there_is_an_event(tmp_path):
    path = write(tmp_path / "run.jsonl")
    event = json.dumps({**STACKS, "stacks": [{**THREAD, "frames": [0]}]})
    path.write_bytes(path.read_bytes() + event.encode() + b"\n")
    assert len(list(read_recording(path)[1])) == len(EVENTS) + 1


def test_a_long_number_in_a_text_is_no_damage(tmp_path):
    named = msgspec.structs.replace(TARGET, command="python train.py --run 123456789012345678901234567890")
    assert list(read_recording(write(tmp_path / "run.jsonl", [named]))[1]) == [named]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x1f\x8b", "is empty"),
        (b"import torch\n", "is not an aitop recording"),
        (b'{"type":"tick"}\n', "is not an aitop recording"),
        (b"\x00" * 100, "is not an aitop recording"),
        (b"[" * 100_000, "is not an aitop recording"),
        (b'{"aitop_recording": 2, "more": {}}\n', "version 2; this aitop reads version 1"),
        (b'{"aitop_recording": 1, "aitop": "0"}\n', "is damaged"),
        (b'{"aitop_recording": 1, "aitop": "0", "target": {"type": "a\\nb"}}\n', "is damaged"),
    ],
)
def test_what_is_no_recording_is_said_in_one_sentence(tmp_path, content, words):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UnreadableRecordingError, match=words) as raised:
        read_recording(path)
    assert raised.value.exit_code == 6
    assert "\n" not in str(raised.value)


def test_what_cannot_be_opened_is_said_in_one_sentence(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in [
        (tmp_path / "missing", "No such file"),
        (tmp_path, "is not a file"),
        (tmp_path / "pipe", "is not a file"),
        (Path("a\0b"), "cannot read"),
    ]:
        with pytest.raises(UnreadableRecordingError, match=words):
            read_recording(path)


def test_a_file_that_is_there_is_not_overwritten(tmp_path):
    precious = tmp_path / "train.py"
    precious.write_text("import torch\n")
    with pytest.raises(WrongUsageError, match="exists already"):
        RecordingWriter(precious, TARGET)
    assert precious.read_text() == "import torch\n"


def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path):
    with pytest.raises(WrongUsageError, match=r"cannot record to .*No such file"):
        RecordingWriter(tmp_path / "none" / "run.jsonl", TARGET)


def test_a_full_disk_ends_the_recording_and_nothing_else():
    recording = RecordingWriter(Path("/dev/full"), TARGET)
    for event in EVENTS:
        recording.write(event)
    recording.close()
    assert "No space left" in recording.failed
