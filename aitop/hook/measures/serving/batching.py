"""Measures transformers' continuous batching: its requests, and the iterations (turns) of its loop.

The loop runs in a thread of its own. A request begins when it is handed to the manager. If that happens inside a web
server's request, the figures measured here are added to that request, also where it hands in several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....protocol.events import NOT_MEASURED
from ...errors import raise_if_of_program
from ...patches import Patches
from .names import Wrap
from .requests import MILLIONTHS, SECOND, Request, current, now_ns
from .server import MOST_KNOWN, Server

if TYPE_CHECKING:
    from ...session import Session

# So many more may be remembered than the scheduler has, before those that it no longer has are forgotten.
MOST_GONE = 1000


class Batching(Server):
    """The continuous batching loop of this process. The current turn is the current iteration of the loop.

    outer           a web server's requests, by the id of the request that they handed to the manager
    known           requests that have been in a batch, by id
    tokenless       those of them that have no token yet, with the states that transformers keeps
    schedule, prepare, model, output    nanoseconds of the current turn in each part (`schedule` includes `prepare`)
    stepped         a batch was made in the current turn
    prefill, decode, requests_in_batch  prompt tokens, decoded tokens and requests in the current batch
    waiting         requests that waited before the batch was made, -1 if not known
    kv_used         millionths of the KV cache in use with that batch
    idle            nanoseconds since the last turn with a batch, -1 before the first one
    throwing        requests are being preempted right now
    preempted       requests preempted in the current turn
    """

    servers = ("transformers",)
    layer = "transformers"

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self.outer: dict[str, Request] = {}
        self.known: dict[str, Request] = {}
        self.tokenless: dict[str, tuple[Request, Any]] = {}
        self.schedule = self.prepare = self.model = self.output = 0
        self.prefill = self.decode = self.requests_in_batch = self.waiting = 0
        self.idle = self.kv_used = NOT_MEASURED
        self.stepped = self.throwing = False
        self.preempted = 0
        super().__init__(torch, patches, session)

    def wraps(self) -> dict[str, Wrap]:
        return {
            "add_request": self.noting(after=self.entered),
            "_generation_loop_body": self.noting(self.turns, self.turned),
            "prepare_next_batch": self.noting(after=self.prepared),
            "prepare_batch_tensors": self.timing("prepare"),
            "_generation_step": self.timing("model"),
            "update_batch": self.noting(after=self.updated),
            "finish_request": self.noting(self.finished),
            "offload_requests": lambda call: wrap_offload(call, self),
        }

    # Called by the wrappers, with what `noting` adds (start, result) and then the arguments of the wrapped call.

    def entered(self, start: int, name: Any, *_: Any, **__: Any) -> None:
        """Remember which web server's request handed in the request `name`."""
        outer = current.get()
        if outer is not None and isinstance(name, str):
            if len(self.outer) >= MOST_KNOWN:
                self.outer.clear()
            outer.submitted = outer.submitted or now_ns()
            self.outer[name] = outer

    def turns(self, *_: Any, **__: Any) -> None:
        """Begin a turn of the loop."""
        self.schedule = self.prepare = self.model = self.output = self.preempted = 0
        self.stepped = False

    def prepared(self, start: int, made: Any, processor: Any, *_: Any, **__: Any) -> None:
        """Note what is in the batch, if one was made, and how many requests were left in the queue."""
        self.schedule += now_ns() - start
        if not made:
            return
        try:
            self.waiting = len(processor.scheduler.waiting_requests) + processor.input_queue.qsize()
        except Exception:
            raise_if_of_program()
            self.waiting = NOT_MEASURED
        self.stepped = True
        self.prefill = self.decode = 0
        batch = batch_of(processor)
        self.requests_in_batch = len(batch)
        self.kv_used = int((1 - processor.cache.compute_free_capacity()) * MILLIONTHS)
        for one in batch:
            state = one.state
            if state.generated_tokens:
                self.decode += one.query_length
                continue
            self.prefill += one.query_length
            name = state.request_id
            if name not in self.known:
                self.met(name, state)
            self.tokenless[name] = self.known[name], state

    def met(self, name: str, state: Any) -> Request:
        """Remember a request that is in a batch for the first time."""
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
            self.tokenless.clear()
        request = self.outer.pop(name, None)
        if request is None:
            request = Request(int(state.created_time * SECOND))
            request.submitted = request.arrived
        began = int(state.lifespan[0] * SECOND)
        # A web server's request may hand in several, at once or one after the other.
        if request.model_ended and request not in self.known.values():
            request.between += max(0, began - request.model_ended)
        request.model_began = request.model_began or began
        request.prompt_tokens = max(0, request.prompt_tokens) + len(state.initial_tokens)
        request.preempted = max(0, request.preempted)
        self.known[name] = request
        return request

    def updated(self, start: int, *_: Any, **__: Any) -> None:
        """Note which requests got their first token in this turn."""
        now = now_ns()
        self.output += now - start
        for name in [name for name, (_, state) in self.tokenless.items() if state.generated_tokens]:
            request, _ = self.tokenless.pop(name)
            request.first = request.first or now

    def finished(self, scheduler: Any, request_id: str, *_: Any, **__: Any) -> None:
        """Note a request that has ended or was preempted."""
        now, name = now_ns(), request_id
        state = scheduler.active_requests.get(name)
        if state is None:
            return
        request = self.known.get(name) or self.met(name, state)
        if self.throwing:
            self.preempted += 1
            request.preempted += 1
            return
        self.known.pop(name, None)
        self.tokenless.pop(name, None)
        tokens = len(state.generated_tokens)
        if state._true_initial_tokens:
            # It was preempted and restarted, with the tokens that it had generated as a part of its prompt.
            tokens += len(state.initial_tokens) - state._true_initial_tokens
        request.tokens, request.model_ended = max(0, request.tokens) + tokens, now
        if tokens and not request.first:
            request.first = now
        # Equal times mean that `met` made this record itself, because no web server took the request. Then only we can
        # note the answer.
        if request.arrived == request.submitted:
            self.requests.answered(request, now)

    def turned(self, start: int, result: Any, manager: Any, batch_processor: Any, *_: Any, **__: Any) -> None:
        """Note a turn of the loop: one with a batch, or one that found nothing to do."""
        end, processor = now_ns(), batch_processor
        scheduler = processor.scheduler
        active, waiting = len(scheduler.active_requests), len(scheduler.waiting_requests)
        self.in_flight(active + waiting)
        if len(self.tokenless) > active + waiting or len(self.known) > active + waiting + MOST_GONE:
            self._forget_cancelled(scheduler)
        if not self.stepped:
            self.idle += end - start if self.idle >= 0 else 0
            return
        self.requests.turned(
            start,
            end,
            idle=self.idle,
            requests=self.requests_in_batch,
            parts=(max(0, self.schedule - self.prepare), self.prepare, self.model, NOT_MEASURED),
            tokens=(self.output, self.prefill, self.decode, self.preempted),
            state=(active, self.waiting, self.kv_used),
        )
        self.idle = 0

    def _forget_cancelled(self, scheduler: Any) -> None:
        """Forget requests that the scheduler no longer has. Of those that were cancelled nothing else tells."""
        for name in tuple(self.known):
            if name not in scheduler.active_requests and name not in scheduler.waiting_requests:
                del self.known[name]
                self.tokenless.pop(name, None)


def batch_of(processor: Any) -> Any:
    """Return the requests in the batch that was prepared last."""
    buffers = processor.inputs_and_outputs
    if hasattr(buffers, "io_pairs"):
        buffers = buffers.io_pairs[buffers.current_pair].host_io
    return buffers.requests_in_batch


def wrap_offload(original: Callable[..., Any], batching: Batching) -> Callable[..., Any]:
    """Wrap `OffloadingManager.offload_requests`, which preempts requests."""

    def offload_requests(*args: Any, **kwargs: Any) -> Any:
        batching.throwing = True
        try:
            return original(*args, **kwargs)
        finally:
            batching.throwing = False

    return offload_requests
