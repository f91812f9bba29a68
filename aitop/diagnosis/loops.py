"""Loops seen in stacks: which hold most of some lines' time, and whether turns need each other. Pure."""

from __future__ import annotations

import re

from aitop.diagnosis.evidence import Lines, main_lines
from aitop.model.snapshot import HotLine, Snapshot

NEEDS_LAST = re.compile(r"^([\w.]+)(?:, [\w.]+)* = (?=.*(?<![\w.])\1(?![\w.]))(?!\1 [-+*] )")
MOST_IN_LOOP = 0.5
LOOP = re.compile(r"^(?:async )?(?:for|while)\b.*:(?:\s*#.*)?$")
HEAD = re.compile(r"for (.+?) in ")
# One for each of a few names is no loop to speak of.
UNPACKED = re.compile(r"^\w+(?:, \w+)+ = ")
COMPREHENSION = re.compile(r"\bfor \w.* in .*[\])}]")
# What a comprehension does for each element beyond taking it out, and the calls around it that only gather.
WORK = re.compile(r"[\w\])]\(|[\w\])]\[|[-+*/@%]")
GATHERS = re.compile(
    r"(?:^|[^\w.])(?:(?:torch|np|numpy|F|math)\.\w+|sum|list|tuple|dict|max|min)$|\.(?:append|extend)$"
)

Head = tuple[str, str, "str | None"]


def heads_of(snapshot: Snapshot, lines: Lines) -> frozenset[Head]:
    """The heads of loops among those lines, but for those of loops that make steps or go over layers."""
    making = main_lines(snapshot, lambda line: line.phase in ("backward", "optimizer")).lines
    steps = {(line.file, line.function, line.loop) for line in making}
    steps |= {(frame.file, frame.function, frame.loop) for line in making for frame in line.via}
    layers = {line.loop for line in lines.lines if _of_layers(line)}
    found = (line for line in lines.lines if _is_loop(line) and line.text not in layers)
    return frozenset((line.file, line.function, line.text) for line in found) - steps


def hold_most(lines: Lines, snapshot: Snapshot, heads: frozenset[Head]) -> bool:
    """A loop holds most of it, and a few lines of one function nearly all; the loop that makes steps is none."""
    stepping = _stepping(snapshot)
    functions: dict[tuple[str, str], int] = {}
    for line in lines.lines:
        key = (line.file, line.function)
        functions[key] = functions.get(key, 0) + line.samples
    looping = sum(
        line.samples
        for line in lines.lines
        if (_in_loop(line) and (line.phase != "outside" or (line.file, line.function) not in stepping))
        or not heads.isdisjoint([(line.file, line.function, line.text), (line.file, line.function, line.loop)])
    )
    whole = sum(functions.values())
    return looping >= MOST_IN_LOOP * whole > 0 and max(functions.values()) >= 0.6 * whole


def _in_loop(line: HotLine) -> bool:
    return line.loop is not None and not _of_layers(line)


def _of_layers(line: HotLine) -> bool:
    """Whether what is gone over in the loop around the line are layers: each turn is another one's, as it has to be."""
    names = re.findall(r"\w+", head[1]) if (head := HEAD.match(line.loop or "")) else ()
    texts = [frame.text or "" for frame in line.via if frame.loop == line.loop]
    called = rf"(?<![\w.])(?:{'|'.join(names)})\(|\[(?:{'|'.join(names)})\]\("
    return bool(names) and any(re.search(called, text) for text in (*texts, line.text or ""))


def _stepping(snapshot: Snapshot) -> frozenset[tuple[str, str]]:
    """The functions from which backward passes and optimizer steps are made."""
    lines = main_lines(snapshot, lambda line: line.phase in ("backward", "optimizer")).lines
    above = {(frame.file, frame.function) for line in lines for frame in line.via}
    return frozenset(above | {(line.file, line.function) for line in lines})


def carries_state(lines: Lines) -> bool:
    """Whether the loop carries a state from turn to turn, as `h = cell(x[t], h)`; sums may be made in any order."""
    return any(line.loop and NEEDS_LAST.search(line.text or "") for line in lines.lines)


def _is_loop(line: HotLine) -> bool:
    return line.text is not None and (LOOP.search(line.text) is not None or _works_by_element(line))


def _works_by_element(line: HotLine) -> bool:
    """Whether a comprehension on the line does something for each element; in a forward pass, calls the model for it.

    In `model(torch.stack([x for x, _ in taken]))` the model is called once.
    """
    text = line.text or ""
    found = COMPREHENSION.search(text)
    if found is None or UNPACKED.match(text):
        return False
    element, around = _opened(text[: found.start()])
    if WORK.search(element) is None:
        return False
    return line.phase != "forward" or all(GATHERS.search(call) for call in around)


def _opened(text: str) -> tuple[str, tuple[str, ...]]:
    """What stands behind the last bracket that is still open, and what stands before each open call."""
    open_at: list[int] = []
    for index, letter in enumerate(text):
        if letter in "([{":
            open_at.append(index)
        elif letter in ")]}" and open_at:
            open_at.pop()
    if not open_at:
        return text, ()
    calls = [text[:at].rstrip() for at in open_at if text[at] == "("]
    return text[open_at[-1] + 1 :], tuple(call for call in calls if call[-1:].isalnum() or call[-1:] == "_")
