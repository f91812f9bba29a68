"""Measures vLLM's engine (V1) in the process that schedules: its requests, and the turns of its loop.

A turn is what lies between the ends of two `update_from_output`, less the time in which there was nothing to do: so it
is right for asynchronous scheduling too, where the next batch is scheduled before the last one has come back. Its
model's part is the wait for the executor, on the clock of the thread that schedules.

A request begins with the time that the API server stamped on it before tokenising. What passes from there until this
process has received it is its `preprocess`, from there to the first schedule it waits in the `queue`. Turning tokens
into text and sending them is done by the API server and not part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....protocol.events import NOT_MEASURED
from ...patches import Patches
from .names import Wrap
from .requests import Request, mono_of, now_ns, whole
from .server import Server

if TYPE_CHECKING:
    from ...session import Session

MILLION = 1_000_000
# Requests that were received and never freed are dropped above this many.
MOST_KNOWN = 100_000


class Vllm(Server):
    """The engine's scheduler, as this process runs it.

    known           requests by id, from their arrival here until they are freed
    tokenless       those of them that were scheduled and have no token yet
    turn_began      when the first schedule of this turn began, 0 before it
    turn_ended      when the last turn ended; `rests` says that there was nothing left to do then
    scheduling, sampling    nanoseconds of this turn
    preempted       requests thrown out of the batch in this turn
    waiting         requests that waited before it
    kv_used         millionths of the KV cache in use with its batch
    """

    servers = ("vllm",)

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self.known: dict[str, Request] = {}
        self.tokenless: dict[str, Request] = {}
        self.turn_began = self.turn_ended = 0
        self.rests = False
        self.scheduling = self.sampling = self.preempted = 0
        self.waiting = self.kv_used = NOT_MEASURED
        super().__init__(torch, patches, session)

    def wraps(self) -> dict[str, Wrap]:
        return {
            "schedule": self.noting(self.schedules, self.scheduled),
            "update_from_output": self.noting(after=self.updated),
            "add_request": self.noting(after=self.added),
            # Each request goes through it when it has ended.
            "_free_request": self.noting(self.freed),
            "_preempt_request": self.noting(self.threw_out),
            # Called in a thread of its own, as soon as a request comes in; all others in the one that schedules.
            "preprocess_add_request": self.noting(self.received),
            "sample_tokens": self.timing("sampling"),
        }

    # Called by the wrappers, with the arguments of the wrapped call after those that `noting` adds.

    def received(self, engine: Any, request: Any, *_: Any, **__: Any) -> None:
        """Remember a request that came in from the API server."""
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
            self.tokenless.clear()
        now = now_ns()
        known = Request(mono_of(request.arrival_time, now))
        known.began, known.submitted = known.arrived, now
        self.known[request.request_id] = known

    def added(self, start: int, result: Any, scheduler: Any, *_: Any, **__: Any) -> None:
        """Note how many requests are under way."""
        self.requests.count("vllm", len(scheduler.requests))

    def schedules(self, scheduler: Any, *_: Any, **__: Any) -> None:
        """Note how many requests wait at the begin of a turn."""
        if not self.turn_began:
            self.waiting = counts(scheduler)[1]

    def scheduled(self, start: int, output: Any, scheduler: Any, *_: Any, **__: Any) -> None:
        """Note a batch, and who runs for the first time in it."""
        end = now_ns()
        self.turn_began = self.turn_began or start
        self.scheduling += end - start
        self.kv_used = kv_millionths(scheduler)
        for new in output.scheduled_new_reqs:
            known = self.known.get(new.req_id)
            if known is not None and not known.model_began:
                known.model_began = end
                self.tokenless[new.req_id] = known

    def updated(self, start: int, result: Any, scheduler: Any, scheduler_output: Any, *_: Any, **__: Any) -> None:
        """Note the turn that ends with the results of a batch."""
        end, output, requests = now_ns(), scheduler_output, scheduler.requests
        for name in [name for name in self.tokenless if name in requests and requests[name].num_output_tokens]:
            self.tokenless.pop(name).first = end
        running, waiting = counts(scheduler)
        # Without a schedule in this turn it only waited for a batch of an earlier one.
        began = self.turn_began or self.turn_ended
        if self.turn_ended and not self.rests:
            # Taking requests in and handing results out, between two turns, belong to the second.
            turn, idle = self.turn_ended, 0
        else:
            turn, idle = began, began - self.turn_ended if self.turn_ended else NOT_MEASURED
        if began and output.total_num_scheduled_tokens:
            prefill, decode = tokens_of(output)
            model = max(0, start - began - self.scheduling - self.sampling)
            self.requests.turned(
                turn,
                end,
                idle=idle,
                requests=len(output.num_scheduled_tokens),
                parts=(self.scheduling, NOT_MEASURED, model, self.sampling),
                tokens=(end - start, prefill, decode, self.preempted),
                state=(running, self.waiting, self.kv_used),
            )
        self.turn_ended = end
        self.turn_began = self.scheduling = self.sampling = self.preempted = 0
        self.rests = not running and not waiting
        self.requests.count("vllm", len(requests))

    def threw_out(self, *_: Any, **__: Any) -> None:
        """Count a request that is thrown out of the batch."""
        self.preempted += 1

    def freed(self, scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
        """Note a request that has ended. One that its client gave up was not answered."""
        now = now_ns()
        known = self.known.pop(request.request_id, None)
        self.tokenless.pop(request.request_id, None)
        if "ABORT" in request.status.name:
            return
        tokens = whole(request.num_output_tokens)
        if known is None:
            # It came before the hook did.
            known = Request(mono_of(request.arrival_time, now))
        elif not known.first and tokens > 0:
            known.first = now
        known.model_ended = now
        known.tokens, known.prompt_tokens = tokens, whole(request.num_prompt_tokens)
        known.preempted = whole(request.num_preemptions)
        self.requests.answered(known, now)


def counts(scheduler: Any) -> tuple[int, int]:
    """Return how many requests run and how many wait."""
    running, waiting = scheduler.get_request_counts()
    return running, waiting


def kv_millionths(scheduler: Any) -> int:
    """Return the share of the KV cache that is in use, in millionths."""
    return int(scheduler.kv_cache_manager.usage * MILLION)


def tokens_of(output: Any) -> tuple[int, int]:
    """Return the tokens of prompts, and those decoded, in a batch. What is computed again counts as prompt."""
    numbers, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
    total = output.total_num_scheduled_tokens
    new = {one.req_id for one in output.scheduled_new_reqs}
    if total == len(numbers) and not new:
        return 0, total
    decode = sum(
        number
        for name, number in numbers.items()
        if name not in new and (number == 1 or number == 1 + len(drafts.get(name, ())))
    )
    return total - decode, decode
