"""What the hook adds to a request of a web server, to a turn of an engine's loop, and to a request of LitServe.

The wrappers run around functions that do nothing; the server's objects that they read are stand-ins. Before each call
the caches are filled with something else, as a turn of a model fills them. Plain calls of the same functions take turns
with wrapped ones, and their time is subtracted. The hook's ticks, which write to the ring every 50 ms, are measured by
themselves and divided among turns of 2 ms.

The same code takes up to twice as long in one process as in another. So all of it is measured in several fresh
processes, one after the other: a figure is the median of theirs, with their range.

    python tests/bench/hook_cost_serving.py --processes 12
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace

import torch
from results import Figure, options, publish

import aitop.hook
from aitop.hook.measures.serving import batching, http, litserve, vllm
from aitop.hook.measures.serving.server import Server

# Requests in the batch of an engine.
BATCH = 24
MOST_US = 30
# More than fits into the caches of a core.
COLD = b"\1" * (5 << 18)
TURNS_IN_A_TICK = 25
NEVER_NS = 10**18
Wraps = Mapping[str, Callable[[Callable[..., object]], Callable[..., object]]]
PLAIN: Wraps = defaultdict(lambda: lambda call: call)
"""For plain calls: it returns each function as it is."""


def of_vllm(measure: vllm.Vllm) -> tuple[Callable[[], object], Callable[[], object]]:
    """A turn with a batch of requests that decode, plain and wrapped; one of them has ended and a new one came."""
    states = {str(name): SimpleNamespace(num_output_tokens=9) for name in range(BATCH)}
    scheduler = SimpleNamespace(
        requests=states,
        get_request_counts=lambda: (BATCH, 0),
        kv_cache_manager=SimpleNamespace(usage=0.25),
    )
    new = SimpleNamespace(req_id="0", prompt_token_ids=[1])
    output = SimpleNamespace(
        scheduled_new_reqs=[new],
        num_scheduled_tokens=dict.fromkeys(states, 1) | {"0": 8},
        scheduled_spec_decode_tokens={},
        total_num_scheduled_tokens=BATCH + 7,
    )
    request = SimpleNamespace(
        request_id="0",
        arrival_time=time.time(),
        status=SimpleNamespace(name="FINISHED_STOPPED"),
        num_output_tokens=9,
        num_prompt_tokens=8,
        num_preemptions=0,
    )

    def schedule(self: object) -> object:
        return output

    def nothing(self: object, *args: object) -> None:
        pass

    def turn(wraps: Wraps) -> Callable[[], object]:
        receive, add = wraps["preprocess_add_request"](nothing), wraps["add_request"](nothing)
        plan, sample = wraps["schedule"](schedule), wraps["sample_tokens"](nothing)
        free, update = wraps["_free_request"](nothing), wraps["update_from_output"](nothing)

        def once() -> None:
            receive(None, request)
            add(scheduler, request)
            plan(scheduler)
            sample(None)
            free(scheduler, request)
            update(scheduler, output)

        return once

    return turn(PLAIN), turn(measure.wraps())


def of_batching(measure: batching.Batching) -> tuple[Callable[[], object], Callable[[], object]]:
    """A turn of transformers' continuous batching, plain and wrapped."""
    states = [
        SimpleNamespace(request_id=str(name), generated_tokens=[1], query_length=1) for name in range(BATCH)
    ]  # fmt: skip
    batch = [SimpleNamespace(state=state, query_length=1) for state in states]
    processor = SimpleNamespace(
        inputs_and_outputs=SimpleNamespace(requests_in_batch=batch),
        cache=SimpleNamespace(compute_free_capacity=lambda: 0.5),
        scheduler=SimpleNamespace(active_requests=states, waiting_requests=[]),
        input_queue=SimpleNamespace(qsize=lambda: 0),
    )

    def nothing(self: object, *args: object) -> bool:
        return True

    def turn(wraps: Wraps) -> Callable[[], object]:
        prepare, tensors = wraps["prepare_next_batch"](nothing), wraps["prepare_batch_tensors"](nothing)
        step, update = wraps["_generation_step"](nothing), wraps["update_batch"](nothing)

        def inner(self: object, processor: object) -> None:
            prepare(processor)
            tensors(processor)
            step(processor)
            update(processor)

        outer = wraps["_generation_loop_body"](inner)
        return lambda: outer(None, processor)

    return turn(PLAIN), turn(measure.wraps())


def of_litserve(measure: litserve.LitServe) -> tuple[Callable[[], object], Callable[[], object]]:
    """A request that a worker answers, plain and wrapped."""
    regular = SimpleNamespace(name="REGULAR")

    def get(self: object, name: str) -> object:
        return 0, "id", time.monotonic(), {}

    def nothing(self: object, *args: object, **kwargs: object) -> None:
        pass

    def request(wraps: Wraps) -> Callable[[], object]:
        take, event = wraps["_callmethod"](get), wraps["trigger_event"](nothing)
        respond = wraps["put_response"](nothing)

        def once() -> None:
            take(None, "get")
            for name in (litserve.DECODES, "on_after_decode_request", litserve.PREDICTS, litserve.PREDICTED):
                event(None, name)
            respond(None, transport=None, uid="id", status="OK", response_type=regular)

        return once

    return request(PLAIN), request(measure.wraps())


def of_uvicorn(measure: http.Http) -> tuple[Callable[[], object], Callable[[], object]]:
    """A request whose answer comes in one piece, plain and wrapped."""
    ours, theirs = socket.socketpair()
    cycle = SimpleNamespace(transport=SimpleNamespace(get_extra_info=lambda name: ours), other=theirs)
    head, body = {"type": "http.response.start"}, {"type": http.BODY, "body": b"ok"}

    async def nothing(self: object, message: object) -> None:
        pass

    def request(wraps: Wraps) -> Callable[[], object]:
        send = wraps["send"](nothing)

        async def answer(self: object, app: object) -> None:
            await send(self, head)  # type: ignore[misc]
            await send(self, body)  # type: ignore[misc]

        entry = wraps["run_asgi"](answer)

        def once() -> None:
            coroutine = entry(cycle, None)
            try:
                coroutine.send(None)  # type: ignore[attr-defined]
            except StopIteration:
                http.current.set(None)

        return once

    return request(PLAIN), request(measure.wraps())


def of_http_server(measure: http.Http) -> tuple[Callable[[], object], Callable[[], object]]:
    """A request that a thread answers, plain and wrapped."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        connection, _ = listening.accept()
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    handler = SimpleNamespace(connection=connection, client=client)

    def nothing(self: object) -> None:
        pass

    def request(wraps: Wraps) -> Callable[[], object]:
        parse = wraps["parse_request"](nothing)

        def inner(self: object) -> None:
            parse(self)

        entry = wraps["handle_one_request"](inner)
        return lambda: entry(handler)

    return request(PLAIN), request(measure.wraps())


SERVERS = (
    ("Vllm", "turn of vLLM's engine, 24 requests, with one that came and one that ended", of_vllm),
    ("Batching", "turn of transformers' continuous batching, 24 requests", of_batching),
    ("LitServe", "request and turn of a LitServe worker", of_litserve),
    ("Http", "request of uvicorn", of_uvicorn),
    ("Http", "request of http.server", of_http_server),
)


def took(call: Callable[[], object]) -> float:
    """Microseconds of a call with cold caches."""
    COLD.find(0)
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1000


def added(measure: Server, plain: Callable[[], object], wrapped: Callable[[], object]) -> list[float]:
    """Microseconds that the wrappers add to each turn of a tick, with their part of that tick."""
    session, requests = measure.session, measure.requests
    requests.due = NEVER_NS
    bare = [took(plain) for _ in range(TURNS_IN_A_TICK)]
    ours = [took(wrapped) for _ in range(TURNS_IN_A_TICK)]
    tick = took(lambda: session.tick(time.monotonic_ns()))
    return [wrapped - statistics.median(bare) + tick / TURNS_IN_A_TICK for wrapped in ours]


def in_this_process(turns: int) -> dict[str, float]:
    """The median of so many turns of each server. The servers take turns, too."""
    torch.set_num_threads(1)
    aitop.hook.remove()
    assert aitop.hook.install("run") == "installed"
    measures = {type(measure).__name__: measure for measure in aitop.hook._session.measures}
    servers = [(what, measures[name], stand_in(measures[name])) for name, what, stand_in in SERVERS]
    times: dict[str, list[float]] = {what: [] for what, *_ in servers}
    for _ in range(turns // TURNS_IN_A_TICK):
        for what, measure, calls in servers:
            times[what] += added(measure, *calls)
    assert aitop.hook.remove() == "removed"
    return {what: statistics.median(each) for what, each in times.items()}


def figures(processes: int, turns: int) -> Iterator[Figure]:
    command = [sys.executable, __file__, "--here", "--turns", str(turns)]
    runs = [subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout for _ in range(processes)]
    medians = [json.loads(run) for run in runs]
    for _, what, _ in SERVERS:
        values = sorted(each[what] for each in medians)
        spread = f"{values[0]:.1f}–{values[-1]:.1f} of {processes} processes"
        yield Figure(f"added to a {what}", statistics.median(values), "µs", most=MOST_US, spread=spread)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--processes", type=int, default=12, help="how many, one after the other: some 4 s each")
    parser.add_argument("--turns", type=int, default=2000, help="of each server in each process")
    parser.add_argument("--here", action="store_true", help="in this process alone; prints JSON, keeps nothing")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(in_this_process(args.turns)))
        return 0
    return publish(args, list(figures(args.processes, args.turns)))


if __name__ == "__main__":
    sys.exit(main())
