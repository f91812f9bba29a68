"""Tells lines that make the next batch from other work that a hand-written loop does between its phases.

Where the training loop can be seen (a function with both the forward pass and the backward pass or the optimizer in
it), the place in it decides: what stands before the forward pass feeds it. Elsewhere words decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aitop.diagnosis.evidence import Lines, main_lines, of_outside
from aitop.diagnosis.preprocessing import making_input
from aitop.diagnosis.serving import takes_request
from aitop.model.snapshot import HotLine, Snapshot
from aitop.model.stacks import Frame

# Words of functions and assignments that make batches, and of work that has nothing to do with the next one.
FEEDS = re.compile(
    r"(?<![a-z])(batch|data|load|read|fetch|sampl|pars|decod|augment|collat|stream|pipeline|generat|token|next\(|"
    r"__next__|__iter__|__getitem__|transform|preprocess|record|example|shard|inputs?\b|images?\b|features?\b)",
    re.IGNORECASE,
)
NOT_FEEDING = re.compile(
    r"metric|logg|accurac|score|eval|valid|checkpoint|save|plot|report|summar|track|monitor|stat(s|istic)|publish|"
    r"writer|histor|\bprint\(|\blog\b|push|emit|notif|zero_grad|schedul",
    re.IGNORECASE,
)
LOOP_HEADER = re.compile(r"^(async )?for .+ in .+:")
# The name of an argument tells what somebody else calls it: data= of a request is what it sends.
ARGUMENT = re.compile(r"(?<=[(,])\s*\w+=(?!=)")
CALLED = re.compile(r"[\w.]+\(|^[\w., ]+=(?!=)|^(?:async )?for .+ in .+:")
ASSIGNED = re.compile(r"[\w., ]+=(?!=)\s*[\w.]+|(?:async )?for .+ in .+:")
BUSY = frozenset({"save", "log", "sync", "gc", "queue", "spawn", "compile", "lock"})

Function = tuple[str, str]


@dataclass(frozen=True)
class Loop:
    """Where in a training function the forward pass begins and the last of backward pass and optimizer ends.

    Both are the same line in a function that has the whole step made by another.
    """

    forward: int
    end: int


def feeding(snapshot: Snapshot) -> Callable[[HotLine], bool]:
    """A test for lines outside of every phase: does this one make the next batch? In inference, reading it only."""
    makes = making_input(snapshot)
    loops = training_loops(snapshot)
    if snapshot.kind != "inference":
        return lambda line: _feeds(line, loops)
    calls = calling_model(snapshot)
    before, after = _before_model(snapshot), _after_model(snapshot)

    def reads(line: HotLine) -> bool:
        if line.phase != "outside" or line.activity in BUSY or takes_request(line):
            return False
        if makes(line) or calls(line) or after(line):
            return False
        # A server rests in sleep(): only what is called for data is said to take its time there.
        return (line.activity != "sleep" and before(line)) or _feeds(line, loops)

    return reads


def calling_model(snapshot: Snapshot) -> Callable[[HotLine], bool]:
    """A test for lines: is this the one that calls the model, too?"""
    called = {
        (line.file, line.line)
        for line in main_lines(snapshot, lambda line: line.phase in ("forward", "evaluation")).lines
    }
    return lambda line: (line.file, line.line) in called


def _before_model(snapshot: Snapshot) -> Callable[[HotLine], bool]:
    """A test for lines of inference: is this one called above the first call of the model, in the same function?"""
    first: dict[Function, int] = {}
    for line in main_lines(snapshot, lambda line: line.phase in ("forward", "evaluation")).lines:
        for file, function, number in _places(line):
            first[file, function] = min(number, first.get((file, function), number))

    def before(line: HotLine) -> bool:
        named = _named_in_call(line)
        for file, function, number in reversed(_places(line)):
            if (file, function) in first:
                return number < first[file, function] or (number == first[file, function] and named(number))
        return False

    return before


def _after_model(snapshot: Snapshot) -> Callable[[HotLine], bool]:
    """A test for lines of inference: is this one called below the last call of the model, to do with its results?

    A line down there that assigns what is named like input fetches the next one.
    """
    last: dict[Function, int] = {}
    for line in main_lines(snapshot, lambda line: line.phase in ("forward", "evaluation")).lines:
        for file, function, number in _places(line):
            last[file, function] = max(number, last.get((file, function), 0))

    def after(line: HotLine) -> bool:
        texts = [*(frame.text for frame in line.via), line.text]
        for (file, function, number), text in zip(reversed(_places(line)), reversed(texts), strict=True):
            if (file, function) in last:
                assigned = ASSIGNED.match(text or "")
                return number > last[file, function] and not (assigned and FEEDS.search(assigned[0]))
        return False

    return after


def training_loops(snapshot: Snapshot) -> Mapping[Function, Loop]:
    """The functions with both the forward pass and the rest of a step in or below them."""
    lines = main_lines(snapshot, lambda line: line.phase in ("forward", "backward", "optimizer")).lines
    forwards: dict[Function, set[int]] = {}
    rests: dict[Function, set[int]] = {}
    for line in lines:
        for file, function, number in _places(line):
            into = forwards if line.phase == "forward" else rests
            into.setdefault((file, function), set()).add(number)
    return {key: Loop(min(forwards[key]), max(rests[key])) for key in forwards.keys() & rests.keys()}


def below_step(snapshot: Snapshot) -> Callable[[HotLine], bool]:
    """A test for lines: is this a forward pass below all of the step, in the function that makes it?"""
    loops = training_loops(snapshot)

    def below(line: HotLine) -> bool:
        ends = [
            (number, loops[file, function].end) for file, function, number in _places(line) if (file, function) in loops
        ]
        return line.phase == "forward" and bool(ends) and ends[-1][0] > ends[-1][1]

    return below


def _places(line: HotLine) -> list[tuple[str, str, int]]:
    above = [(frame.file, frame.function, frame.line) for frame in line.via]
    return [*above, (line.file, line.function, line.line)]


def _feeds(line: HotLine, loops: Mapping[Function, Loop]) -> bool:
    if line.phase != "outside" or line.activity in BUSY:
        return False
    if NOT_FEEDING.search(line.function) or any(_speaks(NOT_FEEDING, frame) for frame in line.via):
        return False
    # The innermost training function on the stack: those around it only call it.
    named = _named_in_call(line)
    for file, function, number in reversed(_places(line)):
        loop = loops.get((file, function))
        if loop is not None and (number < loop.forward or (number == loop.forward == loop.end and named(number))):
            return True
        if loop is not None and loop.forward < loop.end:
            return number > loop.end and _in_words(line)
    return _in_words(line)


def _named_in_call(line: HotLine) -> Callable[[int], bool]:
    """A test for line numbers on its stack: does the code there call by its name what runs below, as an argument?

    In `train(fetch(i))` that is fetch; what a library calls back has its name nowhere in the line.
    """
    below = [*(frame.function for frame in line.via[1:]), line.function]
    called = {
        frame.line
        for frame, function in zip(line.via, below, strict=False)
        if re.search(rf"[(,=]\s*(?:\w+\.)*{re.escape(function.rpartition('.')[2])}\(", frame.text or "")
    }
    return called.__contains__


def _in_words(line: HotLine) -> bool:
    if any(LOOP_HEADER.match(frame.text or "") for frame in line.via):
        return True
    return bool(FEEDS.search(line.function) or FEEDS.search(ARGUMENT.sub("", line.text or ""))) or any(
        _speaks(FEEDS, frame) for frame in line.via
    )


def _speaks(words: re.Pattern[str], frame: Frame) -> bool:
    """Whether what the line calls or assigns is named so. What it passes on says nothing of what goes on below."""
    return any(words.search(name) for name in CALLED.findall(frame.text or ""))


def feeding_lines(snapshot: Snapshot) -> Lines:
    """Lines that make batches by hand; the share is corrected by the measured time outside of everything else."""
    if snapshot.kind == "unknown":
        # In inference the same lines would be preprocessing.
        return Lines(0.0, ())
    found = main_lines(snapshot, feeding(snapshot))
    return Lines(of_outside(snapshot, found), found.lines)
