"""sync-stall: the host waits for the device (`.item()`, `.cpu()`, printing a tensor), and the device then for the host.

A wait for a busy device is no loss: without it the host would wait at the next one. Only the time is lost in which the
device idles, because after the wait the host has nothing queued for it.
"""

from __future__ import annotations

from operator import attrgetter

from aitop.diagnosis.device import call_places, calls_of, idle_share, idle_words, on_gpu, per_step
from aitop.diagnosis.evidence import MIN_STEPS, each_unit, main_lines, records, share_of_steps, short_place
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import Scope, fix
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.steps import CallSite
from aitop.model.units import duration, percent
from aitop.model.verdict import Fix, Where

ENTER, LEAVE = 0.08, 0.05
READ_EVERY = 50
SELDOM = 1.0 - 1.0 / READ_EVERY

# What to do about a call that waits, and which part of the wait that saves.
_SYNCHRONIZES = "take the synchronize() at {at} out; CUDA events time the device without stopping it", 1.0
_PRINTS = f"print the tensor at {{at}} every {READ_EVERY} steps", SELDOM
_DECIDES = f"decide on the device at {{at}} (torch.where, masks), or check every {READ_EVERY} steps", 1.0
_COPIES = "copy at {at} with non_blocking=True into pinned memory, and read it a step later", 1.0
_READS = (
    f"keep the value at {{at}} on the device (detach(), summed up there), and read it every {READ_EVERY} steps",
    SELDOM,
)
# The fix if no call was measured: it fits all of them.
_ANY = (
    f"wait for the device at {{at}} every {READ_EVERY} steps only, or copy results with non_blocking=True and read "
    "them a step later",
    SELDOM,
)
# By the call's name as the hook gives it.
_OF_CALL = {
    **dict.fromkeys(("cuda.synchronize", "xpu.synchronize", "Stream.synchronize", "Event.synchronize"), _SYNCHRONIZES),
    "print": _PRINTS,
    **dict.fromkeys(("bool", "is_nonzero", "equal", "nonzero", "argwhere", "masked_select"), _DECIDES),
    **dict.fromkeys(("unique", "unique_consecutive"), _DECIDES),
    **dict.fromkeys(("to", "cpu", "copy_", "tolist"), _COPIES),
    **dict.fromkeys(("item", "int", "float", "index", "complex"), _READS),
}


@rule("sync-stall", ENTER, LEAVE, applies=on_gpu, scope=Scope(each_unit=True, idle=True))
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Whether the device idles because the host keeps waiting for it."""
    lines = main_lines(snapshot, _waits)
    measured = share_of_steps(records(snapshot), attrgetter("blocking"), MIN_STEPS)
    waiting = measured if measured is not None else lines.share
    if waiting < LEAVE:
        return None
    idle, words = idle_share(snapshot), idle_words(snapshot)
    if idle is None:
        reason = f"the host waits for the GPU in {percent(waiting)} of {each_unit(snapshot)}"
        return f"{reason}; whether that costs is not measured: nothing tells how much the GPU idles"
    share = min(0.99, waiting, idle)
    calls = calls_of(snapshot, "blocking")
    where = call_places(snapshot, calls, lines.lines) or lines.where
    how = "measured in the process" if measured is not None else "of stack samples"
    return Explanation(
        share=share,
        signals=(measured is not None, lines.share >= LEAVE, len(words) > 1),
        doubtful=not where,
        title=f"{percent(share)} of {each_unit(snapshot)} passes with the host waiting for the GPU, which then idles",
        where=where,
        claims=lines.entries,
        evidence=(
            f"the host waits for the GPU in {percent(waiting)} of {each_unit(snapshot)} ({how})",
            *words,
            *(_call_words(snapshot, call) for call in calls[:2] if per_step(snapshot, call) is not None),
        ),
        fixes=[_fix(snapshot, place, calls, share) for place in where[:2]] or [_general_fix(snapshot, share)],
    )


def _waits(entry: Entry) -> bool:
    waits = entry.activity == "wait-device" or entry.work == "read"
    return waits and entry.phase not in ("save", "evaluation", "data", "transfer")


def _call_words(snapshot: Snapshot, call: CallSite) -> str:
    each = f", {duration(call.seconds / call.calls)} each" if call.seconds and call.calls else ""
    return f"{call.name} at {short_place(call)}: {per_step(snapshot, call):.1f} calls a step{each}"


def _fix(snapshot: Snapshot, place: Where, calls: tuple[CallSite, ...], share: float) -> Fix:
    """What to do about the wait at one line."""
    names = [call.name for call in calls if (call.file, call.line) == (place.file, place.line)]
    at, part = short_place(place), share * (1.0 if place.share is None else place.share)
    text, ended = kind = next((_OF_CALL[name] for name in names if name in _OF_CALL), _ANY)
    if snapshot.kind == "inference" and kind in (_COPIES, _READS, _ANY):
        # Requests wait for these results: they can be read later, but not less often.
        return fix(f"launch the next batch before results are read at {at}, and read all of a batch in one call", part)
    return fix(text.format(at=at), part * ended)


def _general_fix(snapshot: Snapshot, share: float) -> Fix:
    if snapshot.kind == "inference":
        return fix("launch the next batch before the results of the last one are read, all of them in one call", share)
    return fix(
        f"read losses and metrics from the device every {READ_EVERY} steps instead of at each one", share * SELDOM
    )
