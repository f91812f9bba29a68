"""Which thread of a process makes its steps, which loop a line stands in, and the compiler at work over time."""

from dataclasses import dataclass

import pytest
from aitop.engine.stack_digest import look_at
from stack_maker import frame, stack, window

from aitop.model.stacks import Frame
from aitop.stacks.view import StackView

RANK = 100
CALL = "torch/nn/modules/module.py Module._call_impl"
WAITS = stack("user/serve.py:5 main | q.put(x)", "std/queue.py Queue.put", "std/threading.py Condition.wait")
SERVES = stack("user/serve.py:20 worker | net(x)", CALL)
ENCODES = stack("user/serve.py:19 worker | ids = encode(text)")
TRAINS = stack("user/train.py:5 main | loss.backward()", "torch/_tensor.py Tensor.backward")
COMPILES = stack(
    "user/train.py:9 main | loss = step(x)", "torch/_dynamo/eval_frame.py compile_wrapper",
    "torch/_dynamo/convert_frame.py __call__",
)  # fmt: skip


@dataclass
class Case:
    """Samples of the main thread and of another one, and which of them steps."""

    main: list
    other: list
    steps: str


@pytest.mark.parametrize(
    "case",
    [
        Case([(WAITS, 50)], [(SERVES, 3), (ENCODES, 47)], "Thread-1"),
        Case([(WAITS, 50)], [(ENCODES, 50)], "Thread-1"),
        Case([(TRAINS, 50)], [(SERVES, 50)], "MainThread"),
        Case([(ENCODES, 50)], [(WAITS, 50)], "MainThread"),
        Case([(WAITS, 50)], [(WAITS, 50)], "MainThread"),
    ],
    ids=["serves beside", "encodes beside", "both", "main works", "nobody"],
)
def test_the_thread_that_steps(case):
    samples = [(RANK, "MainThread", True, frames, count) for frames, count in case.main]
    samples += [(RANK, "Thread-1", False, frames, count) for frames, count in case.other]
    stacks = StackView().view([window(2.0, *samples)], {RANK: "rank"}, 0.0)
    assert [process.thread for process in stacks.processes] == [case.steps]
    assert stacks.processes[0].samples == 50


def looped(words, loop):
    made = frame(words)
    return Frame(made.function, made.file, made.line, made.user, made.text, loop)


STEPS = looped("user/train.py:5 main | loss = net(x)", "for x in loader:")
TURNS = looped("user/net.py:8 forward | h = self.cell(x[:, t], h)", "for t in range(x.shape[1]):")
LIBRARY, CELL = frame(CALL), frame("user/net.py:3 Cell.forward | return torch.tanh(h)")


@pytest.mark.parametrize(
    ("frames", "loop"),
    [
        ([STEPS, LIBRARY, TURNS, LIBRARY, CELL], "for t in range(x.shape[1]):"),
        ([STEPS, LIBRARY, CELL], None),
        ([STEPS, LIBRARY], None),
        ([STEPS], "for x in loader:"),
        ([STEPS, CELL], None),
    ],
    ids=["around a module", "no loop inside", "the library's model", "the user's own line", "called by a loop"],
)
def test_the_loop_of_a_line(frames, loop):
    assert look_at(frames).loop == loop


def test_the_compiler_over_time():
    windows = [
        window(2.0, (RANK, "MainThread", True, COMPILES, 30), (RANK, "MainThread", True, TRAINS, 10)),
        window(4.0, (RANK, "MainThread", True, TRAINS, 40)),
    ]
    series = StackView().activity_over_time(windows, RANK, "MainThread", "compile")
    assert (series.times, series.values) == ((2.0, 4.0), (0.75, 0.0))
