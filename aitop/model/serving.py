"""What a server does: its requests, the iterations (turns) of its engine, and figures made from them. Times in seconds.

Only counts and times, never the content of a request.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Annotated, Literal

import msgspec

IterationKind = Literal["prefill", "decode", "mixed"]
PauseKind = Literal["collect", "compile"]
ServingBasis = Literal["hook", "metrics", "stacks"]
FirstTokenBasis = Literal["answer", "model", "metrics"]
# A recording with other values is damaged. The last moment is beyond the uptime of any machine, in seconds.
Moment = Annotated[float, msgspec.Meta(ge=0, lt=1e10)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was answered.

    `end` is on CLOCK_MONOTONIC, `seconds` is the time from its arrival to its last byte or token. `queue` (until the
    model's side began with it), `preprocess`, `model` and `postprocess` follow one another and do not overlap.
    `first_token` is the time from its arrival until the model had the first token, `first_sent` the time until the
    first part of an answer that is sent in several parts was handed to the kernel. `prompt_tokens` went in, `tokens`
    came out. `preempted` is how often the engine threw it out of the batch. `cpu` is the CPU time that its thread used
    for it. `pid` is the process that answered it, where an engine is behind it the engine.
    None is not measured.
    """

    end: Moment
    seconds: Amount
    queue: Amount | None = None
    preprocess: Amount | None = None
    model: Amount | None = None
    postprocess: Amount | None = None
    first_token: Amount | None = None
    first_sent: Amount | None = None
    prompt_tokens: Count | None = None
    tokens: Count | None = None
    preempted: Count | None = None
    cpu: Amount | None = None
    pid: Count | None = None


class IterationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of an engine's loop in which the model ran for a batch of requests.

    `end` is on CLOCK_MONOTONIC, `seconds` the length of the turn, `idle` how long the loop had waited for requests
    before it. `schedule`, `prepare`, `model`, `sample` and `output` are parts of the turn that do not overlap.
    `requests` were in the batch, with `prefill_tokens` of prompts and `decode_tokens`. `waiting` requests were left in
    the queue when the batch was made, `running` were in the engine when the turn ended. `kv_used` is the share (0..1)
    of the KV cache that was in use. `preempted` requests were thrown out of the batch in this turn. None is not
    measured.
    """

    end: Moment
    seconds: Amount
    kind: IterationKind | None = None
    idle: Amount | None = None
    schedule: Amount | None = None
    prepare: Amount | None = None
    model: Amount | None = None
    sample: Amount | None = None
    output: Amount | None = None
    requests: Count | None = None
    prefill_tokens: Count | None = None
    decode_tokens: Count | None = None
    running: Count | None = None
    waiting: Count | None = None
    kv_used: Amount | None = None
    preempted: Count | None = None


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """An interval in which garbage collection or a compilation held up the requests of the process `pid`.

    `end` is monotonic.
    """

    end: Moment
    seconds: Amount
    kind: PauseKind
    pid: Count | None = None


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """A Prometheus histogram as it stood at one moment: `counts` of values up to each of `bounds` (cumulative)."""

    bounds: tuple[Amount, ...]
    counts: tuple[Amount, ...]
    sum: Amount
    count: Amount


class ServerSample(msgspec.Struct, frozen=True, kw_only=True, tag="server"):
    """What a server's own `/metrics` said at one moment, under our names; names that it lacks are missing.

    `counters`: requests, tokens, prompt_tokens, preemptions, iterations. `gauges`: running, waiting, kv_used (0..1).
    `histograms` (seconds): latency, first_token, inter_token, queue, prefill, decode. `engines` is the number of those
    in which requests run now; None where it does not say.
    """

    time: float
    pid: int
    counters: dict[str, Amount] = {}
    gauges: dict[str, Amount] = {}
    histograms: dict[str, Histogram] = {}
    engines: int | None = None


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """The 50th, 95th and 99th percentile, in seconds; in milliseconds where the name of the field says so."""

    p50: float
    p95: float
    p99: float

    def in_milliseconds(self) -> Percentiles:
        """The same percentiles in milliseconds; these must be in seconds."""
        return Percentiles(p50=self.p50 * 1e3, p95=self.p95 * 1e3, p99=self.p99 * 1e3)


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a server in the window; None is not measured. `basis` is the best source that they come from.

    The figures are of the last `seconds`: a window may begin before its first request was seen. `pid` is the process
    whose requests or iterations these are, or most of them. `concurrency` is the mean number of requests under way,
    `queue` the mean number of waiting requests. `first_token` and `inter_token` are what users call TTFT and ITL.
    `first_token_basis` says what ends the TTFT: `answer`, the first part of the answer was sent, as clients see it;
    `model`, the model had the token; `metrics`, as the server's own `/metrics` counts it.
    `requests`, `iterations` and `pauses` are those of the window, the oldest first; iterations are those of the process
    `pid`. Of a server with an engine, only requests count that reached it. `engines` is the number of processes that
    made iterations. `longest` is how many seconds the longest iteration (without an engine: request) took that is
    remembered, also before the window; None with fewer than two. `alive` is the number of requests under way now.
    `still` is for how many seconds there has been no progress with them (in the engine `still_pid`, if in one); without
    any, the seconds since the last request or iteration ended. Together they tell a stalled server from an idle one.
    `under_way` is since when (monotonic seconds) each process, by pid, has had requests under way at every look.
    """

    basis: ServingBasis
    seconds: float | None = None
    pid: int | None = None
    requests_per_second: float | None = None
    tokens_per_second: float | None = None
    concurrency: float | None = None
    queue: float | None = None
    latency: Percentiles | None = None
    first_token: Percentiles | None = None
    first_token_basis: FirstTokenBasis | None = None
    inter_token: Percentiles | None = None
    batch_mean: float | None = None
    kv_used: float | None = None
    preemptions_per_second: float | None = None
    alive: int | None = None
    still: float | None = None
    requests: tuple[RequestRecord, ...] = ()
    iterations: tuple[IterationRecord, ...] = ()
    pauses: tuple[Pause, ...] = ()
    still_pid: int | None = None
    engines: int | None = None
    longest: float | None = None
    under_way: dict[int, float] = {}

    def requests_of(self, pid: int | None) -> tuple[RequestRecord, ...]:
        """The requests of one process. Those that do not tell theirs are of `self.pid`."""
        own = self.pid == pid
        return tuple([one for one in self.requests if one.pid == pid or (own and one.pid is None)])

    def under_way_since(self, pid: int | None) -> float:
        """Since when a process (None: `self.pid`) has had requests under way at every look; infinite if it has none."""
        return self.under_way.get(pid or self.pid or 0, math.inf)

    @property
    def side_by_side(self) -> frozenset[int]:
        """The processes that answer requests, each its own."""
        return frozenset(pid for pid in set(map(attrgetter("pid"), self.requests)) if pid is not None)
