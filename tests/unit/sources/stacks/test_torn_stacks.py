"""Stacks that changed while they were read: the source tells which frame cannot have called the next one."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from aitop.sources.code import calls
from aitop.sources.stacks.speedscope import RawFrame, ThreadSamples
from aitop.sources.stacks.window import CodeOfProcesses, WindowBuilder

TORCH = "/lib/python3.11/site-packages/torch"
MODULE = ("Module._wrapped_call_impl", f"{TORCH}/nn/modules/module.py", 1)
WRAPPER = ("Optimizer.profile_hook_step.<locals>.wrapper", f"{TORCH}/optim/optimizer.py", 5)
ADAM = ("Adam.step", f"{TORCH}/optim/adam.py", 7)

LOOP = """\
def main():
    for batch in draw(rows):
        answer = choose(net,
                        batch)
        world.move(answer); kept.append(answer)
        tuned(answer)
        optimizer.step()
def choose(net, batch):
    return net(batch)
def move(self, answer):
    self.at += physics(answer)
def physics(answer):
    return answer * 2
def draw(rows):
    yield from rows
main()
"""
ACTS = (("main", 3), ("choose", 9))
MOVES = (("main", 5), ("move", 11), ("physics", 13))


@pytest.fixture
def window(tmp_path):
    """What becomes of stacks of (function, line or file, line), each with how often it was seen."""
    file = tmp_path / "train.py"

    def seen(stacks, source=LOOP):
        file.write_text(source)
        builder = WindowBuilder(str(file), CodeOfProcesses())
        raw, samples = [], Counter()
        for stack, count in stacks.items():
            at = tuple(range(len(raw), len(raw) + len(stack)))
            raw += [RawFrame(frame[0], frame[1] if len(frame) > 2 else str(file), frame[-1]) for frame in stack]
            samples[at] = count
        builder.add(os.getpid(), raw, [ThreadSamples("MainThread", True, samples)])
        frames, counts = builder.result()
        return {
            tuple((frames[index].function, frames[index].line) for index in each.frames): each.count for each in counts
        }

    return seen


def test_a_stack_that_is_torn_gets_the_callers_that_its_inner_frames_have_otherwise(window):
    whole = {ACTS: 4, MOVES: 8}
    moved_on = (("main", 5), ("choose", 9))
    assert window({**whole, moved_on: 2}) == {ACTS: 6, MOVES: 8}, "main calls choose on another line"
    foreign = (*ACTS, ("physics", 13))
    assert window({**whole, foreign: 3}) == {ACTS: 4, MOVES: 11}, "choose never calls physics, which move calls"
    steps = (("main", 7), WRAPPER, ADAM)
    names = (("main", 7), (WRAPPER[0], 5), (ADAM[0], 7))
    before = (("main", 6), WRAPPER, ADAM)
    assert window({steps: 3, before: 1}) == {names: 4}, "a decorator's closure stands for what it calls"
    update = (*ACTS, WRAPPER)
    named = (("main", 7), (WRAPPER[0], 5))
    assert window({ACTS: 4, steps: 3, update: 2}) == {ACTS: 4, names: 3, named: 2}, "nothing there is called step"
    no_call = (("main", 5), ("move", 11), ("physics", 13), ("choose", 9))
    assert window({**whole, no_call: 1}) == {ACTS: 5, MOVES: 8}, "nothing is called there"


def test_a_stack_whose_callers_are_not_known_is_left_out(window):
    torn, twice = (("main", 5), ("move", 11), ("physics", 13), MODULE), (("main", 6), MODULE)
    assert window({MOVES: 8, torn: 2}) == {MOVES: 8}
    calls = ((*ACTS, MODULE), twice)
    assert sum(window({MOVES: 8, **dict.fromkeys(calls, 1), torn: 2}).values()) == 10, (
        "from where a module was called cannot be told"
    )


def test_where_most_stacks_seem_torn_the_source_is_not_understood_and_they_stay(window):
    compiles = (("main", 5), ("move", 11), ("physics", 13), MODULE)
    names = (("main", 5), ("move", 11), ("physics", 13), (MODULE[0], 1))
    assert window({MOVES: 2, compiles: 36}) == {MOVES: 2, names: 36}


def test_where_a_loop_is_so_quick_that_most_stacks_are_torn_those_are_mended_whose_calls_are_understood(window):
    steps, compiles = (("main", 7), WRAPPER, ADAM), (("main", 5), ("move", 11), ("physics", 13), MODULE)
    names = (("main", 7), (WRAPPER[0], 5), (ADAM[0], 7))
    left = (*MOVES, (MODULE[0], 1))
    assert window({MOVES: 2, steps: 4, (*ACTS, WRAPPER): 3, compiles: 5}) == {MOVES: 2, names: 4, names[:2]: 3, left: 5}


def test_what_the_source_does_not_tell_stays_as_it_was_seen(window):
    def stays(*stack, source=LOOP, **others):
        named = tuple((frame[0], frame[-1]) for frame in stack)
        return window({ACTS: 4, MOVES: 8, stack: 1}, source).get(named) == 1

    assert stays(("main", 4), ("choose", 9)), "a line of the same statement"
    assert stays(("main", 2), ("draw", 15)) and stays(("main", 5), ("draw", 15)), "a generator runs where it is asked"
    assert stays(("main", 3), ("backward", "/home/ada/lightning_rows/draw.py", 2)), "no name of the user's is a phase"
    assert stays(("choose", 9), MODULE), "what it calls has no name of its own"
    assert stays(("main", 6), WRAPPER), "a closure may be any function"
    assert stays(("main", 5), ("choose", 9), source="def main(:\n" * 20), "no Python that can be read"


def test_of_a_library_only_what_its_functions_are_is_read(monkeypatch):
    monkeypatch.setattr(calls, "_mentions", None)
    library = calls.Calls('def draws(rows):\n    yield from rows\n\n\ndef tells():\n    return "yield"\n')
    assert [library.generates(line) for line in (2, 6)] == [True, False]
