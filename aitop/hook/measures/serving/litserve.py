"""Measures LitServe's workers: requests from the queue, in batches or one by one. Its web server is another process.

The server stamps each request with the time (CLOCK_MONOTONIC) at which it puts it into the queue. A worker takes it
out, calls LitServe's own callbacks as it goes on to decode, predict and encode, and sends the answer back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....protocol.events import NOT_MEASURED
from ...patches import Patches
from .names import Wrap
from .requests import SECOND, Request, current, now_ns
from .server import MOST_KNOWN, Server

if TYPE_CHECKING:
    from ...session import Session

DECODES, PREDICTS, PREDICTED = "on_before_decode_request", "on_before_predict", "on_after_predict"
# The status of the response that begins an answer, and of one part of a streamed answer. Any other status ends it.
STARTS, GOES_ON = "START", "OK"
# The parameters of `put_response`.
RESPONSE = ("self", "transport", "response_queue_id", "uid", "response_data", "status", "response_type")


class LitServe(Server):
    """The requests of this worker. A group of requests that is worked on together makes a turn of its loop.

    known       requests that were taken from the queue and not answered yet, by id
    group       the requests of the current group that are not answered yet, by id
    batch       number of requests that the current group has had
    group_began when work on the current group could begin: its first request was there, and the last group answered
    group_ended when the last group was answered
    call        what the model computes for the current group: all its requests get these times
    """

    servers = ("litserve",)
    layer = "litserve"

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self.known: dict[str, Request] = {}
        self.group: dict[str, Request] = {}
        self.batch = self.group_began = self.group_ended = 0
        self.call = Request(0)
        super().__init__(torch, patches, session)

    def wraps(self) -> dict[str, Wrap]:
        """What is wrapped, by the name of LitServe's method, or of the queue proxy through which it takes requests."""
        return {
            "_callmethod": self.noting(after=self.called),
            "trigger_event": self.noting(self.reached),
            "put_response": self.noting(after=self.responded),
            "_process_single_request": lambda call: wrap_task(call, self),
            "_process_streaming_request": lambda call: wrap_task(call, self),
        }

    def look(self, now: int) -> None:
        # Without LitServe the program may use multiprocessing's queue proxies, which are patched too, for anything.
        if "litserve" in sys.modules:
            super().look(now)

    # Called by the wrappers, with what `noting` adds (start, result) and then the arguments of the wrapped call.

    def called(self, start: int, result: Any, proxy: Any, methodname: Any, *_: Any, **__: Any) -> None:
        """Note what came out of the queue: (number of the response queue, request id, time stamp, payload)."""
        if methodname in ("get", "get_nowait") and type(result) is tuple and len(result) == 4:
            name, stamp = result[1:3]
            if type(name) is str and type(stamp) is float:
                self.taken(name, stamp, now_ns())

    def taken(self, name: str, stamp: float, now: int) -> None:
        """Remember a request that was taken from the queue. `stamp` is when it was put there (seconds)."""
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
            self.group.clear()
        request = Request(min(now, int(stamp * SECOND)))
        request.began = now
        if not self.group:
            # If it arrived while the last group was worked on, the loop was not idle in between.
            self.group_began, self.batch = max(request.arrived, self.group_ended), 0
        self.known[name] = self.group[name] = request
        self.batch += 1
        self.in_flight(len(self.known))

    def reached(self, runner: Any, event_name: Any, *_: Any, **__: Any) -> None:
        """Note a stage (DECODES, PREDICTS, PREDICTED) that the current request or group has reached.

        `predict` is the user's code, of which the model is a part: where its calls are seen, they are the model's time.
        """
        event, now, own = event_name, now_ns(), current.get()
        if own is self.call:
            own = None
        requests = (own,) if own is not None else tuple(self.group.values())
        if event == DECODES:
            for request in requests:
                request.began = now
        elif event == PREDICTS:
            if own is None:
                self.call = Request(now)
                current.set(self.call)
            self.requests.journal.computed = self.requests.computed
            for request in requests:
                request.asked = now
        elif event == PREDICTED:
            if own is None:
                current.set(None)
            for request in requests:
                request.predicted(own or self.call, now)

    def responded(self, start: int, result: Any, *args: Any, **kwargs: Any) -> None:
        """Note a response to a request: a part of its answer, or its end."""
        now, given = now_ns(), dict(zip(RESPONSE, args, strict=False)) | kwargs
        name, status, streams = given["uid"], given["status"], given["response_type"].name == "STREAMING"
        request = self.known.get(name)
        if request is None or status == STARTS:
            return
        if streams:
            # The model runs while the answer is being sent.
            request.model_ended = 0
            request.chunks += 1
            request.first = request.first or now
            if status == GOES_ON:
                return
        del self.known[name]
        own = self.group.pop(name, None) is not None
        self.requests.answered(request, now)
        self.in_flight(len(self.known))
        if own and not self.group:
            self.turned(request, now)

    def turned(self, last: Request, now: int) -> None:
        """Note the turn of the loop that ends with the group's `last` answered request."""
        before, began = self.group_ended, self.group_began
        self.group_ended = now
        decode, model, after, between = last.began, last.model_began, last.model_ended, last.between
        if not (before and decode and model and after):
            return
        self.requests.turned(
            began,
            now,
            idle=began - before,
            requests=self.batch,
            parts=(max(0, decode - began), model - decode, after - model - between, NOT_MEASURED),
            tokens=(now - after + between, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED),
        )


def wrap_task(original: Callable[..., Any], litserve: LitServe) -> Callable[..., Any]:
    """Wrap a coroutine method that answers one request in a task of its own, beside others (asynchronous APIs)."""

    def process(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        own = None
        try:
            # Tasks overlap, so they make no turn together: the request leaves the group.
            own = litserve.known.get(request[1])
            litserve.group.pop(request[1], None)
        except Exception:
            litserve.failed()
        arguments = (self, request, *args)
        return original(*arguments, **kwargs) if own is None else within(own, arguments, kwargs)

    async def within(own: Request, arguments: Any, kwargs: Any) -> Any:
        current.set(own)
        return await original(*arguments, **kwargs)

    return process
