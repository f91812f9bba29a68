"""What `aitop replay --export` writes, read back by the rules of its format."""

import csv
import json
from collections import Counter

import msgspec
import pytest
from recorded_runs import RECORDINGS
from recorded_runs import recording as recording_of

from aitop import cli
from aitop.commands.replay import EXPORTS, export
from aitop.model.serving import IterationRecord, Pause, RequestRecord
from aitop.model.stacks import Frame, StackCount, StackWindow
from aitop.model.steps import HookSample, StepRecord
from aitop.outputs.formats.stacks import sampled, to_collapsed, to_speedscope
from aitop.outputs.formats.trace import to_trace

RECORDED = ("slow-loader", "serve", "straggler")

FRAMES = (
    Frame("<module>", "/x/train.py", 50, True),
    Frame("main;evil", "/x/train.py", 41, True),
    Frame("timed", "<aitop hook>", 3),
    Frame("timed", "/lib/python3.11/site-packages/aitop/hook/phases.py", 3),
)


def window(time, *stacks):
    counts = tuple(StackCount(7, "MainThread", True, frames, count) for frames, count in stacks)
    return StackWindow(time=time, seconds=1.0, rate=20.0, frames=FRAMES, stacks=counts)


WINDOWS = (window(1.0, ((0, 1), 15), ((0, 2, 3, 1), 5)), window(2.0, ((0,), 10)))


@pytest.fixture(scope="module", params=RECORDED)
def recording(request):
    return recording_of(request.param)


def test_speedscope_has_the_frames_and_the_seconds_of_a_thread():
    file = check_speedscope(to_speedscope(sampled(WINDOWS), "run"))
    (profile,) = file["profiles"]
    names = [[file["shared"]["frames"][index]["name"] for index in stack] for stack in profile["samples"]]
    assert names == [["<module>", "main;evil"], ["<module>", "main;evil"], ["<module>"]]
    assert profile["weights"] == [0.75, 0.25, 0.5]
    assert (file["name"], profile["name"]) == ("run", "pid 7 MainThread")


def check_speedscope(text):
    """The rules of https://www.speedscope.app/file-format-schema.json for sampled profiles."""
    file = json.loads(text)
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert 0 <= file["activeProfileIndex"] < len(file["profiles"])
    for frame in file["shared"]["frames"]:
        assert isinstance(frame["name"], str) and isinstance(frame["file"], str) and isinstance(frame["line"], int)
    for profile in file["profiles"]:
        assert profile["type"] == "sampled" and profile["unit"] == "seconds"
        assert len(profile["samples"]) == len(profile["weights"]) > 0
        assert all(weight > 0 for weight in profile["weights"])
        assert profile["endValue"] - profile["startValue"] == pytest.approx(sum(profile["weights"]))
        assert all(0 <= index < len(file["shared"]["frames"]) for stack in profile["samples"] for index in stack)
    return file


def test_speedscope_keeps_its_rules_and_the_time_of_every_sample(recording):
    file = check_speedscope(export(recording, "speedscope", "run"))
    windows = [event for event in recording.events() if isinstance(event, StackWindow)]
    seconds = sum(stack.count / one.rate for one in windows for stack in one.stacks if stack.frames)
    assert sum(profile["endValue"] for profile in file["profiles"]) == pytest.approx(seconds, rel=0.02)
    assert not any("<aitop hook>" in frame["file"] for frame in file["shared"]["frames"])


def test_collapsed_lines_have_frames_and_a_count():
    lines = dict(line.rsplit(" ", 1) for line in to_collapsed(sampled(WINDOWS)).splitlines())
    first = "pid 7;MainThread;<module> (/x/train.py:50)"
    assert lines == {f"{first};main,evil (/x/train.py:41)": "20", first: "10"}


def test_collapsed_counts_every_sample(recording):
    counts = Counter()
    for line in export(recording, "collapsed", "run").splitlines():
        stack, count = line.rsplit(" ", 1)
        counts[stack.split(";")[0]] += int(count)
    assert counts.total() == sum(counted.samples for counted in sampled(recording.events()))


def check_trace(text):
    """The rules of the Trace Event Format: known kinds, slices of a track nested, pairs closed."""
    events = json.loads(text)["traceEvents"]
    assert {event["ph"] for event in events} <= {"X", "M", "C", "b", "e"}
    opened = Counter()
    tracks = {}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "be":
            opened[event["pid"], event["id"], event["name"]] += 1 if event["ph"] == "b" else -1
    assert not any(opened.values())
    for slices in tracks.values():
        around = []
        for start, end in sorted(slices, key=lambda one: (one[0], -one[1])):
            while around and around[-1] <= start + 1e-3:
                around.pop()
            assert not around or end <= around[-1] + 1e-3
            around.append(end)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert tracks.keys() == named
    return events


def test_a_trace_keeps_the_rules_of_its_format_and_has_every_step_and_request(recording):
    events = check_trace(export(recording, "perfetto", "run"))
    hooked = [event for event in recording.events() if isinstance(event, HookSample)]
    steps = [event for event in events if event["ph"] == "X" and event["name"].startswith("step ")]
    assert len(steps) == sum(len(sample.steps) for sample in hooked)
    requests = [event for event in events if event["ph"] == "b" and event["name"] == "request"]
    assert len(requests) == sum(len(sample.requests) for sample in hooked)


def test_a_trace_shows_phases_inside_their_step_in_microseconds():
    sample = HookSample(
        time=10.0,
        pid=7,
        steps=(StepRecord(index=1, end=2.0, seconds=1.0, data_wait=0.5, forward=0.25, queue_ready=3),),
        requests=(RequestRecord(end=3.0, seconds=1.0, queue=0.25, model=0.5, tokens=9),),
        iterations=(IterationRecord(end=3.0, seconds=0.5, kind="decode", schedule=0.1, requests=4),),
        pauses=(Pause(end=3.0, seconds=0.1, kind="collect"),),
    )
    events = check_trace(to_trace([sample]))
    times = {event["name"]: (event["ts"], event["dur"]) for event in events if event["ph"] == "X"}
    assert times["step 1"] == (1e6, 1e6)
    assert times["data"] == (1e6, 0.5e6) and times["forward"] == (1.5e6, 0.25e6)
    assert times["decode"] == (2.5e6, 0.5e6) and times["collect"][1] == pytest.approx(1e5)
    pairs = {(event["name"], event["ph"]): event["ts"] for event in events if event["ph"] in "be"}
    assert pairs["queue", "b"] == 2e6 and pairs["model", "b"] == 2.25e6 and pairs["model", "e"] == 2.75e6
    assert [event["args"] for event in events if event["ph"] == "C"] == [{"batches": 3}]


@pytest.mark.parametrize("name", ["slow-loader", "serve"])
def test_a_table_has_a_row_for_every_tick(name):
    recording = recording_of(name)
    rows = list(csv.DictReader(export(recording, "csv", "run").splitlines()))
    assert len(rows) == len(list(recording.events().ticks()))
    assert [int(row["tick"]) for row in rows] == list(range(1, len(rows) + 1))
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    assert float(rows[-1]["steps_per_s"]) > 0 and float(rows[-1]["rss"]) > 0
    assert rows[-1]["wall"].endswith("+00:00") and rows[-1]["verdict"]
    assert all(not row.get("gpu0.busy") for row in rows)  # no GPU: an empty cell at most, and no zero
    assert None not in rows[0]


@pytest.mark.parametrize("form", EXPORTS)
def test_the_command_writes_it_to_a_file(form, tmp_path, capsys):
    file = tmp_path / "out"
    assert cli.run(["replay", str(RECORDINGS / "healthy.jsonl.gz"), "--export", form, "-o", str(file)]) == 0
    assert file.stat().st_size > 1000
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("form", EXPORTS)
def test_no_source_text_leaves_with_it(form):
    recording = recording_of("slow-loader")
    lines = {
        frame.text
        for event in recording.events()
        if isinstance(event, StackWindow)
        for frame in event.frames
        if frame.text and " " in frame.text
    }
    written = export(recording, form, "run")
    assert lines and not [line for line in lines if line in written]


@pytest.mark.parametrize("form", [form for form in EXPORTS if form != "perfetto"])
def test_a_recording_without_anything_is_5(form, tmp_path, capsys):
    header = recording_of("healthy").header
    file = tmp_path / "empty.jsonl"
    file.write_bytes(msgspec.json.encode(header) + b"\n")
    assert cli.run(["replay", str(file), "--export", form]) == 5
    assert capsys.readouterr().err.startswith("aitop: ")
