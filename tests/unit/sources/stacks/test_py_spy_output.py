"""What py-spy wrote, read: captures of real runs, and what no real run should write."""

import json
from collections import Counter

import msgspec
import pytest
from recorded_runs import RECORDINGS

from aitop.sources.stacks.speedscope import MAIN_NAME, MOST_BYTES, ThreadSamples, parse

CAPTURES = RECORDINGS / "pyspy"
WORKER_PID = "29253"


def main_of(threads: list[ThreadSamples]) -> ThreadSamples:
    [main] = [thread for thread in threads if thread.main]
    return main


def test_a_worker_stands_on_its_slow_function_below_the_stack_it_inherited():
    frames, threads = parse((CAPTURES / "worker.json").read_bytes(), frozenset({WORKER_PID}))
    main = main_of(threads)
    assert main.name == MAIN_NAME
    stack = [frames[index] for index in main.stacks.most_common(1)[0][0]]
    assert stack[0].name == "<module>"
    assert stack[-1].name.startswith("decode")
    assert stack[-1].file == "/home/ada/proj/decode.py"
    assert any(frame.name == "DataLoader.__iter__" for frame in stack)
    assert {thread.name for thread in threads} == {MAIN_NAME, "QueueFeederThread", "Thread-1 (_serve)"}


def test_the_main_thread_is_known_by_its_name_where_the_ids_are_of_another_namespace():
    _, threads = parse((CAPTURES / "rank.json").read_bytes(), frozenset({"1"}))
    assert main_of(threads).stacks.total() > 30


def test_a_nameless_thread_that_is_alone_is_the_main_thread_and_its_torn_samples_go():
    frames, threads = parse((CAPTURES / "tight310.json").read_bytes(), frozenset({"4242"}))
    main = main_of(threads)
    assert {frames[stack[0]].name for stack in main.stacks} == {"<module>"}
    assert "<genexpr>" not in {frames[stack[0]].name for stack in main.stacks}


def speedscope(*profiles: tuple[str, list[list[int]]], frames: int = 3) -> bytes:
    return json.dumps(
        {
            "profiles": [{"name": name, "samples": samples, "type": "sampled"} for name, samples in profiles],
            "shared": {"frames": [{"name": f"f{i}", "file": f"/a/{i}.py", "line": i} for i in range(frames)]},
        }
    ).encode()


def test_a_main_thread_with_greenlets_has_several_outermost_frames():
    """As gevent's workers: f0 is the hub, f1 begins each request, and f2 is called by it; alone, it was read half."""
    hub, request, half, once = [[0]] * 60, [[1, 2, 3], [1, 2]] * 15, [[2, 3]] * 9, [[4]]
    _, threads = parse(speedscope(('Thread 7 "MainThread"', hub + request + half + once), frames=5), frozenset({"7"}))
    assert main_of(threads).stacks == Counter({(0,): 60, (1, 2, 3): 15, (1, 2): 15})


@pytest.mark.parametrize(
    ("whole", "half"),
    [
        (b'"f2"', b'""'),
        (b'"line": 2', b'"line": 4294908161'),
        (b'"f2"', b'"/lib/python3.11/multiprocessing/connection.py"'),
        (b'"/a/2.py"', rb'"\u0001\u0000\u0010"'),
    ],
)
def test_a_sample_with_a_frame_that_was_read_half_is_left_out(whole, half):
    data = speedscope(('Thread 7 "MainThread"', [[0, 1], [0, 1, 2], [0, 2]])).replace(whole, half)
    _, threads = parse(data, frozenset({"7"}))
    assert main_of(threads).stacks == Counter({(0, 1): 1})


def test_names_of_threads_may_hold_anything():
    name = 'Process 7 Thread 12 "pool "a"\nThread 9 "b""'
    _, [thread] = parse(speedscope((name, [[0, 1]])), frozenset())
    assert thread.main  # alone
    _, threads = parse(speedscope((name, [[0, 1]]), ('Thread 7 "x"', [[0]])), frozenset({"7"}))
    assert [(thread.name, thread.main) for thread in threads] == [('pool "a"\nThread 9 "b"', False), (MAIN_NAME, True)]


def test_samples_with_indices_out_of_range_and_empty_ones_are_dropped():
    _, [thread] = parse(speedscope(('Thread 7 "x"', [[0, 99], [0, -1], [], [0, 2], [0, 2]])), frozenset({"7"}))
    assert thread.stacks == Counter({(0, 2): 2})
    nameless = [(f'Thread {number} ""', [[0]]) for number in ("0x7F", "0x70", "0x71")]
    _, threads = parse(speedscope(*nameless), frozenset())
    assert [thread.main for thread in threads] == [False, False, False], "nothing says which is the main one"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"profiles": [], "shared": {}}',
        b'{"profiles": 3, "shared": {"frames": []}}',
        b"\xff\xfe",
        b'{"x": ' + b"[" * 3000,
        pytest.param(b" " * (MOST_BYTES + 1), id="huge"),
    ],
)
def test_anything_else_is_refused(data: bytes):
    with pytest.raises(ValueError, match=r"bytes" if len(data) > MOST_BYTES else r".+"):
        parse(data, frozenset())


def test_the_lone_holder_of_the_lock_is_not_taken_for_the_main_thread():
    file = {
        "profiles": [{"name": 'Thread 77 "metrics"', "samples": [[0], [0]]}],
        "shared": {"frames": [{"name": "publish", "file": "m.py", "line": 3}]},
    }
    _, (parsed,) = parse(msgspec.json.encode(file), frozenset({"42"}), every_thread=False)
    assert (parsed.name, parsed.main) == ("metrics", False)
