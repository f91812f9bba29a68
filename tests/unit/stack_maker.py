"""Hand-made stacks: `stack("train.py:12 main | for x in loader", "torch/utils/data/dataloader.py next")`."""

from aitop.model.stacks import Frame, StackCount, StackWindow

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
