"""queue-bound: requests wait because they arrive faster than they are served. What a replica or larger batches give.

Requests may also wait while no thread works for them: for a batch to fill, for a timer, for another service.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from aitop.diagnosis.causes.oversubscription import BECAUSE_OF_OTHERS, others_have_cores
from aitop.diagnosis.causes.serving.tail import computed_twice
from aitop.diagnosis.causes.serving.turns import KV_FULL
from aitop.diagnosis.evidence import (
    AT_WORK,
    MAIN,
    NO_LINES,
    RUNNING,
    Lines,
    interval,
    lines_of,
    main_lines,
    main_stacks,
    producer_entries,
    records,
    serves,
    short_place,
    takes_request,
    waits_for_requests,
    where_of,
)
from aitop.diagnosis.queueing import Change, Load, change, load_of
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.series import mean_of
from aitop.diagnosis.served import all_taken, idle_share
from aitop.diagnosis.what_if import LEFT, Length, Scope, TurnCost, fix, turn_cost
from aitop.model.ledger import Entry, Ledger
from aitop.model.serving import Serving
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration, percent
from aitop.model.verdict import Fix, Setting, Where
from aitop.stacks.origin import is_user
from aitop.stacks.pool import SEVERAL, SHORT_THREADS

# From ENTER on a request waits longer than it is worked on. In a server that is half busy, requests of equal length
# that come at random spend a third of their time in the queue.
ENTER, LEAVE = 0.5, 0.4
# A server that is at work for less than LEAST_BUSY of the time does not lack capacity: its requests wait for something
# else. Up to ALWAYS_BUSY it may still keep up.
LEAST_BUSY, ALWAYS_BUSY = 0.7, 0.9
# Processes whose threads work for no more than this part of the time mostly rest. A timer sleeps for more of it.
MOSTLY = 0.5
THREADS = "more threads for requests (gunicorn --threads, anyio's limiter)"
SERVICES = "ask other services at the same time, not one after the other, and keep connections to them open"
ADMIT = "let requests into the batch as soon as others leave it, not when all have ended (continuous batching)"
TOGETHER = (
    "answer the requests that wait with one call of the model (LitServe: max_batch_size): each has had its own so far,"
    " so what a larger batch gains is not known"
)
# The factor to try next for the size of batches.
MORE = 2
# A larger batch that gives less than this is not worth its latency.
WORTH_IT = 1.05


class Queue(msgspec.Struct, frozen=True):
    """How long requests wait: `share` (0..1) of their time. `busy` is the part of its time that the server works.

    `seconds` is the mean wait, None where only `waiting`, the mean number of waiting requests, is known. `where` are
    the lines on which threads wait for their turn, empty where the wait is seen elsewhere. `asking`: the threads whose
    turn it is mostly wait for a service. `threads` is the number of threads for which requests wait, if they do.
    `call` is the longest call of the model in seconds, where that tells waits for it from its work.
    """

    share: float
    busy: float | None
    seconds: float | None
    waiting: float | None
    where: tuple[Where, ...] = ()
    asking: bool = False
    threads: float | None = None
    call: float | None = None


# It needs no steps: its evidence is requests. It follows other causes: what makes each request slow makes the queue.
@rule("queue-bound", ENTER, LEAVE, scope=Scope(capacity=True), missing=None, follows=True)
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Whether requests wait for most of their time: for a server that is hardly ever idle, or while no thread works."""
    if snapshot.serving is None and snapshot.kind != "inference":
        return None
    serving = snapshot.serving or Serving(basis="stacks")
    idle = idle_share(serving)
    held = _held(idle, snapshot)
    if held is not None and held >= ENTER:
        return _of_held(serving, held, snapshot)
    beside = _waiting_beside_rest(serving, snapshot)
    if beside is not None and beside.waiting > (held or 0.0):
        return _of_few_at_work(serving, beside, snapshot)
    if held is not None and held >= LEAVE:
        return _of_held(serving, held, snapshot)
    queue = _queue(serving, idle, snapshot)
    if queue is None:
        return "how long requests wait was not measured"
    if queue.share < LEAVE:
        return None
    if queue.busy is None and not queue.waiting:
        return None
    if queue.busy is not None and queue.busy < LEAST_BUSY:
        return None
    if others_have_cores(snapshot):
        return BECAUSE_OF_OTHERS
    cost = turn_cost(serving.iterations)
    size, engines = _batch(serving), serving.engines or 1
    load = load_of(serving.requests, batch=size, engines=engines, cost=cost if size > 1 else None)
    # Where threads stand in line, or requests wait for one, the hook counts that as work on their requests: a
    # simulation would know no queue.
    known = not queue.where and queue.threads is None and queue.call is None
    replica = _replica(serving, load, cost) if known else None
    batch = _larger_batch(serving, load, cost) if known else None
    lengths = [changed.length for changed in (replica, batch) if changed is not None]
    best = max(lengths, key=lambda length: length.speedup, default=None)
    gains = best is not None and best.speedup >= WORTH_IT
    work = NO_LINES if queue.where or queue.threads is not None else main_lines(snapshot, _works_for_user)
    keeps_up = _keeps_up(queue)
    because = "they come at random" if keeps_up else "they arrive faster than they are served"
    return Explanation(
        severity="info" if keeps_up else "warning",
        share=min(0.99, queue.share),
        base="request",
        saved=best if gains else None,
        gains=gains,
        signals=(serving.basis == "hook", (queue.busy or 0.0) >= ALWAYS_BUSY, best is not None),
        doubtful=queue.busy is None,
        title=f"requests wait for {percent(queue.share)} of their time: {because}",
        evidence=_evidence(serving, queue, load, cost),
        fixes=_fixes(serving, queue, replica=replica, batch=batch, here=_here(replica, snapshot), work=work.where),
        where=queue.where or work.where,
    )


def _held(idle: float | None, snapshot: Snapshot) -> float | None:
    """The part (0..1) of the time with requests in which surely no thread works for them; None where it is not known.

    `idle` is the part without requests, None where it was not measured. The result is a lower bound: the work of all
    threads is added up as if no two of them ever worked at the same time.
    """
    if idle is None:
        idle = 1.0 - _under_way_at_least(snapshot)
    if idle >= 1.0 or not snapshot.ledgers:
        return None
    return 1.0 - (sum(map(_at_work, snapshot.ledgers)) + _at_work_beside(snapshot)) / (1.0 - idle)


def _at_work(ledger: Ledger) -> float:
    """The part (0..1) of its time in which a thread that runs the model does not wait for requests."""
    return 1.0 - sum(entry.share for entry in ledger.main if waits_for_requests(entry))


class _BesideRest(msgspec.Struct, frozen=True):
    """The part (0..1) of requests' time in which they wait, and that of the processes' time in which they rest."""

    waiting: float
    rest: float


def _waiting_beside_rest(serving: Serving, snapshot: Snapshot) -> _BesideRest | None:
    """How much requests wait although processes that run the model rest.

    None where that is not known, where no more requests wait than where they come at random, where the processes are
    mostly busy, and where one of them, or a thread beside them, always is: that is what requests wait for. A process
    works on as many at once as its batch has samples. Sleeps count as work: they may be part of a request.
    """
    samples = [step.samples for step in records(snapshot) if step.samples is not None]
    if len(snapshot.ledgers) < 2 or serving.concurrency is None or serving.iterations or not samples:
        return None
    working = [
        _at_work(ledger) + sum(entry.share for entry in ledger.main if entry.activity == "sleep")
        for ledger in snapshot.ledgers
    ]
    busy, beside = sum(working) / len(working), _at_work_beside(snapshot)
    if busy > MOSTLY or max(*working, beside) >= ALWAYS_BUSY:
        return None
    at_once = max(1.0, sum(samples) / len(samples))
    waiting = serving.concurrency - at_once * sum(working) - beside
    if waiting <= len(working) * _by_chance(busy):
        return None
    return _BesideRest(waiting / serving.concurrency, 1.0 - busy)


def _at_work_beside(snapshot: Snapshot) -> float:
    """How many threads work on average, other than those that run the model.

    By the kernel's figure of how long each runs: stacks do not show what an event loop does by itself.
    """
    stacks = snapshot.stacks
    if stacks is None:
        return 0.0
    moments = {process.pid: process.samples for process in stacks.processes}
    run_the_model = {(ledger.pid, ledger.thread) for ledger in snapshot.ledgers}
    run_the_model |= {
        (process.pid, name) for process in stacks.processes if process.pool for name in process.pool.threads
    }
    # Several threads may have one name.
    return sum(
        (each.active or 0.0) * each.samples / moments[each.pid]
        for each in stacks.threads
        if (each.pid, each.thread) not in run_the_model and moments.get(each.pid)
    )


def _under_way_at_least(snapshot: Snapshot) -> float:
    """The part (0..1) of the time in which stacks prove a request under way, where each has a thread of its own.

    That is the part in which the busiest of these threads handles one; 0 where requests have no threads. A name that
    stands for several threads proves nothing: how many of them handled one at the same time is not known.
    """
    known = snapshot.stacks.threads if snapshot.stacks is not None else ()
    there = {(each.pid, each.thread): each.samples for each in known}
    handling: dict[tuple[int, str], float] = {}
    for entry in producer_entries(snapshot):
        if entry.handler not in (None, "event-loop") and entry.thread != SHORT_THREADS:
            handling[entry.pid, entry.thread] = handling.get((entry.pid, entry.thread), 0.0) + entry.samples
    parts = [0.0]
    for key, samples in handling.items():
        looks = there.get((key[0], MAIN), 0)
        if looks and there.get(key, 0) < SEVERAL * looks:
            parts.append(interval(samples / looks, looks)[0])
    return max(parts)


def _waits(serving: Serving, snapshot: Snapshot) -> Lines:
    """The lines at which requests wait while no thread works for them."""
    handlers = lines_of(filter(_waits_in_handler, producer_entries(snapshot)))
    if handlers.where and not main_lines(snapshot, lambda entry: entry.phase == "forward").where:
        # The threads of the handlers run the model, too: what they wait for is not another thread that makes batches.
        return handlers
    # Where no requests were measured, a thread that waits for the next one rests: a timer tells more, if there is one.
    waits = main_lines(snapshot, _waits_for_batch if serving.requests else takes_request)
    timers = NO_LINES if serving.requests else _timers(snapshot)
    if timers.where or waits.where:
        return timers if timers.where else waits
    # A coroutine that awaits is on no stack: the lines at which its handler was seen to run are beside its awaits.
    own = main_lines(snapshot, _runs_in_loop)
    return own if own.where else lines_of(filter(_runs_in_loop, producer_entries(snapshot)))


def _timers(snapshot: Snapshot) -> Lines:
    """The lines of the user's at which a thread without a request of its own sleeps for most of its time."""
    return lines_of(
        entry
        for entry in producer_entries(snapshot)
        if entry.activity == "sleep"
        and entry.share > MOSTLY
        and entry.handler is None
        and is_user(entry.file, script=None)
    )


def _waits_in_handler(entry: Entry) -> bool:
    """Whether a thread with a request of its own waits."""
    works = {*RUNNING, "wait-core", "wait-gil"}
    return entry.handler not in (None, "event-loop") and entry.activity not in works


def _waits_for_batch(entry: Entry) -> bool:
    """Whether an entry waits, with requests under way, in the function that calls the model."""
    return entry.phase == "queue" and entry.position is not None


def _runs_in_loop(entry: Entry) -> bool:
    """Whether an entry is the user's code of a handler in an event loop, other than the model."""
    return entry.handler == "event-loop" and entry.phase != "forward" and is_user(entry.file, script=None)


def _works_for_user(entry: Entry) -> bool:
    """Whether an entry is work at a line of the user's own code."""
    return entry.does in AT_WORK and is_user(entry.file, script=None)


def _of_held(serving: Serving, held: float, snapshot: Snapshot) -> Explanation:
    """The verdict on requests that wait while no thread works for them, with the lines where they do, if known."""
    waits, timers = _waits(serving, snapshot), _timers(snapshot).where
    evidence = [f"no thread of the server works for {percent(held)} of the time in which requests are under way"]
    if serving.latency is not None:
        evidence.append(f"half of the requests take longer than {duration(serving.latency.p50)}")
    if serving.concurrency is not None:
        evidence.append(f"{serving.concurrency:.1f} requests are under way on average")
    fixes = [
        fix("a shorter time to wait until a batch is full: take what is there when the model is free"),
        fix(SERVICES),
    ]
    if timers:
        at = short_place(timers[0])
        evidence.append(f"a thread sleeps at {at}: what it passes on waits until it wakes")
        passing = f"if requests or answers pass through the thread that sleeps at {at}"
        fixes.insert(0, fix(f"{passing}: let it wait for the next one (queue.get) instead of sleeping"))
    return Explanation(
        subtype="held",
        share=held,
        base="request",
        gains=False,
        severity="warning",
        signals=(serving.basis == "hook", held >= 0.9),
        title=f"requests wait {percent(held)} of their time while the server rests: for a batch, a timer or a service",
        evidence=evidence,
        where=waits.where,
        fixes=tuple(fixes),
    )


def _of_few_at_work(serving: Serving, beside: _BesideRest, snapshot: Snapshot) -> Explanation:
    """The verdict on requests that wait although processes rest that could work on them, with their handlers' lines."""
    count, waiting = len(snapshot.ledgers), beside.waiting
    return Explanation(
        subtype="held",
        share=waiting,
        base="request",
        gains=False,
        severity="warning",
        signals=(serving.basis == "hook", waiting >= 0.9),
        title=f"requests wait {percent(waiting)} of their time while {count} processes that run the model mostly rest",
        evidence=(
            f"{serving.concurrency:.1f} requests are under way on average",
            f"these processes rest {percent(beside.rest)} of the time on average",
        ),
        where=lines_of(filter(_runs_in_loop, producer_entries(snapshot))).where,
        fixes=(
            fix("let as many requests through at the same time as there are processes (a semaphore, a limit)"),
            fix(SERVICES),
        ),
    )


def _waits_of(serving: Serving) -> tuple[float | None, float | None]:
    """The part (0..1) of the requests' time that they wait, and their mean wait in seconds; None if not measured."""
    count, waited, total = 0, 0.0, 0.0
    for one in serving.requests:
        if (wait := one.queue) is not None:
            count += 1
            waited += wait
            total += one.seconds
    shares = [waited / total] if total > 0.0 else []
    if serving.queue is not None and serving.concurrency:
        # By Little's law the numbers are in the same proportion as the times. They also count preempted requests, which
        # wait once more; the wait of a request counts only until its first turn.
        shares.append(min(1.0, serving.queue / max(serving.concurrency, serving.queue)))
    return max(shares, default=None), waited / count if count else None


def _queue(serving: Serving, idle: float | None, snapshot: Snapshot) -> Queue | None:
    """The queue with the largest share of requests' time, of those that were measured; None where none was.

    `idle` is the part (0..1) of the time in which the server has nothing to do, None where it was not measured.
    """
    queues = []
    share, seconds = _waits_of(serving)
    if share is not None:
        queues.append(Queue(share, None if idle is None else 1.0 - idle, seconds, serving.queue))
    first = _before_first_part(serving, snapshot)
    if first is not None:
        queues.append(first)
    process = main_stacks(snapshot)
    own = process.pool if process is not None and serves(snapshot) else None
    taken = own.working + own.asking if own is not None else 0.0
    if own is not None and taken > 0.0:
        # Each thread has one request: by Little's law their numbers are in the same proportion as their times.
        waiting = own.standing / (own.standing + taken)
        where = tuple(replace(where_of(line.pid, line), share=line.share) for line in own.lines[:3])
        # A request may stand in line while none is worked on; only work says that the server lacks capacity.
        queues.append(Queue(waiting, min(1.0, taken), None, own.standing, where, own.asking > own.working))
    if own is not None and serving.concurrency is not None and all_taken(serving, own):
        waiting = serving.concurrency - own.there
        queues.append(Queue(waiting / serving.concurrency, 1.0, None, waiting, (), own.asking > own.working, own.there))
    return max(queues, key=lambda queue: queue.share, default=None)


def _before_first_part(serving: Serving, snapshot: Snapshot) -> Queue | None:
    """How long requests wait before the first part of an answer that is sent in parts, beyond the longest model call.

    None where an engine tells when it begins with each of them, and where the model's calls were not timed. The server
    is busy while the model is: with others before that, a request may wait for a service.
    """
    streamed = [(one.first_sent, one.seconds) for one in serving.requests if one.first_sent is not None]
    steps = records(snapshot)
    if not steps or serving.iterations or 2 * len(streamed) < len(serving.requests) or not streamed:
        return None
    longest = max(step.forward for step in steps)
    waited = sum(max(0.0, first - longest) for first, _ in streamed)
    share = waited / sum(seconds for _, seconds in streamed)
    waiting = None if serving.concurrency is None else share * serving.concurrency
    busy = max(map(_at_work, snapshot.ledgers), default=None)
    return Queue(share, busy, waited / len(streamed), waiting, call=longest)


def _keeps_up(queue: Queue) -> bool:
    """Whether the server has idle moments, and no more requests wait than where they come at random."""
    if queue.busy is None or queue.busy >= ALWAYS_BUSY:
        return False
    return queue.waiting is None or queue.waiting <= _by_chance(queue.busy)


def _by_chance(busy: float) -> float:
    """How many requests wait on average for a server that is busy for this part (0..1) of the time.

    That is where times to serve and between arrivals are exponential (M/M/1). They are fewer where requests take more
    alike.
    """
    return busy**2 / (1.0 - busy)


def _batch(serving: Serving) -> int:
    """The most requests that an iteration answered at once; 1 where an iteration is only a part of a request."""
    decodes = any(one.decode_tokens for one in serving.iterations)
    return 1 if decodes else max((one.requests or 1 for one in serving.iterations), default=1)


def _one_by_one(serving: Serving) -> bool:
    """Whether each iteration answered a whole request, and only that one."""
    return bool(serving.iterations) and all(one.requests == 1 and not one.decode_tokens for one in serving.iterations)


def _replica(serving: Serving, load: Load | None, cost: TurnCost | None) -> Change | None:
    """Predict the effect of one more replica: by simulation where requests are handled one by one or in batches.

    Engines that decode many requests at once divide these between them, so that each takes less time per iteration.
    """
    # Processes that answer side by side are replicas of each other.
    more = 1 + 1 / max(1, len(serving.side_by_side), serving.engines or 0)
    if not any(one.decode_tokens for one in serving.iterations):
        return change(load, replicas=more) if load is not None else None
    if cost is None:
        return None
    # As long as enough requests wait, each has as full a batch as now, and `more` times as many are served.
    running = max(1.0, (serving.concurrency or 0.0) - (serving.queue or 0.0))
    each = min(running, (serving.concurrency or running) / more)
    decoded, prefilled = _means(serving)
    part = each / running
    seconds = cost.seconds(decoded * part, prefilled * part) / (more * part)
    now = cost.seconds(decoded, prefilled)
    likely = min(1.0, seconds / now) if now > 0 else 1.0
    return Change(Length(likely, likely * (1.0 - cost.error), min(1.0, likely * (1.0 + cost.error))))


def _means(serving: Serving) -> tuple[float, float]:
    """Mean tokens decoded and prefilled in an iteration."""
    count = max(1, len(serving.iterations))
    decoded = sum(one.decode_tokens or 0 for one in serving.iterations) / count
    return decoded, sum(one.prefill_tokens or 0 for one in serving.iterations) / count


def _larger_batch(serving: Serving, load: Load | None, cost: TurnCost | None) -> Change | None:
    """Predict the effect of batches MORE times as large; None if it is not known, or if the KV cache has no room."""
    if cost is None or (serving.kv_used or 0.0) >= KV_FULL / MORE:
        return None
    if _batch(serving) > 1:
        return change(load, batch=MORE * _batch(serving)) if load is not None else None
    decoded, prefilled = _means(serving)
    if decoded <= 0.0:
        return None
    waiting = serving.queue or 0.0
    running = max(1.0, (serving.concurrency or 0.0) - waiting)
    # A batch grows by no more than there are requests that wait.
    grown = decoded * min(MORE, 1.0 + waiting / running)
    return Change(cost.with_batch(decoded, grown, prefilled)) if grown > decoded else None


def _here(replica: Change | None, snapshot: Snapshot) -> Length | None:
    """The effect of a replica that has only the idle cores of this machine; None if they suffice or are not known."""
    used, idle = (mean_of(snapshot, name) for name in ("cores_used", "cores_idle"))
    if replica is None or idle is None or not used:
        return None
    # The cores that this monitor uses are free again when it ends.
    idle += snapshot.cost.monitor_cpu or 0.0
    usable = snapshot.host.usable_cores if snapshot.host is not None else None
    if usable is not None:
        idle = min(idle, max(0.0, usable - used))
    # A request costs as much CPU as now, however many replicas there are.
    shortest = used / (used + idle)
    if replica.length.likely >= shortest:
        return None
    return Length(shortest, max(replica.length.least, shortest * (1.0 - LEFT)), min(1.0, shortest * (1.0 + LEFT)))


def _evidence(serving: Serving, queue: Queue, load: Load | None, cost: TurnCost | None) -> list[str]:
    evidence = []
    if queue.seconds is not None and queue.call is not None:
        first = f"the first part of an answer comes {duration(queue.seconds)} later than the model needs for it"
        evidence.append(f"{first}: its longest call takes {duration(queue.call)}")
    elif queue.seconds is not None:
        evidence.append(f"a request waits {duration(queue.seconds)} on average before it is worked on")
    elif queue.waiting is not None:
        evidence.append(f"{queue.waiting:.1f} requests wait on average")
    if queue.threads is not None:
        evidence.append(f"{queue.threads:.0f} threads handle requests, and all of them are always taken")
    if queue.busy is not None and queue.asking:
        evidence.append(f"for {percent(queue.busy)} of the time one has its turn, and mostly waits for a service")
    elif queue.busy is not None:
        evidence.append(f"the server works {percent(queue.busy)} of the time")
    rate = serving.requests_per_second or (load.rate if load is not None else None)
    if rate is not None:
        by = f" for {load.clients} clients that wait for each answer" if load is not None and load.clients else ""
        evidence.append(f"{rate:.1f} requests are answered a second{by}")
    if cost is not None and _batch(serving) == 1 and cost.decode > 0.0:
        evidence.append(
            f"an iteration takes {duration(cost.fixed)} and {duration(cost.decode)} for each token of the batch"
        )
    if serving.kv_used is not None and serving.kv_used >= KV_FULL:
        evidence.append(f"the KV cache is {percent(serving.kv_used)} full: no more requests fit into the batch")
    twice = computed_twice(serving)
    if twice:
        evidence.append(
            f"{percent(twice)} of all tokens are computed twice, after a request was thrown out of the batch"
        )
    return evidence


def _fixes(
    serving: Serving,
    queue: Queue,
    *,
    replica: Change | None,
    batch: Change | None,
    here: Length | None,
    work: tuple[Where, ...],
) -> list[Fix]:
    fixes = []
    size = _batch(serving)
    if batch is not None and batch.length.speedup >= WORTH_IT:
        text = (
            f"batches of up to {MORE * size} instead of {size}" if size > 1 else "a higher limit of requests in a batch"
        )
        setting = Setting(name="max_batch_size", to=MORE * size, current=size) if size > 1 else None
        fixes.append(fix(f"{text}{_latency(batch)}", batch.length, setting))
    elif _one_by_one(serving):
        fixes.append(fix(TOGETHER))
    if here is not None:
        fixes.append(fix("one replica more on this machine: limited by the cores that are idle", here))
    more = "one replica more, with cores or a device of its own"
    fixes.append(fix(more) if replica is None else fix(f"{more}{_latency(replica)}", replica.length))
    if serving.kv_used is not None and serving.kv_used >= KV_FULL:
        fixes.append(fix("a larger KV cache: gpu_memory_utilization, kv_cache_dtype fp8, or shorter contexts"))
    if queue.call is not None:
        fixes.insert(0, fix(ADMIT))
    if queue.threads is not None and queue.asking:
        fixes.insert(0, fix(f"{THREADS}: those that are there mostly wait for a service"))
    elif queue.where and queue.asking:
        line = short_place(queue.where[0])
        text = f"ask the service before {line}, not while others wait there: they can ask at the same time"
        fixes.insert(0, fix(text))
    elif queue.where:
        fixes.append(fix("one thread that takes all requests that wait, and runs the model once for them"))
    if work:
        part = percent(work[0].share or 0.0)
        fixes.append(
            fix(f"make requests cheaper, first at {short_place(work[0])}: {part} of the time of your own code")
        )
    fixes.append(fix("refuse requests early that cannot be answered in time"))
    return fixes


def _latency(changed: Change) -> str:
    if changed.latency is None:
        return ""
    return f": a request takes about {duration(changed.latency)} instead of {duration(changed.before)}"
