"""Fronts: threads of a server that take requests from the network for the thread that runs the model. Pure.

Such a thread, in the model's process or in one of its own, runs an event loop: the server can take no more than that
thread can do, and nothing while a handler blocks it.
"""

from __future__ import annotations

import msgspec

from aitop.diagnosis.evidence import (
    Lines,
    lead_ledger,
    lines_of,
    main_lines,
    place_of,
    producer_entries,
    takes_request,
)
from aitop.diagnosis.rule import Explanation
from aitop.diagnosis.what_if import fix
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.stacks.origin import is_user

# A thread that runs for nine tenths of the time is full: requests wait ten times as long as it works on them.
FULL = 0.9
# If the model waits for requests for less than this share of the time, a faster front gains next to nothing.
LEAST_IDLE = 0.1
# From this share on, a full thread mostly makes inputs and outputs of the model.
MOSTLY = 0.5
MADE: frozenset[str] = frozenset({"preprocess", "postprocess"})
# What helps where an event loop has too much to do.
MORE_PROCESSES = (
    "more processes that take requests, each on a core of its own: --api-server-count (vLLM), --workers (uvicorn), "
    "num_api_servers (LitServe)"
)
DO_LESS = (
    "do less in the event loop for each request and token: smaller answers, bytes instead of JSON, fewer and larger "
    "pieces of a stream"
)
OF_INPUT = frozenset({"tokenize", "decode", "collate"})


class Front(msgspec.Struct, frozen=True):
    """A thread whose event loop runs for a share `active` of the time, of which it makes inputs for a share `making`.

    `lines` are what it does there, without waits. `idle` is the share of the time in which the thread that runs the
    model waits for requests.
    """

    pid: int
    thread: str
    active: float
    making: float
    idle: float
    lines: Lines


def fronts(snapshot: Snapshot) -> list[Front]:
    """The threads, other than the one that runs the model, that were seen to handle requests."""
    ledger, stacks = lead_ledger(snapshot), snapshot.stacks
    if ledger is None or stacks is None or snapshot.kind == "training":
        return []
    idle = main_lines(snapshot, takes_request).share
    made: dict[tuple[int, str], float] = {
        (process.pid, process.thread): sum(one.share for one in process.lineless if one.phase in MADE)
        for process in stacks.processes
        if process.pid != ledger.pid
    }
    working: dict[tuple[int, str], list[Entry]] = {key: [] for key, share in made.items() if share}
    for entry in filter(_works, producer_entries(snapshot)):
        working.setdefault((entry.pid, entry.thread), []).append(entry)
    active = {(each.pid, each.thread): each.active for each in stacks.threads}
    found = []
    for key, entries in working.items():
        own = sum(entry.share for entry in entries if entry.phase in MADE or entry.work in OF_INPUT)
        runs = active.get(key)
        if runs is not None:
            found.append(Front(*key, runs, min(1.0, own + made.get(key, 0.0)), idle, lines_of(entries)))
    return found


def _works(entry: Entry) -> bool:
    return entry.handler == "event-loop" and entry.phase != "idle"


def _blocks(entry: Entry) -> bool:
    """Whether an event loop's thread is in a handler of the user's.

    Library code does not count: it is the server that hands requests on, also to threads of its own.
    """
    return is_user(entry.file, script=None)


def full_front(snapshot: Snapshot, *, making: bool) -> Explanation | None:
    """The verdict on a front whose thread is full while the model waits for requests; None without such a front.

    With `making`, only fronts count that mostly make the model's inputs and outputs, otherwise only the others.
    """
    for front in sorted(fronts(snapshot), key=lambda each: -each.active):
        if front.active < FULL or front.idle < LEAST_IDLE or (front.making >= MOSTLY) != making:
            continue
        what = "tokenises and detokenises" if making else "runs"
        place = f", most of it at {place_of(front.lines.where[0])}" if front.lines.where else ""
        # Two such processes do twice as much, as long as the model is not the limit.
        saved = min(front.idle, 0.5)
        return Explanation(
            subtype="one-core",
            share=front.idle,
            saved=saved,
            signals=(True, front.idle >= 2 * LEAST_IDLE, front.active >= 0.97),
            title=f"the thread that takes the requests ({front.thread}, pid {front.pid}) {what} all of the time, "
            f"and the model waits {percent(front.idle)} of it",
            lines=front.lines,
            claims=(),
            evidence=(
                f"the thread of the event loop runs {percent(front.active)} of the time{place}",
                *([f"{percent(front.making)} of its samples make inputs and outputs of the model"] if making else []),
            ),
            fixes=(
                fix(MORE_PROCESSES, saved),
                fix(DO_LESS),
            ),
        )  # fmt: skip
    return None


def blocked_loop(snapshot: Snapshot) -> Explanation | None:
    """The verdict on handlers that block the event loop of a thread beside the one that runs the model."""
    worst: tuple[Front, Lines] | None = None
    for front in fronts(snapshot):
        blocking = lines_of(filter(_blocks, front.lines.entries))
        if blocking.lines and (worst is None or blocking.share > worst[1].share):
            worst = front, blocking
    if worst is None:
        return None
    front, lines = worst
    lost = min(lines.share, front.idle)
    at = place_of(lines.where[0])
    return Explanation(
        subtype="event-loop",
        share=min(0.99, lines.share),
        saved=lost,
        gains=lost >= LEAST_IDLE,
        signals=(True, lines.samples >= 10),
        title=f"handlers block the event loop {percent(lines.share)} of the time: {at}",
        lines=lines,
        evidence=(
            f"{lines.samples:.0f} stack samples of the thread of the event loop (pid {front.pid}) stand there",
            "no other request of that loop gets on meanwhile",
            f"the model waits for requests {percent(front.idle)} of the time",
        ),
        fixes=(
            fix(f"await what {at} waits for, or run it with asyncio.to_thread", lost if lost >= LEAST_IDLE else None),
            fix("a handler without async runs in a thread of its own (FastAPI, Starlette)"),
        ),
    )
