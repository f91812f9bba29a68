"""Parameters updated by hand, without an optimizer of torch's: loops that change each one by its gradient."""

from __future__ import annotations

import re
from collections.abc import Callable

from aitop.diagnosis.evidence import Lines, main_lines, of_outside, on_gpu
from aitop.model.snapshot import HotLine, Snapshot

GRADIENT = re.compile(r"\.grad\b")
IN_PLACE = re.compile(r"[-+*/]=|\.[a-z]\w*_\(|\.data\b.*(?<![=!<>])=(?!=)")
# Where an optimizer of torch's takes more than this part of a step, what else goes over gradients (clipping, noise) is
# no update.
HARDLY = 0.01
CHANGED = r"(?:\.data)?(?:\s*[-+*/]=|\.[a-z]\w*_\(|(?<=data)\s*=(?!=))"
HEAD = re.compile(r"for (.+?) in ")
# What only looks at gradients, or throws them away.
ASIDE = re.compile(r"\.grad\.zero_\(|\.grad = None|norm|isnan|isfinite|\.item\(")


def updating(snapshot: Snapshot) -> Callable[[HotLine], bool]:
    """A test for lines outside of every phase: does this one update parameters? Only in training, and on the CPU."""
    optimizer = snapshot.steps.phases.optimizer if snapshot.steps else None
    if snapshot.kind != "training" or on_gpu(snapshot) or (optimizer or 0.0) > HARDLY:
        return lambda line: False
    lines = main_lines(snapshot, _computes).lines
    taken = {
        _loop(line, line.loop) for line in lines if _of_loop(line, r"\.grad\b") and not ASIDE.search(line.text or "")
    }
    changed = {_loop(line, line.loop) for line in lines if _of_loop(line, CHANGED)}
    loops = taken & changed
    return lambda line: (
        _by_gradient(line) or (_computes(line) and (_loop(line, line.loop) in loops or _loop(line, line.text) in loops))
    )


def update_lines(snapshot: Snapshot) -> Lines:
    """Those lines; the share is corrected by the measured time outside of the phases."""
    found = main_lines(snapshot, updating(snapshot))
    return Lines(of_outside(snapshot, found), found.lines)


def _loop(line: HotLine, head: str | None) -> tuple[str, str, str | None]:
    return line.file, line.function, head


def _of_loop(line: HotLine, what: str) -> bool:
    """Whether the line has one of the names of the loop around it, and `what` behind it: such a loop makes no steps."""
    head = HEAD.match(line.loop or "")
    names = re.findall(r"\w+", head[1]) if head else ()
    return any(re.search(rf"(?<![\w.]){name}{what}", line.text or "") for name in names)


def _computes(line: HotLine) -> bool:
    return line.phase == "outside" and line.activity in ("python", "compute")


def _by_gradient(line: HotLine) -> bool:
    text = line.text or ""
    return bool(_computes(line) and GRADIENT.search(text) and IN_PLACE.search(text) and not ASIDE.search(text))
