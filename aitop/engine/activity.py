"""What a stack is doing, told from the library frames under the user's innermost line, else from its text. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Literal

from aitop.engine.phases import words
from aitop.model.stacks import Frame

Activity = Literal[
    "compute", "python", "save", "io-file", "io-network", "io-database", "log", "sleep", "gc", "collate", "pin",
    "decode", "tokenize", "sync", "queue", "spawn", "lock", "compile", "copy", "other",
]  # fmt: skip

Rows = tuple[tuple[re.Pattern[str], re.Pattern[str] | None, Activity], ...]


def _compiled(rows: Sequence[tuple[str, str | None, Activity]]) -> Rows:
    return tuple(
        (re.compile(file), re.compile(rf"(?:^|[.>])(?:{function})$") if function else None, activity)
        for file, function, activity in rows
    )


# File, function (None for any), activity; looked up for each library frame from the user's line inwards.
_LIBRARY = _compiled(
    (
        (r"/torch/utils/data/dataloader\.py$", r"__iter__|_get_iterator|__init__|_shutdown_workers|__del__", "spawn"),
        (r"/torch/utils/data/dataloader\.py$", r"_try_get_data|_get_data", "queue"),
        (r"/torch/utils/data/_utils/collate\.py$", None, "collate"),
        (r"/torch/utils/data/_utils/pin_memory\.py$", r"pin_memory", "pin"),
        (r"/torch/serialization\.py$", r"save|_save|_legacy_save", "save"),
        (r"/torch/serialization\.py$", None, "io-file"),
        (r"/torch/distributed/checkpoint/", None, "save"),
        (r"/torch/nn/modules/module\.py$", r"_call_impl|_wrapped_call_impl", "compute"),
        (r"/torch/nn/modules/module\.py$", r"to|cuda|cpu|_apply", "copy"),
        (r"/torch/nn/functional\.py$|/torch/optim/", None, "compute"),
        (r"/torch/(?:_tensor|autograd/\w+)\.py$", r"backward|_engine_run_backward|grad", "compute"),
        (r"/torch/_tensor_str\.py$", None, "sync"),
        (r"/torch/_tensor\.py$", r"__format__|__repr__|__array__|__contains__", "sync"),
        (r"/torch/(?:cuda/)?(?:__init__|streams)\.py$", r"synchronize", "sync"),
        (r"/torch/(?:cuda/)?amp/grad_scaler\.py$", r"_maybe_opt_step|update", "sync"),
        (r"/torch/(?:cuda/)?memory\.py$", r"empty_cache", "gc"),
        (r"/torch/utils/tensorboard/", None, "log"),
        (r"/accelerate/utils/operations\.py$|/apply_func\.py$", r"send_to_device|move_data_to_device|batch_to", "copy"),
        (r"/transformers/(?:.*/)?tokenization_?\w*\.py$", None, "tokenize"),
        (r"/transformers/(?:.*/)?(?:image_processing|feature_extraction|image_transforms)\w*\.py$", None, "decode"),
        (r"/numpy/lib/\w*npyio\w*\.py$", r"save\w*|_savez", "save"),
        (r"/numpy/lib/\w*(?:npyio|memmap|format)\w*\.py$", None, "io-file"),
        (r"/multiprocessing/(?:popen_\w+|spawn|forkserver)\.py$", None, "spawn"),
        (r"/multiprocessing/process\.py$", r"start", "spawn"),
        (r"/multiprocessing/(?:queues|pool)\.py$", None, "queue"),
        (r"/multiprocessing/synchronize\.py$", None, "lock"),
        (r"/concurrent/futures/_base\.py$", None, "lock"),
        (r"/threading\.py$", r"acquire|wait|wait_for|join|_wait_for_tstate_lock|__enter__", "lock"),
        (r"/json/(?:__init__|decoder)\.py$", r"loads?|decode|raw_decode|py_scanstring|JSONObject|JSONArray", "decode"),
    )
)


def _by_name(rows: Sequence[tuple[Activity, str]]) -> dict[str, Activity]:
    return {name: activity for activity, names in rows for name in names.split()}


_PACKAGES = _by_name(
    (
        (
            "decode",
            "PIL cv2 torchvision librosa soundfile audioread torchaudio decord av imageio skimage albumentations",
        ),
        ("decode", "torchcodec pandas pyarrow polars simplejson yaml lxml bs4 msgpack"),
        ("tokenize", "tokenizers sentencepiece tiktoken nltk spacy"),
        ("log", "tensorboard tensorboardX wandb mlflow neptune comet_ml tqdm rich loguru structlog"),
        ("io-database", "sqlalchemy psycopg psycopg2 pymysql MySQLdb pymongo redis asyncpg duckdb"),
        (
            "io-network",
            "requests urllib3 httpx httpcore aiohttp boto3 botocore s3fs gcsfs s3transfer google grpc paramiko",
        ),
        ("io-network", "huggingface_hub azure minio smart_open websocket websockets"),
        ("io-file", "h5py zarr lmdb tables netCDF4 rasterio nibabel pydicom fsspec"),
        ("save", "safetensors"),
        ("lock", "filelock"),
    )
)
_STANDARD = _by_name(
    (
        ("decode", "csv xml gzip bz2 lzma zipfile tarfile _compression compression base64 html pickle"),
        ("log", "logging"),
        ("io-database", "sqlite3 dbm shelve"),
        ("io-network", "urllib http socket ssl ftplib smtplib"),
        ("io-file", "pathlib shutil glob tempfile fileinput genericpath codecs _pyio"),
        ("queue", "queue selectors asyncio"),
        ("other", "subprocess"),
    )
)
_PACKAGE = re.compile(r"/(?:site|dist)-packages/(\w+)")
_MODULE = re.compile(r"/(?:python|pypy)\d[\d.]*t?/(\w+)(?:\.py$|/)")

# Compilation hides far below the line that triggers it.
_COMPILING = re.compile(
    r"/torch/(?:_dynamo/(?:convert_frame|symbolic_convert|output_graph|guards)"
    r"|_inductor/(?:graph|scheduler|async_compile|cpp_builder))\.py$|/triton/compiler/"
)


def _patterns(rows: Sequence[tuple[str, Activity]]) -> tuple[tuple[re.Pattern[str], Activity], ...]:
    return tuple((re.compile(pattern), activity) for pattern, activity in rows)


# Text of the line; the first row that fits counts.
_TEXT = _patterns(
    (
        (r"\.(?:item|tolist|cpu|numpy|masked_select)\(|\bsynchronize\(", "sync"),
        (
            r"\b(?:float|int|bool)\(\w*loss\w*\)|\b(?:if|assert|while) .*\btorch\.(?:is\w+|any|all|equal|allclose)\(",
            "sync",
        ),
        (r"\bsleep\(", "sleep"),
        (r"\bgc\.collect\(|\bempty_cache\(|\bmalloc_trim\(", "gc"),
        (r"\b(?:torch|pickle|joblib|dill)\.(?:save|dump)\(|\bnp\.save\w*\(|\bsave_file\(|\.save_pretrained\(", "save"),
        (r"\.(?:execute|executemany|executescript|commit|fetchone|fetchall|fetchmany)\(", "io-database"),
        (r"\brequests\.|\burlopen\(|\burlretrieve\(|\bsocket\.", "io-network"),
        (r"\.(?:recv|recv_into|sendall|connect|getresponse)\(", "io-network"),
        (r"\b(?:Image|cv2|imageio|sf|librosa)\.\w|\bim(?:read|decode)\(", "decode"),
        (r"\b(?:json|orjson|ujson|pickle|msgpack|marshal|yaml)\.(?:safe_)?loads?\(|\bcsv\.|b64decode\(", "decode"),
        (r"\b(?:zlib|gzip|bz2|lzma|zstd|lz4)\.|decompress\(", "decode"),
        (r"\btokeni[sz]\w*\(|\btok\w*\.(?:batch_)?encode|\btokeni[sz]er\.\w+\(|\bencode_batch\(", "tokenize"),
        (r"\.pin_memory\(", "pin"),
        (r"\.cuda\(|\.to\(|\.copy_\(", "copy"),
        (r"\bprint\(|\blogg(?:er|ing)\.\w+\(|\b(?:wandb|mlflow)\.|\.add_scalars?\(|\bsys\.std(?:out|err)\.", "log"),
        (r"\bfsync\(|\bopen\(|\.(?:read|pread|readline|readlines|readinto|read_bytes|read_text)\(", "io-file"),
        (r"\.(?:write|writelines|flush|seek|truncate|write_bytes|write_text)\(", "io-file"),
        (r"\bnp\.(?:load|loadtxt|genfromtxt|memmap|fromfile)\(|\bshutil\.\w|\bglob\.i?glob\(", "io-file"),
        (r"\bos\.(?:stat|listdir|scandir|walk|rename|replace|remove|unlink|read|write|preadv?|pwritev?)\(", "io-file"),
        (r"\.(?:acquire|join|wait|result)\(\)|\bwith \w*lock\b", "lock"),
        (r"\.get\(timeout|queue\.(?:get|put)\(|\bq\.(?:get|put)\(", "queue"),
    )
)
_COMPUTING_TEXT = re.compile(
    r"\b(?:torch|F|np|numpy|nn|scipy|einops|cupy|jnp|linalg|fft)\.\w|\S @ \S|\beinsum\(|\brearrange\("
    r"|\.\w+_\(|\.(?:matmul|mm|bmm|view|reshape|transpose|permute|softmax|sum|mean|pow|sqrt|exp|argmax|(?:un)?squeeze)\("
)
_COMPUTING_FILE = re.compile(
    r"/torch/|/(?:site|dist)-packages/(?:numpy|scipy|sklearn|cupy|jax|numba|transformers|timm|diffusers|peft)/"
)
_FETCHES = re.compile(r"/torch/utils/data/_utils/fetch\.py$")
_SAMPLES = re.compile(r"(?:^|\.)__getitems?__(?:\.|$)")
_COMMENT = re.compile(r"(?:^|\s)#.*$")


def activity_of(frames: Sequence[Frame]) -> Activity:
    """What the stack (its own frames, the outermost first) is doing at this moment."""
    innermost = next((index for index in range(len(frames) - 1, -1, -1) if frames[index].user), -1)
    below = frames[innermost + 1 :]
    if any(_COMPILING.search(frame.file) for frame in below):
        return "compile"
    for frame in below:
        found = library_activity(frame.file, frame.function)
        if found is not None:
            return found
    line = frames[innermost] if innermost >= 0 else None
    found = text_activity(line.text) if line is not None and line.text else None
    if found is not None:
        return found
    if line is not None and _collates(frames):
        return "collate"
    computing = any(_COMPUTING_FILE.search(frame.file) for frame in below)
    if computing or (line is not None and _COMPUTING_TEXT.search(line.text or "")):
        return "compute"
    return "python" if line is not None else "other"


def _collates(frames: Sequence[Frame]) -> bool:
    """Whether a function of the user's makes one batch of samples: one named so, or what a loader calls to that end.

    torch's fetcher for indices calls the data set's `__getitem__` from a comprehension, or by that name.
    """
    for above, frame in zip((None, *frames), frames, strict=False):
        if not frame.user:
            continue
        if "collate" in words(frame.function):
            return True
        if above is not None and above.function.endswith("_MapDatasetFetcher.fetch") and _FETCHES.search(above.file):
            return not _SAMPLES.search(frame.function)
    return False


@functools.lru_cache(maxsize=4096)
def library_activity(file: str, function: str) -> Activity | None:
    """What a library frame says about the line that called it, None where it says nothing."""
    for path, name, activity in _LIBRARY:
        if path.search(file) and (name is None or name.search(function)):
            return activity
    package = _PACKAGE.search(file)
    if package is not None:
        return _PACKAGES.get(package[1])
    module = _MODULE.search(file)
    return _STANDARD.get(module[1]) if module is not None else None


@functools.lru_cache(maxsize=4096)
def text_activity(text: str) -> Activity | None:
    """What a source line that calls straight into C does, None where its text does not tell."""
    code = _COMMENT.sub("", text)
    return next((activity for pattern, activity in _TEXT if pattern.search(code)), None)
