"""Export what costs the jobs of this machine their time, as metrics: to Prometheus, a file or a collector."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from aitop.commands import say
from aitop.commands.options import SWITCHES, add_switches, at_least, process_id
from aitop.errors import AitopError, WrongUsageError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from aitop.engine.node import Node
    from aitop.outputs.prometheus.families import JobsCollector

DEPLOYMENTS = {
    "kubernetes": "kubernetes.yaml",
    "slurm": "slurm.sh",
    "systemd": "aitop-export.service",
    "grafana": "grafana.json",
    "alerts": "alerts.yaml",
}
# From glibc's malloc.h.
M_ARENA_MAX = -8
SUFFIX = ".prom"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--pid or --all, where to export to, how often, and --print."""
    which = parser.add_argument_group("which jobs")
    which.add_argument(
        "-p", "--pid", type=process_id, nargs="+", metavar="PID", help="these processes, with their children"
    )
    which.add_argument("--all", action="store_true", help="all AI processes of this machine, as they come and go")
    where = parser.add_argument_group("where to")
    where.add_argument(
        "--prometheus", metavar="HOST:PORT", help="listen there for scrapes (PORT alone: for this machine only)"
    )
    where.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate …")
    where.add_argument("--tls-key", metavar="FILE", help="… and its key")
    where.add_argument(
        "--tls-clients", metavar="FILE", help="answer only clients with a certificate signed by this one"
    )
    where.add_argument(
        "--textfile", type=Path, metavar="FILE", help="write FILE.prom for node_exporter's textfile collector"
    )
    where.add_argument("--otlp", metavar="URL", help="send to an OpenTelemetry collector, as http://localhost:4318")
    how = parser.add_argument_group("how to watch")
    how.add_argument(
        "--every", type=at_least(1.0), default=15.0, metavar="T", help="time between two looks (default: 15s)"
    )
    # No history: an exporter keeps no summaries of runs. No hook by default, whatever the settings say: those are for
    # the screen, not for many jobs over days.
    add_switches(how, (name for name in SWITCHES if name != "history"), hook=False)
    parser.add_argument("--print", choices=DEPLOYMENTS, help="print a file to deploy the exporter with, and end")


def run(args: argparse.Namespace) -> int:
    """Export until interrupted, or until the processes named have ended."""
    if args.print:
        sys.stdout.write(deployment(args.print))
        return 0
    check_usage(args)
    use_one_arena()
    from aitop.engine.history import WINDOW_SECONDS
    from aitop.engine.node import Node
    from aitop.sources.host.identity import node_name
    from aitop.sources.host.target import look

    for pid in args.pid or ():
        look(pid, even_stopped=True)
    collector = new_collector(node_name())
    # A look sees the requests of one window: so that none is missed, looks overlap where the hook tells of requests.
    interval = min(args.every, WINDOW_SECONDS / 2) if args.settings.hook else args.every
    options = replace(args.settings, interval=interval, history=False)
    node = Node(args.pid, options, collector, say)
    with contextlib.ExitStack() as ending:
        exports = list(exports_of(args, collector, ending))
        ending.callback(node.stop)
        notify("READY=1")
        # Ctrl-C is how it is meant to end.
        with contextlib.suppress(KeyboardInterrupt):
            keep_exporting(node, collector, exports, args.every)
    return 0


def keep_exporting(node: Node, collector: JobsCollector, exports: Sequence[Callable[[], None]], every: float) -> None:
    """Call `exports` once in `every` seconds, until all processes that were named have ended."""
    from aitop.engine.live import CpuMeter

    cpu = CpuMeter()
    ended, due = 0, 0.0
    while True:
        pause = node.update()
        if node.ended > ended:
            ended = node.ended
            give_memory_back()
        collector.cpu = cpu.cores()
        if node.over or time.monotonic() >= due:
            due = time.monotonic() + every
            for export in exports:
                export()
        notify("WATCHDOG=1")
        if node.over:
            return
        time.sleep(min(pause, max(0.0, due - time.monotonic())))


def notify(state: str) -> None:
    """Tell systemd a state such as READY=1 or WATCHDOG=1 (sd_notify), if systemd started this process."""
    import socket

    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    # An abstract address begins with a zero byte.
    target = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), target)


def use_one_arena() -> None:
    """Have all threads allocate from one arena of the C library, where it has several.

    Each job has threads of its own. glibc gives them up to eight arenas per core, and memory that ended jobs leave free
    in one arena is not used by another: every new job took a megabyte more.
    """
    import ctypes

    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def give_memory_back() -> None:
    """Free what ended jobs have left, and give its pages back to the system where the C library can.

    The interpreter's own collector runs only once there are a quarter more objects: that takes an hour or more, in
    which each job left 0.4 MB in reference cycles. The pages were 4.7 of 48.3 MB after a quarter of an hour.
    """
    import ctypes
    import gc

    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def check_usage(args: argparse.Namespace) -> None:
    """Raise a WrongUsageError where the options do not say what to export, or where to."""
    if bool(args.pid) == args.all:
        raise WrongUsageError("say which jobs: either --pid PID, or --all that run here")
    if not (args.prometheus or args.textfile or args.otlp):
        raise WrongUsageError("say where to: --prometheus HOST:PORT, --textfile FILE or --otlp URL")
    if (args.tls_cert is None) != (args.tls_key is None) or (args.tls_clients and not args.tls_cert):
        raise WrongUsageError("HTTPS needs both --tls-cert and --tls-key")
    if args.tls_cert and not args.prometheus:
        raise WrongUsageError("--tls-cert, --tls-key and --tls-clients need --prometheus, which they make HTTPS")
    for file in filter(None, (args.tls_cert, args.tls_key, args.tls_clients)):
        try:
            Path(file).open("rb").close()
        except OSError as error:
            raise WrongUsageError(f"cannot read {file}: {error.strerror}") from None
    if args.textfile and args.textfile.suffix != SUFFIX:
        raise WrongUsageError(f"node_exporter reads only files that end in {SUFFIX}: {args.textfile} does not")


def new_collector(node: str) -> JobsCollector:
    """The collector of this machine's jobs. Raises an AitopError where its library is missing."""
    try:
        from aitop.outputs.prometheus.families import JobsCollector
    except ImportError as error:
        raise AitopError(f"{error.name} is not installed", "in aitop's clone: pip install '.[export]'") from None
    return JobsCollector(node)


def exports_of(
    args: argparse.Namespace, collector: JobsCollector, ending: contextlib.ExitStack
) -> Iterator[Callable[[], None]]:
    """The functions to call after each look, one per export. What must be undone at the end goes into `ending`."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(collector)
    if args.prometheus:
        listen(registry, args)
    if args.textfile:
        yield textfile_of(registry, args.textfile, ending)
    if args.otlp:
        yield otlp_of(collector, args.otlp, ending)


def listen(registry: CollectorRegistry, args: argparse.Namespace) -> None:
    """Answer scrapes in a thread of its own. Raises WrongUsageError where that cannot be done at this address.

    With `--tls-clients`, only holders of a certificate that is signed by it may ask.
    """
    import ssl

    from prometheus_client import start_http_server

    from aitop.outputs.prometheus.destinations import parse_address

    try:
        address = parse_address(args.prometheus)
        start_http_server(
            address.port,
            address.host,
            registry,
            certfile=args.tls_cert,
            keyfile=args.tls_key,
            client_cafile=args.tls_clients,
            client_auth_required=args.tls_clients is not None,
        )
    except ValueError as error:
        raise WrongUsageError(str(error)) from None
    except ssl.SSLError as error:
        raise WrongUsageError(f"no HTTPS with {args.tls_cert} and {args.tls_key}: {error.strerror}") from None
    except OSError as error:
        raise WrongUsageError(f"cannot listen on {args.prometheus}: {error.strerror or error}") from None
    scheme = "https" if args.tls_cert else "http"
    say(f"metrics are at {scheme}://{address}/metrics")


def textfile_of(registry: CollectorRegistry, path: Path, ending: contextlib.ExitStack) -> Callable[[], None]:
    """The function that writes the file. The end removes the file: node_exporter would go on exporting what it says."""
    from aitop.output_file import remove_output
    from aitop.outputs.prometheus.destinations import write_textfile

    failed: OSError | None = None
    begun = False

    def write() -> None:
        nonlocal failed, begun
        before, failed = failed, None
        try:
            write_textfile(registry, path)
            begun = True
        except OSError as error:
            failed = error
            words = f"cannot write {path}: {error.strerror or error}"
            if not begun:
                raise AitopError(words) from None
            if before is None:
                # A disk that is full now may have room again.
                say(f"{words}; trying again")

    ending.callback(remove_output, path)
    return write


def otlp_of(collector: JobsCollector, url: str, ending: contextlib.ExitStack) -> Callable[[], None]:
    """The function that sends metrics, and changes of verdicts as log records, to an OpenTelemetry collector."""
    from aitop.sources.prometheus.address import without_password

    shown = without_password(url)
    if not url.startswith(("http://", "https://")):
        raise WrongUsageError(f"{shown!r} is not the URL of a collector, such as http://localhost:4318")
    try:
        from aitop.outputs.otlp import OtlpSender
    except ImportError as error:
        raise AitopError(f"{error.name} is not installed", "in aitop's clone: pip install '.[otlp]'") from None
    sender = OtlpSender(url, collector, say, shown)
    ending.callback(sender.close)
    return sender.send


def deployment(name: str) -> str:
    """The file to deploy the exporter with."""
    return files("aitop.commands").joinpath("deployments").joinpath(DEPLOYMENTS[name]).read_text(encoding="utf-8")
