"""Starts a server and its clients as users would, and says what the clients have seen."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from urllib.request import Request, urlopen

import psutil

HERE = Path(__file__).resolve().parent
SERVERS, LOAD = HERE / "servers", HERE / "serving_load.py"
MODEL = re.compile(r"model in process (\d+)")
START_SECONDS, STOP_SECONDS = 120.0, 4.0
BURN = "while True: pass"


@dataclass(frozen=True)
class Answer:
    """An answer that a client got at `end` (monotonic).

    `seconds` passed from its request's being due until the client had read it. From the sending of the request until
    the first and the last byte of the answer were with the client's kernel it took `first` and `served`: that is the
    server's part, without the client's own delays. None where no answer came; `first` also where the client read too
    late to tell when the first part came.
    """

    end: float
    seconds: float
    served: float | None
    first: float | None
    status: int
    crc: int


class Server:
    """A server in a session of its own, from its first answer on. As a context it ends with the block.

    `command` has {port} where the port goes. `quota` is the part of a core that its control group gives it, None for
    no limit. `model_pid` is the process in which the model runs: as the server's script has printed it, or vLLM's
    worker or engine.
    """

    def __init__(
        self,
        command: Sequence[str],
        path: str,
        body: Mapping[str, object],
        *,
        quota: float | None = None,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        self.port, self.path = free_port(), path
        self._body = dict(body)
        self._folder = tempfile.TemporaryDirectory(prefix="aitop-serving-")
        self.folder = Path(self._folder.name)
        self._log = self.folder / "server.log"
        self._group = ControlGroup(quota) if quota is not None else None
        words = [word.format(port=self.port) for word in command]
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [python, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=SERVERS,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            )
        self.pid = self.process.pid

    def __enter__(self) -> Server:
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise
        if self._group is not None:
            for process in self.tree():
                self._group.add(process.pid)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def wait(self) -> None:
        """Until a request is answered."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server has ended with {self.process.returncode}:\n{self.output()[-2000:]}")
            with contextlib.suppress(OSError):
                self.ask()
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"no answer in {START_SECONDS:.0f} s:\n{self.output()[-2000:]}")
            time.sleep(0.2)

    def ask(self, **more: object) -> bytes:
        """The answer to one request."""
        headers = {"Content-Type": "application/json"}
        body = json.dumps({**self._body, **more}).encode()
        request = Request(f"http://127.0.0.1:{self.port}{self.path}", body, headers)
        with urlopen(request, timeout=60.0) as reply:
            answer: bytes = reply.read()
        return answer

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def model_pid(self) -> int:
        printed = MODEL.findall(self.output())
        titles = [(each.pid, " ".join(each.cmdline()[:1])) for each in self.tree()]
        # Where vLLM's engine has workers, the model runs in them.
        running = [pid for part in ("VLLM::Worker", "EngineCore") for pid, title in titles if part in title]
        return int(printed[-1]) if printed else next(iter(running), self.pid)

    def tree(self) -> list[psutil.Process]:
        """The server's processes."""
        try:
            top = psutil.Process(self.pid)
            return [top, *top.children(recursive=True)]
        except psutil.Error:
            return []

    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """End it with all its processes, also stopped ones and those that have left its process group."""
        tree = self.tree()
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
            for process in tree:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
            if number is not signal.SIGCONT and not psutil.wait_procs(tree, STOP_SECONDS)[1]:
                break
        self.process.wait(30.0)
        if self._group is not None:
            self._group.remove()
        self._folder.cleanup()


class ControlGroup:
    """A control group with a CPU quota (a part of a core)."""

    def __init__(self, cores: float) -> None:
        self._folder = control_groups()
        if self._folder is None:
            raise RuntimeError("no control group can be made here")
        self._folder /= f"aitop-serving-{os.getpid()}-{random.randrange(1 << 20)}"
        self._folder.mkdir()
        period = 100_000
        if (self._folder / "cpu.max").exists():
            (self._folder / "cpu.max").write_text(f"{int(cores * period)} {period}")
        else:
            (self._folder / "cpu.cfs_period_us").write_text(str(period))
            (self._folder / "cpu.cfs_quota_us").write_text(str(int(cores * period)))

    def add(self, pid: int) -> None:
        assert self._folder is not None
        (self._folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        assert self._folder is not None
        for _ in range(50):
            try:
                self._folder.rmdir()
                return
            except OSError:
                time.sleep(0.1)


def control_groups() -> Path | None:
    """Where a control group with a CPU quota can be made; None where that cannot be."""
    for place in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        if not os.access(place, os.W_OK):
            continue
        controllers = place / "cgroup.subtree_control"
        if (place / "cpu.cfs_quota_us").exists() or (controllers.exists() and "cpu" in controllers.read_text()):
            return place
    return None


class Clients:
    """A program that sends requests to a server, and what it has noted. As a context it ends with the block."""

    def __init__(self, server: Server, arguments: Sequence[str], name: str = "answers") -> None:
        self._file = server.folder / f"{name}.jsonl"
        self._file.touch()
        command = [sys.executable, str(LOAD), str(server.port), server.path, *arguments, "--out", str(self._file)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=quiet, stdout=quiet, start_new_session=True)

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(30.0)

    def wait(self) -> None:
        self._process.wait()

    def alive(self) -> bool:
        return self._process.poll() is None

    def answers(self, since: float = 0.0, until: float = float("inf")) -> list[Answer]:
        """What came between two moments."""
        return [answer for answer in self._read() if since <= answer.end < until]

    def _read(self) -> Iterator[Answer]:
        for line in self._file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                answer = json.loads(line)
                served, first = (
                    None if answer[name] is None else answer[name] - answer["sent"] for name in ("arrived", "first")
                )
                yield Answer(
                    answer["end"], answer["end"] - answer["due"], served, first, answer["status"], answer["crc"]
                )


class Neighbours:
    """Processes that keep as many cores busy as they are. As a context they end with the block."""

    def __init__(self, count: int) -> None:
        # Programs of other users: those of one session share the cores of one (sched_autogroup).
        burn = [sys.executable, "-c", BURN]
        self._processes = [subprocess.Popen(burn, start_new_session=True) for _ in range(count)]

    def __enter__(self) -> Neighbours:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def capacity(server: Server, arguments: Sequence[str], clients: int = 4, seconds: float = 3.0) -> float:
    """Requests a second that it answers to a few clients which wait for each answer."""
    # What is slow only once is not counted.
    with Clients(server, [*arguments, "--clients", str(clients), "--seconds", str(1.0 + seconds)], "capacity") as load:
        load.wait()
        answers = load.answers()
    began = min((answer.end for answer in answers), default=0.0) + 1.0
    answers = [answer for answer in answers if answer.end > began]
    ends = [answer.end for answer in answers if answer.status == 200]
    if not ends:
        raise RuntimeError("nothing was answered")
    return len(ends) / (max(ends) - began)


def quantile(values: Sequence[float], part: float) -> float | None:
    """The value below which this part of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
