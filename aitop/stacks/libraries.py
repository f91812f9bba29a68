"""What frames of known libraries say: the phase of a step, a kind of waiting, a kind of work, and what calls handlers.

One table, by library. User code never appears in it: no verdict may depend on what a user named something.
"""

from __future__ import annotations

import functools
import re
from typing import Literal, NamedTuple

from aitop.model import phases
from aitop.model.ledger import Handler
from aitop.model.stacks import Frame
from aitop.stacks.origin import library_path, origin_of

# The phases of the ledger, of which three have other names here: `data` is data_wait, `exchange` is communication, and
# `host` is outside.
Phase = Literal["data_wait", "communication", "outside"] | phases.Phase
# What a library does with its caller's time, whatever the kernel reports: it waits, starts processes, compiles or
# collects garbage.
State = Literal[
    "wait-queue",
    "wait-room",
    "wait-lock",
    "wait-network",
    "wait-child",
    "wait-device",
    "sleep",
    "spawn",
    "compile",
    "collect",
]
# What the library below a line works on. "tensor" computes with arrays that gradients may flow through, "array" with
# others; "eager" calls operations of a compiler's library (JAX) one by one, outside of any compiled function;
# "trace" is a compiler that calls the user's function to see what it does; "anomaly" is torch's anomaly
# detection, which writes down the Python stack of each operation; "recompute" is activation checkpointing, which runs
# parts of a forward pass again in the backward pass. "weights" builds a model and fills its weights. "hand-over"
# pickles, copies and unpickles what one process sends to another, and waits for it.
Work = Literal[
    "tensor", "eager", "array", "decode", "tokenize", "collate", "pin", "copy", "file", "network", "database", "log",
    "save", "read", "trace", "anomaly", "recompute", "weights",
    "hand-over",
]  # fmt: skip
COMPUTES: tuple[Work, ...] = ("tensor", "eager", "array", "weights")


class Meaning(NamedTuple):
    """What a library's frame means; None where it does not say.

    `rests`: state and work hold only while the function itself is innermost, not while it calls others. Its phase also
    holds for the library code that it calls, but not for the user's functions.
    """

    phase: Phase | None = None
    state: State | None = None
    work: Work | None = None
    handler: Handler | None = None
    rests: bool = False


# The pattern of a file's path (see `library_path`) and of a function's name (None: any), and what such frames mean.
Row = tuple[str, "str | None", Meaning]


def _row(
    path: str,
    function: str | None = None,
    *,
    phase: Phase | None = None,
    state: State | None = None,
    work: Work | None = None,
    handler: Handler | None = None,
    rests: bool = False,
) -> Row:
    named = rf"(?:^|[.>])(?:{function})$" if function else None
    return path, named, Meaning(phase, state, work, handler, rests)


# The first row that matches a frame gives its meaning. Rows of one library stand together, special ones first.
TABLE: tuple[Row, ...] = (
    # phases with an event of their own
    *(_row(*frames, phase=phase.key, work="tensor" if phase.computes else None)
      for phase in phases.MEASURED for frames in phase.frames),
    # torch: loading data
    _row(r"/torch/utils/data/dataloader\.py$", r"__iter__|_get_iterator|__init__|_shutdown_workers|__del__",
         phase="data_wait", state="spawn"),
    _row(r"/torch/utils/data/dataloader\.py$", r"_try_get_data|_get_data", phase="data_wait", state="wait-queue"),
    _row(r"/torch/utils/data/_utils/collate\.py$", phase="data_wait", work="collate"),
    _row(r"/torch/utils/data/_utils/pin_memory\.py$", r"pin_memory", phase="data_wait", work="pin"),
    _row(r"/torch/utils/data/(?:dataloader|_utils/\w+)\.py$", phase="data_wait"),
    _row(r"/site-packages/(?:torchdata|webdataset|ffcv|nvidia/dali|streaming|datasets)/", phase="data_wait"),
    # torch: compiling
    _row(r"/torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph|guards)\.py$", state="compile"),
    _row(r"/torch/_inductor/(?:graph|scheduler|async_compile|cpp_builder)\.py$", state="compile"),
    _row(r"/triton/compiler/", state="compile"),
    _row(r"/torch/jit/_(?:trace|script)\.py$", r"trace|trace_module|_trace_impl|_trace_module_impl|script|_script_impl",
         state="compile"),
    _row(r"/torch/(?:export|onnx)/", r"export|_export", state="compile"),
    # torch: the model, its gradients, its update
    _row(r"/torch/nn/init\.py$", work="weights"),
    _row(r"/torch/nn/modules/", r"__init__|reset_parameters|load_state_dict", work="weights"),
    _row(r"/torch/nn/modules/module\.py$", r"_call_impl|_wrapped_call_impl", phase="forward", work="tensor"),
    _row(r"/torch/nn/modules/module\.py$", r"to|cuda|cpu|_apply", work="copy"),
    _row(r"/torch/nn/functional\.py$", phase="forward", work="tensor"),
    _row(r"/torch/autograd/function\.py$", r"apply", phase="forward", work="tensor"),
    _row(r"/torch/_dynamo/eval_frame\.py$", r"compile_wrapper|_TorchDynamoContext\.__call__\.<locals>\._fn",
         phase="forward", work="tensor"),
    _row(r"/torch/(?:_tensor|autograd/\w+)\.py$", r"backward|grad|_engine_run_backward",
         phase="backward", work="tensor"),
    _row(r"/torch/optim/(?:lr_scheduler|swa_utils)\.py$", phase="outside"),
    _row(r"/torch/optim/", r"state_dict|load_state_dict|add_param_group|__init__|__setstate__|zero_grad",
         phase="outside"),
    _row(r"/torch/optim/", phase="optimizer", work="tensor"),
    _row(r"/torch/(?:cuda/)?amp/grad_scaler\.py$", r"step|unscale_|update", phase="optimizer"),
    # torch: the rest
    _row(r"/torch/fx/traceback\.py$", r"format_stack", work="anomaly"),
    _row(r"/torch/utils/checkpoint\.py$", r"unpack_hook|backward", phase="backward", work="recompute"),
    _row(r"/torch/(?:cuda/)?(?:__init__|streams)\.py$", r"synchronize", state="wait-device"),
    _row(r"/torch/(?:cuda/)?memory\.py$", r"empty_cache", state="collect"),
    _row(r"/torch/_tensor(?:_str)?\.py$", r"__format__|__repr__|__array__|__contains__|_str\w*", work="read"),
    _row(r"/torch/serialization\.py$", r"save|_save|_legacy_save", phase="save", work="save"),
    _row(r"/torch/serialization\.py$", work="file"),
    _row(r"/torch/distributed/checkpoint/", r"save|async_save|save_state_dict", phase="save", work="save"),
    _row(r"/torch/distributed/checkpoint/", work="save"),
    _row(r"/torch/distributed/(?:distributed_c10d|c10d_logger|_functional_collectives|rendezvous)\.py$",
         phase="communication"),
    _row(r"/torch/distributed/(?:_symmetric_memory|elastic)/", phase="communication"),
    _row(r"/deepspeed/comm/", phase="communication"),
    _row(r"/horovod/torch/mpi_ops\.py$", phase="communication"),
    _row(r"/torch/nn/parallel/distributed\.py$", r"_sync\w*|_verify\w*|_broadcast\w*|_distributed_broadcast\w*",
         phase="communication"),
    _row(r"/torch/utils/tensorboard/", work="log"),
    # libraries that train with torch
    _row(r"/transformers/trainer\w*\.py$", r"evaluate|evaluation_loop|prediction_loop|predict", phase="evaluation"),
    _row(r"/transformers/trainer\.py$", r"_prepare_inputs?", phase="transfer"),
    _row(r"/transformers/", r"save_pretrained|save_model|_save_checkpoint|_save", phase="save"),
    _row(r"/transformers/(?:.*/)?tokenization_?\w*\.py$", work="tokenize"),
    _row(r"/transformers/(?:modeling_utils|models/auto/auto_factory)\.py$", r"from_pretrained|from_config|_from_config",
         work="weights"),
    _row(r"/transformers/(?:.*/)?(?:image_processing|feature_extraction|image_transforms)\w*\.py$", work="decode"),
    _row(r"/lightning.*/(?:evaluation|prediction)_(?:epoch_)?loop\.py$", phase="evaluation"),
    _row(r"/lightning.*/(?:fetchers|combined_loader)\.py$", phase="data_wait"),
    _row(r"/lightning.*/apply_func\.py$", r"move_data_to_device|batch_to", phase="transfer", work="copy"),
    _row(r"/lightning", r"save_checkpoint", phase="save"),
    _row(r"/accelerate/utils/operations\.py$", r"send_to_device", phase="transfer", work="copy"),
    _row(r"/accelerate/data_loader\.py$", phase="data_wait"),
    _row(r"/(?:accelerate|deepspeed)/", r"backward", phase="backward"),
    # vLLM: processes that hand work to each other by polling shared memory
    _row(r"/vllm/distributed/device_communicators/shm_broadcast\.py$", state="wait-queue"),
    _row(r"/vllm/distributed/utils\.py$", r"sched_yield", state="wait-queue"),
    # vLLM: the engine's loop, its workers, and the two versions of what runs the model in them
    _row(r"/vllm/v1/engine/core\.py$", r"_process_input_queue", phase="idle", state="wait-queue"),
    _row(r"/vllm/v1/engine/core\.py$", r"process_input_sockets|process_output_sockets", state="wait-queue"),
    _row(r"/vllm/v1/core/sched/\w*scheduler\.py$", r"schedule|get_grammar_bitmask", phase="schedule"),
    _row(r"/vllm/v1/core/sched/\w*scheduler\.py$", r"update_from_output", phase="output"),
    _row(r"/vllm/v1/executor/multiproc_executor\.py$", r"execute_model|sample_tokens|_wait_for_response",
         state="wait-child"),
    _row(r"/vllm/v1/worker/(?:gpu/)?\w*model_runner\.py$",
         r"_prepare_inputs|_preprocess|_update_states|prepare_inputs|prepare_attn|add_requests|update_requests"
         r"|finish_requests|_build_attention_metadata", phase="prepare"),
    _row(r"/vllm/v1/worker/(?:gpu/)?\w*model_runner\.py$", r"_model_forward|run_fullgraph", phase="forward",
         work="tensor"),
    _row(r"/vllm/v1/worker/(?:gpu/)?\w*model_runner\.py$", r"_sample|sample|compute_logits", phase="sample",
         work="tensor"),
    _row(r"/vllm/v1/worker/(?:gpu/)?\w*model_runner\.py$", r"_bookkeeping_sync|postprocess\w*", phase="output"),
    # vLLM: the server of the API
    _row(r"/vllm/(?:tokenizers|transformers_utils/detokenizer\w*)", work="tokenize"),
    _row(r"/vllm/(?:renderers/|v1/engine/input_processor\.py$)", phase="preprocess"),
    _row(r"/vllm/v1/engine/(?:output_processor|detokenizer|logprobs)\.py$", phase="postprocess"),
    # SGLang: its scheduler runs the model; the tokenizer's process has the HTTP server, the detokenizer one of its own
    _row(r"/sglang/srt/managers/scheduler\w*\.py$", r"on_idle|\w*sleep\w*", phase="idle", state="wait-queue"),
    _row(r"/sglang/srt/managers/scheduler\w*\.py$", r"get_next_batch_to_run|ingest_requests|process_input_requests",
         phase="schedule"),
    _row(r"/sglang/srt/managers/scheduler\w*\.py$", r"process_batch_result\w*", phase="output"),
    _row(r"/sglang/srt/(?:managers/tp_worker|model_executor/model_runner)\w*\.py$", r"sample", phase="sample"),
    _row(r"/sglang/srt/(?:managers/tp_worker|model_executor/model_runner)\w*\.py$", r"forward\w*", phase="forward",
         work="tensor"),
    _row(r"/sglang/srt/managers/tokenizer_manager\w*\.py$", r"_tokenize\w*|_batch_tokenize\w*", phase="preprocess",
         work="tokenize"),
    _row(r"/sglang/srt/managers/detokenizer_manager\w*\.py$", r"handle_batch\w*|_decode\w*|_batch_decode\w*",
         phase="postprocess", work="tokenize"),
    # transformers: what `generate` does around the model for each token, without the functions that its caller passed
    _row(r"/transformers/generation/(?:utils|logits_process|stopping_criteria)\.py$", phase="forward", work="tensor",
         rests=True),
    # transformers: continuous batching, and the thread of its server that generates
    _row(r"/transformers/generation/continuous_batching/continuous_api\.py$", r"prepare_next_batch",
         phase="schedule"),
    _row(r"/transformers/generation/continuous_batching/continuous_api\.py$", r"update_batch", phase="output"),
    _row(r"/transformers/generation/continuous_batching/cb_logits_processors\.py$", phase="sample"),
    # LitServe
    _row(r"/litserve/loops/", r"get_batch_requests|get_request|collate_requests", phase="idle", state="wait-queue"),
    _row(r"/litserve/loops/", r"run_\w+_loop|_process_\w+_request", handler="request-loop"),
    # Ray: the main thread of a worker waits for tasks; a replica of Ray Serve has an event loop for the user's code
    _row(r"/site-packages/ray/_private/worker\.py$", r"main_loop", state="wait-queue", rests=True),
    _row(r"/site-packages/ray/serve/_private/replica\.py$", r"_run_user_code_event_loop", state="wait-queue",
         handler="event-loop"),
    # greenlets: the hub waits for whatever goes on first
    _row(r"/site-packages/(?:gevent/hub|eventlet/hubs/\w+)\.py$", r"run|wait", state="wait-queue", rests=True),
    # what calls a handler: event loops and pools of threads
    _row(r"/anyio/_backends/_asyncio\.py$", r"run", handler="thread"),
    _row(r"/(?:flask/app|werkzeug/serving|gunicorn/workers/\w+)\.py$",
         r"wsgi_app|dispatch_request|run_wsgi|handle_request", handler="thread"),
    _row(r"/site-packages/waitress/task\.py$", r"service", handler="thread"),
    _row(r"/site-packages/waitress/wasyncore\.py$", r"poll\w*", state="wait-queue"),
    _row(r"/(?:python|pypy)\d[\d.]*t?/(?:socketserver|http/server)\.py$",
         r"process_request_thread|finish_request|handle_one_request", handler="thread"),
    # reinforcement learning
    _row(r"/site-packages/(?:gymnasium|gym|pettingzoo|ale_py|dm_env|dm_control|envpool|procgen|minigrid"
         r"|shimmy|supersuit|pybullet_envs|mujoco)/", phase="environment"),
    _row(r"/stable_baselines3/common/vec_env/", phase="environment"),
    # other frameworks: what runs below a jitted call is the model
    _row(r"/site-packages/jax/.*(?:compiler|pxla|mlir|partial_eval)\.py$",
         r"compile\w*|backend_compile\w*|lower\w*|_cached_(?:compilation|lowering\w*|trace_to_jaxpr)|trace_to_jaxpr\w*",
         state="compile"),
    _row(r"/site-packages/numba/.*(?:dispatcher|compiler)\.py$", r"_compile_for_args|compile\w*",
         state="compile"),
    # A compiled function is called without a frame of JAX's. Its operations have frames where each is called by itself.
    _row(r"/site-packages/(?:jax/_src/(?:numpy|lax|nn|scipy|image|random\.py)|flax|haiku|optax|equinox)\b",
         work="eager"),
    _row(r"/site-packages/(?:jax|jaxlib)/", work="tensor"),
    _row(r"/site-packages/(?:keras|tensorflow)/", work="tensor"),
    # a runtime that does nothing but run models
    _row(r"/onnxruntime/capi/onnxruntime_inference_collection\.py$", r"run|run_with_\w+", phase="forward",
         work="tensor"),
    # arrays
    _row(r"/numpy/lib/\w*npyio\w*\.py$", r"save|savez|savez_compressed|_savez", phase="save", work="save"),
    _row(r"/numpy/lib/\w*(?:npyio|memmap|format)\w*\.py$", work="file"),
    # not transformers' Trainer: its loop calls the parts of a step and whatever its user has passed
    _row(r"/site-packages/(?:torch|transformers(?!/trainer)|timm|diffusers|peft)/", work="tensor"),
    # metrics are computed with tensors, but for people: no step needs them
    _row(r"/site-packages/(?:torchmetrics|torcheval|ignite/metrics|evaluate)/", work="array"),
    _row(r"/site-packages/(?:numpy|scipy|sklearn|cupy|numba|xgboost|lightgbm|catboost|statsmodels|numexpr"
         r"|faiss)/", work="array"),
    # files, formats, services
    _row(r"/safetensors/", r"save|save_file|save_model", phase="save", work="save"),
    _row(r"/joblib/", r"dump", phase="save", work="save"),
    _row(r"/site-packages/(?:PIL|cv2|torchvision|librosa|soundfile|audioread|torchaudio|decord|av|imageio"
         r"|skimage|albumentations|torchcodec|pandas|pyarrow|polars|simplejson|yaml|lxml|bs4|msgpack)/",
         work="decode"),
    _row(r"/site-packages/(?:tokenizers|sentencepiece|tiktoken|nltk|spacy)/", work="tokenize"),
    _row(r"/site-packages/(?:tensorboard|tensorboardX|wandb|mlflow|neptune|comet_ml|tqdm|rich|loguru"
         r"|structlog)/", work="log"),
    _row(r"/site-packages/(?:sqlalchemy|psycopg|psycopg2|pymysql|MySQLdb|pymongo|redis|asyncpg|duckdb)/",
         work="database"),
    # aiohttp's server, unlike its client, waits for no service; nor does what a gRPC server calls
    _row(r"/site-packages/grpc/_server\.py$", r"_call_behavior|_take_response_from_response_iterator",
         handler="thread"),
    _row(r"/site-packages/(?:requests|urllib3|httpx|httpcore|aiohttp(?!/web)|boto3|botocore|s3fs|gcsfs|s3transfer"
         r"|google|grpc|paramiko|huggingface_hub|azure|minio|smart_open|websocket|websockets)/", work="network"),
    _row(r"/site-packages/(?:h5py|zarr|lmdb|tables|netCDF4|rasterio|nibabel|pydicom|fsspec)/", work="file"),
    _row(r"/site-packages/filelock/", state="wait-lock"),
    # the standard library
    _row(r"/multiprocessing/(?:popen_\w+|spawn|forkserver)\.py$", r"wait|poll", state="wait-child"),
    _row(r"/multiprocessing/(?:popen_\w+|spawn|forkserver)\.py$", state="spawn"),
    _row(r"/multiprocessing/process\.py$", r"start", state="spawn"),
    _row(r"/multiprocessing/process\.py$", r"join", state="wait-child"),
    _row(r"/multiprocessing/connection\.py$", r"_?poll|wait", state="wait-queue"),
    _row(r"/multiprocessing/connection\.py$", r"_?recv\w*|_?send\w*", state="wait-queue", work="hand-over"),
    _row(r"/multiprocessing/reduction\.py$", r"dumps|dump|loads", work="hand-over"),
    _row(r"/multiprocessing/queues\.py$", r"get|_feed", work="hand-over", rests=True),
    _row(r"/multiprocessing/queues\.py$", r"put", state="wait-room"),
    # a proxy asks its manager's process, as one asks a service
    _row(r"/multiprocessing/managers\.py$", r"_callmethod", work="network"),
    _row(r"/(?:python|pypy)\d[\d.]*t?/queue\.py$", r"put", state="wait-room"),
    _row(r"/multiprocessing/pool\.py$", r"worker", state="wait-queue", rests=True),
    _row(r"/multiprocessing/pool\.py$", state="wait-queue"),
    _row(r"/multiprocessing/synchronize\.py$", state="wait-lock"),
    _row(r"/concurrent/futures/_base\.py$", state="wait-lock"),
    _row(r"/concurrent/futures/(?:thread|process)\.py$", r"_worker|_process_worker", state="wait-queue", rests=True),
    _row(r"/threading\.py$", r"acquire|wait|wait_for|join|_wait_for_tstate_lock|__enter__", state="wait-lock"),
    _row(r"/subprocess\.py$", r"wait|_wait|communicate|_communicate|_try_wait", state="wait-child"),
    _row(r"/json/(?:__init__|decoder)\.py$", r"loads?|decode|raw_decode|py_scanstring|JSONObject|JSONArray",
         work="decode"),
    _row(r"/(?:python|pypy)\d[\d.]*t?/(?:csv|xml|gzip|bz2|lzma|zipfile|tarfile|_compression|compression|base64|html"
         r"|pickle)(?:\.py$|/)", work="decode"),
    _row(r"/(?:python|pypy)\d[\d.]*t?/logging(?:\.py$|/)", work="log"),
    _row(r"/(?:python|pypy)\d[\d.]*t?/(?:sqlite3|dbm|shelve)(?:\.py$|/)", work="database"),
    _row(r"/(?:python|pypy)\d[\d.]*t?/(?:urllib|http|socket|ssl|ftplib|smtplib)(?:\.py$|/)", work="network"),
    _row(r"/(?:python|pypy)\d[\d.]*t?/(?:pathlib|shutil|glob|tempfile|fileinput|genericpath|codecs|_pyio)(?:\.py$|/)",
         work="file"),
    _row(r"/(?:python|pypy)\d[\d.]*t?/asyncio/", state="wait-queue", handler="event-loop"),
    _row(r"/(?:python|pypy)\d[\d.]*t?/(?:queue|selectors)\.py$", state="wait-queue"),
)  # fmt: skip


# C functions that collect garbage. They have no frame: a stack shows only the line that calls them.
COLLECTORS = frozenset({"gc.collect"})
# Models and losses both call these functions, so a call of one does not show where a model is called.
_FUNCTIONS = re.compile(r"/torch/nn/functional\.py$")
_EXCHANGES = re.compile(r"/(?:torch/distributed|deepspeed|horovod)/|/torch/nn/parallel/distributed\.py$")


def exchanges(file: str) -> bool:
    """Whether a file is of a library through which the ranks of a job exchange data."""
    return _EXCHANGES.search(file) is not None


def calls_model(frame: Frame) -> bool:
    """Whether this library frame calls a model: a module, a compiled function or a custom autograd function."""
    return meaning(frame).phase == "forward" and _FUNCTIONS.search(frame.file) is None


def begins_task(frame: Frame) -> bool:
    """Whether this library frame calls the user's code for one request, or for one task that was handed to an executor.

    A loop above it takes one after the other.
    """
    return meaning(frame).handler is not None or (
        frame.function.rpartition(".")[2] == "run" and frame.file.endswith("/concurrent/futures/thread.py")
    )


def makes_steps(frame: Frame) -> bool:
    """Whether this library frame may be the loop of a framework, which calls the parts of a step one after the other.

    That is code of an installed package that has no meaning of its own, and the loop of a server that takes requests.
    """
    return _makes_steps(frame.file, frame.packages, frame.function)


@functools.lru_cache(maxsize=8192)
def _makes_steps(file: str, packages: str | None, function: str) -> bool:
    meant = _meaning(file, packages, function)
    return meant.handler == "request-loop" or (
        meant == Meaning() and origin_of(file, user=False) == "library" and not file.startswith("<")
    )


def meaning(frame: Frame) -> Meaning:
    """The meaning of a library's frame by its file and function."""
    return _meaning(frame.file, frame.packages, frame.function)


@functools.lru_cache(maxsize=8192)
def _meaning(file: str, packages: str | None, function: str) -> Meaning:
    within = library_path(file, packages)
    for beginning, path, named, says in _rows():
        if beginning in within and re.search(path, within) and (named is None or re.search(named, function)):
            return says
    return Meaning()


@functools.cache
def _rows() -> list[tuple[str, str, str | None, Meaning]]:
    """The table, each row with the literal text that its path begins with: only on a hit is the pattern compiled."""
    return [(_beginning(path), path, named, says) for path, named, says in TABLE]


def _beginning(path: str) -> str:
    """The literal text that all matches of a pattern begin with. It must have no choice (`a|b`) outside of brackets."""
    # A letter before *, ? or { is optional, so the text ends before it.
    letters = re.match(r"[\w/-]*(?![*?{])", path, re.ASCII)
    return letters[0] if letters is not None else ""
