"""The table of what is patched in each server: only names of the standard library and of libraries, no user code.

The servers look up all of these names at each call, so it does not matter when they are replaced. Where a name is
missing (in another release), what it would measure stays unknown and nothing else is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Takes a function and returns its wrapper.
Wrap = Callable[[Any], Any]

_BATCHING = "transformers.generation.continuous_batching"
# By server and MODULE:CLASS, the attributes there, separated by spaces. Without a class they are the module's.
# A comment says in which release they were seen.
TABLE: dict[str, dict[str, str]] = {
    # vllm 0.32.0
    "vllm": {
        "vllm.v1.core.sched.scheduler:Scheduler":
            "schedule update_from_output add_request _free_request _preempt_request",
        "vllm.v1.engine.core:EngineCore": "preprocess_add_request",
        "vllm.v1.executor.multiproc_executor:MultiprocExecutor": "sample_tokens",
        "vllm.v1.executor.uniproc_executor:UniProcExecutor": "sample_tokens",
    },
    # transformers 5.23.0, continuous batching
    "transformers": {
        f"{_BATCHING}.continuous_api:ContinuousBatchingManager": "add_request _generation_loop_body",
        f"{_BATCHING}.continuous_api:ContinuousBatchProcessor": "prepare_next_batch _generation_step update_batch",
        f"{_BATCHING}.scheduler:Scheduler": "finish_request",
        f"{_BATCHING}.input_outputs:ContinuousBatchingIOs": "prepare_batch_tensors",
        f"{_BATCHING}.offloading_manager:OffloadingManager": "offload_requests",
    },
    # litserve 0.2.19; its queue of requests is a proxy of a multiprocessing manager
    "litserve": {
        "litserve.loops.base:LitLoop": "put_response",
        "litserve.callbacks.base:CallbackRunner": "trigger_event",
        "litserve.loops.simple_loops:SingleLoop": "_process_single_request",
        "litserve.loops.streaming_loops:StreamingLoop": "_process_streaming_request",
        "multiprocessing.managers:BaseProxy": "_callmethod",
    },
    # uvicorn 0.54.0
    "uvicorn": {
        "uvicorn.protocols.http.h11_impl:RequestResponseCycle": "run_asgi send",
        "uvicorn.protocols.http.httptools_impl:RequestResponseCycle": "run_asgi send",
    },
    # aiohttp 3.14.5
    "aiohttp": {
        "aiohttp.web_protocol:RequestHandler": "data_received _handle_request",
        "aiohttp.web_response:StreamResponse": "prepare write",
        "aiohttp.web_ws:WebSocketResponse": "prepare",
    },
    # The applications of servers that are not in this table, such as hypercorn. starlette 1.10.0; FastAPI builds on it
    "starlette": {
        "starlette.applications:Starlette": "__call__",
    },
    # quart 0.22.0
    "quart": {
        "quart.app:Quart": "__call__",
    },
    # tornado 6.6.1
    "tornado": {
        "tornado.web:RequestHandler": "_execute flush",
    },
    # grpcio 1.85.3; the same in 1.60.0. Its functions are looked up in their modules, compiled ones too.
    "grpc": {
        "grpc._server:": "_handle_with_method_handler _unary_response_in_pool _stream_response_in_pool",
        "grpc._cython.cygrpc:": "_handle_exceptions",
    },
    # ray 2.60.0
    "ray": {
        "ray.serve._private.replica:Replica": "_wrap_request",
        "ray.serve._private.replica:UserCallableWrapper": "_call_func_or_gen",
    },
    # waitress 3.0.2
    "waitress": {
        "waitress.task:Task": "service",
    },
    # gunicorn 27.0.1
    "gunicorn": {
        "gunicorn.workers.sync:SyncWorker": "handle_request",
        "gunicorn.workers.gthread:ThreadWorker": "handle_request",
        # of gevent's and eventlet's workers
        "gunicorn.workers.base_async:AsyncWorker": "handle_request",
    },
    # Python 3.10 to 3.14; werkzeug 3.1.9 (Flask's own server) builds on the first class, Django's server on the second
    "http": {
        "http.server:BaseHTTPRequestHandler": "handle_one_request parse_request",
        "wsgiref.handlers:BaseHandler": "run",
    },
}  # fmt: skip
