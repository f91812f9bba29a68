"""host-bound: host code on the critical path that no other cause explains, with its line. Runs after all causes of time
but compute-bound.
"""

from __future__ import annotations

from msgspec.structs import replace

from aitop.diagnosis import op_cost
from aitop.diagnosis.causes import producers
from aitop.diagnosis.causes.serving.front import blocked_loop
from aitop.diagnosis.causes.serving.turns import around_model
from aitop.diagnosis.device import host_limit, host_unproven, idle_words, starved
from aitop.diagnosis.evidence import (
    HOST,
    MIN_SAMPLES,
    MOST_HELD,
    RUNNING,
    Lines,
    by_hand,
    each_unit,
    hands_over,
    lines_of,
    main_lines,
    of_unit,
    place_of,
    producer_entries,
    records,
    samples_of,
    server_idle_share,
    serves,
    shares_by,
    short_place,
    stands_in_line,
    stepping,
    takes_request,
    where_of,
    within_first,
)
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import Scope, fix, without
from aitop.model.ledger import ACTIVITIES, Activity, Entry
from aitop.model.phases import TIMED_ALONE
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent

ENTER, LEAVE = 0.15, 0.1
# Activities that are a loss even in a program without steps. Other waits may be for the threads, processes or devices
# that do its work, Python may be the work itself, and what is compiled once is not compiled again.
LOST: frozenset[Activity] = frozenset(
    {"sleep", "spawn", "collect", "wait-disk", "wait-network", "wait-child", "wait-room"}
)


@rule("host-bound", ENTER, LEAVE, scope=Scope(each_unit=True, idle=True))
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict on the host's time that no other cause has claimed."""
    if samples_of(snapshot) * (1.0 - server_idle_share(snapshot)) < MIN_SAMPLES:
        return around_model(snapshot) or f"{MIN_SAMPLES} stack samples of its work are needed"
    serving = serves(snapshot)
    # In a program without steps, computing arrays on the host is the work itself, unless a device waits for it.
    waited_for = starved(snapshot) and not stepping(snapshot)
    work = () if waited_for else by_hand(snapshot).entries
    lines = main_lines(
        snapshot,
        lambda entry: (
            entry.phase in (*HOST, "environment", *(phase.key for phase in TIMED_ALONE))
            and entry.where is not None
            # Tensor operations between the model's call and its update are the loss, or clip gradients.
            and not (entry.position in ("within", "gradients") and entry.work == "tensor")
            and entry not in work
            and not (serving and (takes_request(entry) or stands_in_line(entry)))
        ),
    )
    told = (
        _queue_is_full(snapshot, lines_of(entry for entry in lines.entries if entry.activity == "wait-room"))
        or _host_time(snapshot, lines, lost=True if waited_for else None)
        or _handed_over(snapshot)
        or blocked_loop(snapshot)
        or around_model(snapshot)
    )
    if told is None and serving and main_lines(snapshot, lambda entry: entry.does in RUNNING).share < ENTER:
        # Requests queue and no thread works for them: at least the line where they queue is known.
        return _host_time(snapshot, main_lines(snapshot, stands_in_line), lost=False)
    return told


def _queue_is_full(snapshot: Snapshot, waits: Lines) -> Explanation | None:
    """The verdict on waits for room in a queue: whoever takes from it is slower than the thread that puts into it."""
    share = min(waits.share, 0.99)
    if share < LEAVE or not waits.where:
        return None
    put = waits.where[0]
    takers = producers.makers(snapshot)
    where, who = (waits.where, "whoever takes from it") if takers is None else (takers.lines.where, takers.who)
    evidence = [f"{percent(share)} at {short_place(put)}, which waits for room in a queue"]
    slower = f"what takes from the queue is slower than {put.function} puts into it"
    if takers is not None:
        slower += f": {who} at work for {percent(takers.lines.share)} of the time, most at {short_place(where[0])}"
    cheaper = f"make {place_of(where[0])} cheaper, or have more of them take from the queue"
    return Explanation(
        share=share,
        signals=(bool(records(snapshot)), takers is not None),
        title=f"{percent(share)} of {each_unit(snapshot)} waits for room in a queue: {who} cannot keep up",
        lines=waits,
        where=(*where[:2], put) if takers is not None else waits.where,
        evidence=(*evidence, slower),
        fixes=(fix(cheaper if takers is not None else f"take from the queue at {place_of(put)} faster", share),),
    )


def _handed_over(snapshot: Snapshot) -> Explanation | None:
    """The verdict on the time that a process takes to unpickle and copy what other processes send it."""
    lines = main_lines(snapshot, lambda entry: hands_over(entry) and entry.does in RUNNING)
    share = min(lines.share, host_limit(snapshot), 0.99)
    of_each, at_leisure = of_unit(snapshot, share)
    if share < LEAVE:
        return None
    frame, _ = lines.entries[0].below[0]
    # Where requests in another process wait for this one is where they are handed over.
    asks = lines_of(entry for entry in producer_entries(snapshot) if _waits_for_answer(entry, lines.entries[0].pid))
    unit = "each request" if at_leisure else each_unit(snapshot)
    title = f"{percent(of_each)} of {unit} takes over what another process sends: it is pickled, copied and unpickled"
    return Explanation(
        severity="info" if at_leisure else None,
        share=share,
        saved=of_each,
        signals=(bool(records(snapshot)), True),
        title=title,
        lines=lines,
        where=asks.where or (where_of(lines.entries[0].pid, frame),),
        evidence=(
            f"{percent(share)} in {frame.function}, below which no line of the program's own runs",
            *((f"requests wait for it at {short_place(asks.where[0])}",) if asks.where else ()),
        ),
        fixes=(
            fix("send less: bytes or a path instead of arrays, a function instead of an object's method", of_each),
            fix("do both parts in one process, and have several of these", of_each),
        ),
    )


def _waits_for_answer(entry: Entry, pid: int) -> bool:
    """Whether a thread of another process than `pid`, with a request of its own, waits at a queue or a pipe."""
    return entry.pid != pid and entry.handler == "thread" and entry.activity == "wait-queue" and entry.where is not None


def _of_work(place: str, *, small: bool, eager: bool) -> str:
    """What to do about a line that works; `small`: it calls small operations, `eager`: of JAX, outside of jax.jit."""
    if eager:
        return f"call {place} from a function under jax.jit, which makes one program of its operations"
    if small:
        return f"do the work of {place} in fewer, larger operations"
    return f"shorten {place}, or overlap it with the step"


def _host_time(snapshot: Snapshot, lines: Lines, *, lost: bool | None = None) -> Explanation | None:
    """The verdict on these lines' time. `lost`: whether the run could do without it; None: decide by their activity."""
    share = min(lines.share, host_limit(snapshot), 0.99)
    of_each, at_leisure = of_unit(snapshot, share)
    where = lines.where
    at_first = [entry for entry in lines.entries if entry.at == where[0].at]
    loops = any(entry.handler == "event-loop" for entry in at_first)
    # Code that blocks an event loop is judged by its share of a request's time, however few requests come.
    level = of_each if loops else share
    if level < LEAVE or not where:
        return None
    first, *others = where
    steps, steps_seen = records(snapshot), stepping(snapshot)
    eager = lines_of(at_first).part(lambda entry: entry.work == "eager") > 0.5
    if lost is None:
        lost = steps_seen or eager or lines.part(lambda entry: entry.does in LOST) > 0.5
    top = share * (first.share or 1.0)
    weights = shares_by(at_first, lambda entry: entry.does)
    most = max(weights, key=lambda activity: weights[activity])
    # Large operations release the GIL for nearly all of their time.
    held = weights.get("python", 0.0) / sum(weights.values())
    small = eager or (most == "native" and held >= MOST_HELD)
    doing = "calls operations one by one" if eager else ACTIVITIES[most]
    evidence = [f"{percent(top)} at {short_place(first)}, which {doing}"]
    if others:
        then = (f"{short_place(other)} {percent(share * (other.share or 0.0))}" for other in others[:2])
        evidence.append("then " + ", ".join(then))
    if loops:
        evidence.append("the event loop runs it: no other request of this process gets on meanwhile")
    if at_leisure:
        evidence.append(at_leisure)
    if not steps_seen:
        evidence += idle_words(snapshot) if starved(snapshot) else ()
        evidence.append("no phase of a training step and no model call was seen in its stacks")
    if small:
        evidence.append(f"the interpreter's lock is held {percent(held)} of that: these are many small calls")
    if loops:
        ahead = f"await what {place_of(first)} waits for, or run it with asyncio.to_thread"
    elif most == "wait-lock" and not any(entry.below for entry in at_first):
        ahead = f"let go sooner of the lock that {place_of(first)} waits for, or work on a copy where it is held"
    else:
        ahead = _of_work(place_of(first), small=small, eager=eager)
    # A fix at that line saves what its function takes, and only that is foretold. What blocks an event loop is moved
    # out of it as a whole.
    shorter_by = of_each if loops else of_each * within_first(lines)
    unit = "each request" if at_leisure else each_unit(snapshot)
    # Larger operations still do the arithmetic of the small ones: only what the calls themselves take is sure to go.
    calls, length = (
        without(shorter_by * min(1.0, op_cost.WHOLE_CALL * held), lines.entries),
        without(shorter_by, lines.entries),
    )
    if small:
        # One compiled program also does what the operations do, only not one after the other.
        length = replace(length, likely=calls.likely if eager else length.likely, most=calls.most)
    shorter = fix(ahead, length)
    return Explanation(
        severity=None if lost and not (at_leisure and not loops) else "info",
        doubtful=not steps_seen or host_unproven(snapshot),
        subtype="event-loop" if loops else None,
        share=share,
        saved=length,
        level=level,
        gains=lost,
        signals=(bool(steps), top > 0.5 * share),
        title=f"{percent(of_each)} of {unit} is host code: {first.function} {doing}",
        lines=lines,
        evidence=evidence,
        fixes=(shorter if lost else fix(f"look at {place_of(first)} first"),),
    )
