"""Measures LitServe's workers: requests from the queue, in batches or one by one. Its web server is another process.

The server stamps each request as it puts it into the queue, on the clock that all processes share. A worker takes it
out, calls LitServe's own callbacks as it goes on to decode, predict and encode, and sends the answer back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....protocol.events import NOT_MEASURED
from ...patches import Patches
from .names import Wrap
from .requests import Request, current, now_ns
from .server import Server

if TYPE_CHECKING:
    from ...session import Session

SECOND = 1_000_000_000
MOST_KNOWN = 100_000
DECODES, PREDICTS, PREDICTED = "on_before_decode_request", "on_before_predict", "on_after_predict"
# The status of a response with which an answer begins, and of one part of a streamed answer; any other ends it.
STARTS, GOES_ON = "START", "OK"
# The parameters of `put_response`.
RESPONSE = ("self", "transport", "response_queue_id", "uid", "response_data", "status", "response_type")


class LitServe(Server):
    """The requests of this worker.

    known       requests that were taken from the queue, by id
    group       those that are worked on together, from the first that was taken until the last is answered
    batch       how many there were in it
    group_began, group_ended    when it could begin; when the group before it was answered
    """

    servers = ("litserve",)

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self.known: dict[str, Request] = {}
        self.group: dict[str, Request] = {}
        self.batch = self.group_began = self.group_ended = 0
        super().__init__(torch, patches, session)

    def wraps(self) -> dict[str, Wrap]:
        return {
            # A worker takes requests from the queue through it.
            "_callmethod": self.noting(after=self.called),
            "trigger_event": self.noting(self.reached),
            "put_response": self.noting(after=self.responded),
            "_process_single_request": lambda call: wrap_task(call, self),
            "_process_streaming_request": lambda call: wrap_task(call, self),
        }

    def look(self, now: int) -> None:
        # Its queue is one of multiprocessing's, which a program without LitServe may use for anything.
        if "litserve" in sys.modules:
            super().look(now)

    # Called by the wrappers, with the arguments of the wrapped call after those that `noting` adds.

    def called(self, start: int, result: Any, proxy: Any, methodname: Any, *_: Any, **__: Any) -> None:
        """Note what came out of the queue: (number of the queue for the answer, id, time, payload)."""
        if methodname in ("get", "get_nowait") and type(result) is tuple and len(result) == 4:
            name, stamp = result[1:3]
            if type(name) is str and type(stamp) is float:
                self.taken(name, stamp, now_ns())

    def taken(self, name: str, stamp: float, now: int) -> None:
        """Remember a request that was taken from the queue."""
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
            self.group.clear()
        request = Request(min(now, int(stamp * SECOND)))
        request.began = now
        if not self.group:
            # If it came while the last ones were worked on, the loop has not waited for it.
            self.group_began, self.batch = max(request.arrived, self.group_ended), 0
        self.known[name] = self.group[name] = request
        self.batch += 1
        self.requests.count("litserve", len(self.known))

    def reached(self, runner: Any, event_name: Any, *_: Any, **__: Any) -> None:
        """Note a step on the way of the requests that this code works on."""
        event, now, own = event_name, now_ns(), current.get()
        for request in (own,) if own is not None else tuple(self.group.values()):
            if event == DECODES:
                request.began = now
            elif event == PREDICTS:
                request.model_began = now
            elif event == PREDICTED and not request.model_ended:
                request.model_ended = now

    def responded(self, start: int, result: Any, *args: Any, **kwargs: Any) -> None:
        """Note a response to a request: a part of its answer, or its end."""
        now, given = now_ns(), dict(zip(RESPONSE, args, strict=False)) | kwargs
        name, status, streams = given["uid"], given["status"], given["response_type"].name == "STREAMING"
        request = self.known.get(name)
        if request is None or status == STARTS:
            return
        if streams:
            # The model runs while the answer goes out.
            request.model_ended = 0
            request.chunks += 1
            request.first = request.first or now
            if status == GOES_ON:
                return
        del self.known[name]
        own = self.group.pop(name, None) is not None
        self.requests.answered(request, now)
        self.requests.count("litserve", len(self.known))
        if own and not self.group:
            self.turned(request, now)

    def turned(self, last: Request, now: int) -> None:
        """Note the turn of the loop that ends with its last answer."""
        before, began = self.group_ended, self.group_began
        self.group_ended = now
        decode, model, after = last.began, last.model_began, last.model_ended
        if not (before and decode and model and after):
            return
        self.requests.turned(
            began,
            now,
            idle=began - before,
            requests=self.batch,
            parts=(max(0, decode - began), model - decode, after - model, NOT_MEASURED),
            tokens=(now - after, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED),
        )


def wrap_task(original: Callable[..., Any], litserve: LitServe) -> Callable[..., Any]:
    """Wrap what answers one request in a task of its own, beside others (asynchronous APIs)."""

    def process(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        own = None
        try:
            # Tasks overlap, so that there is no turn that they make together.
            own = litserve.known.get(request[1])
            litserve.group.pop(request[1], None)
        except Exception:
            litserve.failed()
        coroutine = original(self, request, *args, **kwargs)
        return coroutine if own is None else within(own, coroutine)

    async def within(own: Request, coroutine: Any) -> Any:
        current.set(own)
        return await coroutine

    return process
