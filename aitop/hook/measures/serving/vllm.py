"""Measures vLLM's engine (V1) in the process that schedules: its requests, and the iterations (turns) of its loop.

A turn is the time between the ends of two consecutive calls of `update_from_output`, without the time in which there
was nothing to do. That definition also holds for asynchronous scheduling, where the next batch is scheduled before the
last one has come back. The model's part of a turn is the wait of the scheduling thread for the executor.

A request begins at the time that the API server stamped on it before tokenising. From then until this process has
received it is its `preprocess`; from there until it is first scheduled it waits in the `queue`. Detokenising and
sending the answer are done by the API server and are not included.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ....protocol.events import NOT_MEASURED
from ...patches import Patches
from .names import Wrap
from .requests import MILLIONTHS, Request, now_ns
from .server import MOST_KNOWN, Server

if TYPE_CHECKING:
    from ...session import Session


class Vllm(Server):
    """The engine's scheduler in this process. The current turn is the current iteration of its loop.

    known           requests by id, from their arrival in this process until they are freed
    tokenless       those of them that were scheduled and have no token yet
    turn_began      when the first schedule of the current turn began, 0 before that
    turn_ended      when the last turn ended
    rests           no request was running or waiting when the last turn ended
    scheduling, sampling    nanoseconds of the current turn in `schedule` and `sample_tokens`
    preempted       requests preempted in the current turn
    waiting         requests that were left in the queue when the current turn's first batch was made
    kv_used         millionths of the KV cache in use with the current batch
    """

    servers = ("vllm",)
    layer = "vllm"

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
            "schedule": self.noting(after=self.scheduled),
            "update_from_output": self.noting(after=self.updated),
            "add_request": self.noting(after=self.added),
            # Called for each request when it has ended.
            "_free_request": self.noting(self.freed),
            "_preempt_request": self.noting(self.threw_out),
            # Called in another thread as soon as a request comes in. All others are called in the scheduling thread.
            "preprocess_add_request": self.noting(self.received),
            "sample_tokens": self.timing("sampling"),
        }

    # Called by the wrappers, with what `noting` adds (start, result) and then the arguments of the wrapped call.

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
        """Note how many requests are in flight."""
        self.in_flight(len(scheduler.requests))

    def scheduled(self, start: int, output: Any, scheduler: Any, *_: Any, **__: Any) -> None:
        """Note a batch, and which requests run for the first time in it."""
        end = now_ns()
        if not self.turn_began:
            self.turn_began, self.waiting = start, scheduler.get_request_counts()[1]
        self.scheduling += end - start
        self.kv_used = int(scheduler.kv_cache_manager.usage * MILLIONTHS)
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
        running, waiting = scheduler.get_request_counts()
        # A turn without a call of `schedule` only waited for the batch of an earlier turn.
        began = self.turn_began or self.turn_ended
        if self.turn_ended and not self.rests:
            # Taking in requests and handing out results between two turns counts for the second one.
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
        self.in_flight(len(requests))

    def threw_out(self, *_: Any, **__: Any) -> None:
        """Count a request that is preempted."""
        self.preempted += 1

    def freed(self, scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
        """Note a request that has ended. One that its client aborted does not count as answered."""
        now = now_ns()
        known = self.known.pop(request.request_id, None)
        self.tokenless.pop(request.request_id, None)
        if "ABORT" in request.status.name:
            return
        tokens = whole(request.num_output_tokens)
        if known is None:
            # The request arrived before the hook came in.
            known = Request(mono_of(request.arrival_time, now))
        elif not known.first and tokens > 0:
            known.first = now
        known.model_ended = now
        known.tokens, known.prompt_tokens = tokens, whole(request.num_prompt_tokens)
        known.preempted = whole(request.num_preemptions)
        self.requests.answered(known, now)


def tokens_of(output: Any) -> tuple[int, int]:
    """Return the numbers of prompt (prefill) and decoded tokens in a batch. Recomputed tokens count as prompt."""
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


def mono_of(wall: float, now: int) -> int:
    """Convert a wall clock time (seconds) to CLOCK_MONOTONIC nanoseconds, at most `now` (the current time there)."""
    return min(now, now - (time.time_ns() - int(wall * 1e9)))


def whole(value: Any) -> int:
    """Return `value` if it is an integer, else -1."""
    return value if type(value) is int else NOT_MEASURED
