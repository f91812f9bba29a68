"""Reads what py-spy writes (`--format speedscope`) into samples of threads."""

from __future__ import annotations

import re
from collections import Counter

import msgspec

MOST_BYTES = 50_000_000
MOST_DEPTH = 400
MOST_LINES = 10_000_000
MAIN_NAME = "MainThread"
# An outermost frame of a smaller part of the samples than this is more likely one of a stack that was read half.
LEAST_OF_GREENLETS = 0.02

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# A function and its file.
_Place = tuple[str, "str | None"]
_PROFILE = re.compile(r'(?:Process \d+ )?Thread (?P<id>\S+) "(?P<name>.*)"', re.DOTALL)


class RawFrame(msgspec.Struct, frozen=True):
    """One line of a function. `line` 0 where py-spy could not tell."""

    name: str
    file: str | None = None
    line: int | None = None


class ThreadSamples(msgspec.Struct, frozen=True):
    """Samples of one thread: stacks (indices of frames, the outermost first) and how often each was seen.

    `id` is py-spy's: since Python 3.11 the kernel's, in the process's own pid namespace.
    """

    name: str
    main: bool
    stacks: Counter[tuple[int, ...]]
    id: str = ""


class _Profile(msgspec.Struct):
    name: str
    samples: list[list[int]]


class _Shared(msgspec.Struct):
    frames: list[RawFrame]


class _File(msgspec.Struct):
    profiles: list[_Profile]
    shared: _Shared


# Made while the module is imported: msgspec crashes where two threads are the first to decode a type at the same time.
_decoder = msgspec.json.Decoder(_File)


def parse(
    data: bytes, main_threads: frozenset[str], *, every_thread: bool = True
) -> tuple[list[RawFrame], list[ThreadSamples]]:
    """Frames and threads of one process. `main_threads` are the ids its main thread may go by.

    `every_thread`: the file has all threads of the process, so that one alone must be the main one.

    Raises ValueError for anything that is not such a file, or is too large to be one.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"py-spy wrote {len(data)} bytes")
    try:
        file = _decoder.decode(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    frames = file.shared.frames
    # A frame that no program has was read while the process changed it, so its whole sample is left out.
    sound = [_is_sound(frame) for frame in frames]
    named = [(_PROFILE.fullmatch(profile.name), profile.samples) for profile in file.profiles]
    threads = [(match["id"], match["name"], _counted(samples, sound)) for match, samples in named if match]
    main = _main(threads, main_threads, frames, every_thread=every_thread)
    samples_by_thread = []
    for index, (number, name, stacks) in enumerate(threads):
        # py-spy reads without stopping the process, and sometimes meets a stack in the middle of a change.
        whole = _whole(stacks, frames) if index == main else stacks
        samples_by_thread.append(ThreadSamples(MAIN_NAME if index == main else name, index == main, whole, number))
    return frames, samples_by_thread


def _is_sound(frame: RawFrame) -> bool:
    """Whether it has a name that is no path, a line that a file may have, and no control characters in its file."""
    name, line, file = frame.name, frame.line or 0, frame.file or ""
    return bool(name) and "/" not in name and 0 <= line <= MOST_LINES and _CONTROL.search(file) is None


def _counted(samples: list[list[int]], sound: list[bool]) -> Counter[tuple[int, ...]]:
    valid = (
        # The outermost frame, by which a whole stack is known, and the innermost, which run.
        tuple(sample if len(sample) <= MOST_DEPTH else (sample[0], *sample[1 - MOST_DEPTH :]))
        for sample in samples
        if all(0 <= index < len(sound) and sound[index] for index in sample)
    )
    return Counter(stack for stack in valid if stack)


def _main(
    threads: list[tuple[str, str, Counter[tuple[int, ...]]]],
    ids: frozenset[str],
    frames: list[RawFrame],
    *,
    every_thread: bool,
) -> int | None:
    """Which of the threads is the main one: by its id, by its name, by being alone, or by running a module."""
    for index, (thread, _, _) in enumerate(threads):
        if thread in ids:
            return index
    for index, (_, name, _) in enumerate(threads):
        if name == MAIN_NAME:
            return index
    if len(threads) == 1 and every_thread:
        return 0
    # Before Python 3.11 ids are addresses, and names are known only once `threading` was imported.
    for index, (_, _, stacks) in enumerate(threads):
        if any(frames[stack[0]].name in ("<module>", "_run_module_as_main") for stack in stacks):
            return index
    return None


def _whole(stacks: Counter[tuple[int, ...]], frames: list[RawFrame]) -> Counter[tuple[int, ...]]:
    """The samples that reach an outermost frame of the thread: the usual one, or that of a greenlet.

    A stack without its outer frames begins with a function that other stacks have further in.
    """
    roots: Counter[_Place] = Counter()
    for stack, count in stacks.items():
        roots[_place(frames[stack[0]])] += count
    if not roots:
        return stacks
    usual = max(roots, key=lambda place: (place[0] in ("<module>", "_run_module_as_main"), roots[place]))
    further_in = {_place(frames[index]) for stack in stacks for index in stack[1:]}
    least = LEAST_OF_GREENLETS * roots.total()
    outermost = {place for place, count in roots.items() if count >= least and place not in further_in} | {usual}
    return Counter({stack: count for stack, count in stacks.items() if _place(frames[stack[0]]) in outermost})


def _place(frame: RawFrame) -> _Place:
    return frame.name, frame.file
