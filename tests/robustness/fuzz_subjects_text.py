"""More subjects of fuzz.py: source files, torch.profiler's traces, what libraries of collectives tell, ELF
images and the kernel's texts.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import msgspec

from aitop.attach.inspection.elf import ElfImage, NotElfError
from aitop.attach.inspection.process_memory import LARGEST_READ
from aitop.attach.inspection.python_image import WANTED
from aitop.engine.torch_profile import TraceError, analyse
from aitop.model.event import Event
from aitop.model.profile import Holds
from aitop.model.ranks import ExchangeNotes
from aitop.outputs.profile import profile_text
from aitop.sources import procfs
from aitop.sources.code.growth import growth_sites
from aitop.sources.code.lines import SourceCode
from aitop.sources.exchange.flight_recorder import last_of
from aitop.sources.host.command_lines import kind_of, rank_numbers
from aitop.sources.process_status import parse_status
from aitop.sources.servers.engines import ENGINES
from aitop.sources.servers.exposition import server_sample, wanted_names

TESTS = Path(__file__).parents[1]
PROC = ("stat", "status", "cgroup", "mountinfo", "maps", "cmdline", "environ", "schedstat", "io")
MOST_SOURCE = 20_000


class Finding(Exception):
    """The bytes got something through."""


def check_recordable(sample: Event) -> None:
    """What a recording cannot give back is not to be handed on."""
    back = msgspec.json.decode(msgspec.json.encode(sample), type=Event)
    if back != sample:
        raise Finding(f"a recording gives something else back: {sample}"[:500])


def source_seeds() -> list[bytes]:
    """Training scripts with and without faults."""
    paths = [
        *sorted((TESTS / "accuracy" / "scenarios").glob("*.py")),
        *sorted((TESTS / "e2e" / "frameworks").glob("*.py")),
    ]
    return [data for path in paths if len(data := path.read_bytes()) < MOST_SOURCE]


def feed_source(data: bytes) -> None:
    """Through what reads the user's code: lines, loops, conditions, what grows."""
    place = Path(f"/dev/shm/aitop-fuzz-{os.getpid()}.py")
    place.write_bytes(data)
    try:
        own = procfs.process_id(os.getpid())
        assert own is not None
        code = SourceCode(own)
        text = code.text(str(place)) or ""
        for line in range(1, 60, 7):
            words = code.place(str(place), line)
            if words is None:
                break
            if not all(word is None or word.isprintable() for word in words):
                raise Finding(repr(words)[:300])
    finally:
        place.unlink()
    for site in growth_sites({"/home/ada/train.py": text}):
        if not site.text.isprintable():
            raise Finding(repr(site)[:300])


def trace_seeds() -> list[bytes]:
    """Operators, kernels, copies, memory."""

    def event(name: str, kind: str, ts: float, length: float, **args: object) -> dict[str, object]:
        named = {key.replace("_", " "): value for key, value in args.items()}
        return {"ph": "X", "cat": kind, "name": name, "pid": 7, "tid": 1, "ts": ts, "dur": length, "args": named}

    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "tid": 1, "ts": 15.0}
    memory["args"] = {"Bytes": 4096, "Total Allocated": 10_000, "Device Type": 0}
    host = [
        event("aten::linear", "cpu_op", 0, 40, External_id=1),
        event("aten::addmm", "cpu_op", 10, 20, External_id=2),
    ]
    gpu = [
        event("cudaLaunchKernel", "cuda_runtime", 5, 5, correlation=11),
        event("sm90_gemm", "kernel", 30, 50, External_id=1, correlation=11, device=0),
        event("Memcpy HtoD", "gpu_memcpy", 140, 60, correlation=13, device=0),
    ]
    return [json.dumps({"traceEvents": events}).encode() for events in ([*host, memory], [*host, *gpu], [])]


def feed_trace(data: bytes) -> None:
    """Through the analysis to the report."""
    try:
        profile = analyse(data, pid=7, steps=5, holds=Holds(start=0.1, stop=0.1, save=0.1))
    except TraceError:
        return
    if not profile_text(profile).replace("\n", "").isprintable():
        raise Finding("a control character in the profile")


def notes_seeds() -> list[bytes]:
    """Dumps of a Flight Recorder in each form of pickles."""
    frames = [{"name": "all_reduce", "filename": "/x/torch/c10d.py", "line": 3}, {"filename": "/x/train.py", "line": 9}]
    entry = {"frames": frames, "process_group": ("0", "pg"), "collective_seq_id": 7, "profiling_name": "nccl:barrier"}
    entries = [{**entry, "state": state, "retired": state == "completed"} for state in ("completed", "scheduled")]
    dump = {"version": "2.10", "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": entries}
    return [pickle.dumps(dump, protocol=protocol) for protocol in (2, 4, 5)]


def feed_notes(data: bytes) -> None:
    """Through the reader to notes that can be recorded."""
    try:
        record = last_of(data, 7, 3)
    except ValueError:
        record = None
    notes = ExchangeNotes(time=1.0, flights=(record,) if record is not None else ())
    check_recordable(notes)
    texts = (record.call, record.state, record.group, record.where or "") if record is not None else ()
    if not all(text.isprintable() for text in texts):
        raise Finding(repr(texts)[:300])


def metrics_seeds() -> list[bytes]:
    """Pages of each engine's names, with labels, buckets and comments."""
    pages = []
    for metrics in (row.metrics for row in ENGINES if row.metrics):
        lines = ["# HELP x y", "# TYPE x counter"]
        for name in sorted(wanted_names(metrics)):
            bounds = ("0.1", "0.5", "+Inf") if name.endswith("_bucket") else ("",)
            lines += [name + '{engine="0",le="' + bound + '"} 3.5e1 1700000000' for bound in bounds]
        pages.append("\n".join(lines).encode())
    return pages


def feed_metrics(data: bytes) -> None:
    """Through the reader to a sample that can be recorded, for each engine."""
    text = data.decode("utf-8", "replace")
    for metrics in (row.metrics for row in ENGINES if row.metrics):
        sample = server_sample(text, metrics, time=1.0, pid=7)
        if sample is not None:
            check_recordable(sample)


def elf_seeds() -> list[bytes]:
    """Small libraries as they lie in memory."""
    libraries = []
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/aarch64-linux-gnu"):
        for name in ("libdl.so.2", "libutil.so.1", "libpthread.so.0"):
            path = Path(folder, name)
            if path.exists():
                libraries.append(_loaded(path.read_bytes()))
    return libraries or [b"\x7fELF\x02\x01" + bytes(58)]


def _loaded(file: bytes) -> bytes:
    table, count = struct.unpack_from("<Q", file, 32)[0], struct.unpack_from("<H", file, 56)[0]
    image = bytearray()
    for kind, _, offset, address, _, size, memory, _ in struct.iter_unpack(
        "<IIQQQQQQ", file[table : table + 56 * count]
    ):
        if kind == 1:
            image.extend(bytes(max(0, address + memory - len(image))))
            image[address : address + size] = file[offset : offset + size]
    return bytes(image)


def feed_elf(data: bytes) -> None:
    """Through the look-up of Python's symbols, at an address as those of libraries are."""
    base, asked = 0x7F0000000000, 0

    def read(address: int, size: int) -> bytes:
        nonlocal asked
        if not 0 <= address < 1 << 63 or not 0 <= size <= LARGEST_READ:
            raise OSError
        asked += 1
        if asked > 2_000_000:
            raise Finding("too many reads")
        piece = data[max(0, address - base) : max(0, address - base + size)]
        if address < base or len(piece) != size:
            raise OSError
        return piece

    try:
        image = ElfImage(read, base)
    except NotElfError:
        return
    image.symbols([*WANTED, "dlopen", "dlsym"])
    image.ends(writable=True), image.ends(writable=False)


def kernel_seeds() -> list[bytes]:
    """What the kernel says of this process."""
    return [data for name in PROC if (data := procfs.read(f"/proc/self/{name}"))]


def feed_kernel(data: bytes) -> None:
    """Through each reader of such texts, whichever it is."""
    procfs.parse_stat(data)
    procfs.framework_of(data)
    procfs.python_version_of("python3", data)
    text = data.decode("utf-8", "replace")
    words = tuple(text.split("\0"))
    if not procfs.shown(words).isprintable():
        raise Finding("a control character in a command line")
    kind_of(words, True)
    kind_of(words, False)
    rank_numbers({key: value for key, _, value in (word.partition("=") for word in words)})
    if "\nState:\t" in text:
        try:
            parse_status(7, text, 0)
        except ValueError:
            return
