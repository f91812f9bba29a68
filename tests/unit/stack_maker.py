"""Hand-made stacks: `stack("train.py:12 main | for x in loader", "torch/utils/data/dataloader.py next")`."""

import msgspec

from aitop.model.stacks import Frame, Look, StackCount, StackWindow, ThreadState

LIB = "/home/ada/venv/lib/python3.11/site-packages/"
STD = "/usr/lib/python3.11/"
USER = "/home/ada/proj/"


def frame(words: str) -> Frame:
    """'FILE[:LINE] FUNCTION [| TEXT]'. FILE below site-packages unless it starts with std/ or user/, or is '<…>'."""
    place, _, text = words.partition(" | ")
    file, _, function = place.strip().rpartition(" ")
    file, _, line = file.partition(":")
    user = file.startswith("user/")
    if user:
        path = USER + file[5:]
    elif file.startswith("std/"):
        path = STD + file[4:]
    else:
        path = file if file.startswith("<") else LIB + file
    return Frame(function, path, int(line or 1), user, text.strip() or None)


def stack(*frames: str) -> list[Frame]:
    """A stack, the outermost frame first."""
    return [frame(words) for words in frames]


def window(time: float, *samples: tuple[int, str, bool, list[Frame], int], seconds: float = 2.0) -> StackWindow:
    """A window of (pid, thread, main, stack, count)."""
    table: dict[Frame, int] = {}
    stacks = [
        StackCount(pid, thread, main, tuple(table.setdefault(one, len(table)) for one in frames), count)
        for pid, thread, main, frames, count in samples
    ]
    return StackWindow(time=time, seconds=seconds, rate=20.0, frames=tuple(table), stacks=tuple(stacks))


def looks(pid: int, kind: str, asked: int, *hits: tuple[list[Frame], int], thread: str = "MainThread"):
    """Adds to a window the looks at a process that met its thread in one state: (stack, count)."""

    def added(seen: StackWindow) -> StackWindow:
        table = {one: number for number, one in enumerate(seen.frames)}
        numbered = [(tuple(table.setdefault(one, len(table)) for one in frames), count) for frames, count in hits]
        stacks = tuple(StackCount(pid, thread, thread == "MainThread", at, count) for at, count in numbered)
        look = Look(pid=pid, kind=kind, asked=asked, stacks=stacks)
        return msgspec.structs.replace(seen, frames=tuple(table), looks=(*seen.looks, look))

    return added


def state(pid: int, asked: int, *, running: int, thread: str = "MainThread", **waits: int) -> ThreadState:
    """What the kernel said of a thread: `running` looks on a core, the others in those kinds of waiting."""
    return ThreadState(pid=pid, thread=thread, main=thread == "MainThread", asked=asked, running=running, waits=waits)
