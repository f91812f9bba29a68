"""Sends requests to a server on this machine and notes each answer: arrivals at random, or clients that wait.

With --rate requests are sent at random moments, so many a second on average, whether or not earlier ones have been
answered; a latency counts from the moment at which the request was due. With --clients so many clients send one after
the other. FILE gets a line of JSON for each answer, with moments on CLOCK_MONOTONIC: when the request was `due` and was
`sent`, when the `first` byte of the answer's body and its last one (`arrived`) came to this machine's kernel, and when
this program had read it (`end`). `first` is null where this program was so late that the first part and later ones were
read together: the kernel tells only when the last of them came. `sent` to `arrived` is what the server took; `due` to
`end` has this program's own delays as well. Further the status, and a checksum of the body (of what --answer matches in
it). Only the standard library is used.

    python tests/accuracy/serving/serving_load.py 8000 /score --rate 20 --seconds 30 --out answers.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import socket
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TextIO

WORDS = [a + b + c + "ion" for a in ("ta", "en", "or", "shi") for b in ("li", "tu", "ra", "de") for c in ("nes", "hat")]
MOST_UNDER_WAY, MOST_SECONDS, PATIENCE = 256, 1800.0, 60.0
# Servers close connections that nothing was sent on for a while, gunicorn after two seconds.
LONGEST_IDLE = 1.0
# Linux: with what is read comes the time (seconds, nanoseconds) at which the kernel got it.
SO_TIMESTAMPNS = 35
STAMP = struct.Struct("=qq")

Body = Callable[[], bytes]


class Reply(NamedTuple):
    """An answer, with the moments (monotonic) at which its request was sent and it arrived."""

    status: int
    sent: float
    first: float | None
    arrived: float
    body: bytes


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class Connection:
    """A connection to the server that is used for one request after another."""

    def __init__(self, port: int) -> None:
        self.used = 0.0
        self._port = port
        self._socket: socket.socket | None = None
        self._read = bytearray()
        # When the kernel got what was read last.
        self._arrived = 0.0

    async def post(self, path: str, body: bytes) -> Reply:
        """Send a request and wait for its answer."""
        loop = asyncio.get_running_loop()
        if self._socket is None:
            self._socket = socket.socket()
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            await loop.sock_connect(self._socket, ("127.0.0.1", self._port))
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        sent = time.monotonic()
        await loop.sock_sendall(self._socket, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await self._until(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        first: float | None = None
        parts: list[bytes] = []
        if "chunked" in headers.get("transfer-encoding", ""):
            while size := int(await self._until(b"\r\n"), 16):
                if not parts and len(self._read) <= size + len(b"\r\n"):
                    first = self._arrived
                parts.append(await self._exactly(size))
                await self._until(b"\r\n")
            await self._until(b"\r\n")
        else:
            parts.append(await self._exactly(int(headers.get("content-length", 0))))
            first = self._arrived
        reply = Reply(int(lines[0].split()[1]), sent, first, self._arrived, b"".join(parts))
        if headers.get("connection") == "close":
            self.close()
        return reply

    async def _until(self, end: bytes) -> bytes:
        """What comes up to these bytes, without them."""
        while (place := self._read.find(end)) < 0:
            await self._more()
        return (await self._exactly(place + len(end)))[:place]

    async def _exactly(self, count: int) -> bytes:
        while len(self._read) < count:
            await self._more()
        taken = bytes(self._read[:count])
        del self._read[:count]
        return taken

    async def _more(self) -> None:
        """Read what has come, with the time at which the kernel got it: this program may be late."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        while True:
            try:
                data, extra, _, _ = self._socket.recvmsg(1 << 18, 64)
                break
            except BlockingIOError:
                ready: asyncio.Future[None] = loop.create_future()
                loop.add_reader(self._socket, _wake, ready)
                try:
                    await ready
                finally:
                    loop.remove_reader(self._socket)
        if not data:
            raise EOFError
        self._read += data
        self._arrived = time.monotonic()
        for level, kind, value in extra:
            if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                seconds, nanoseconds = STAMP.unpack_from(value)
                self._arrived -= max(0.0, time.time() - seconds - nanoseconds * 1e-9)

    def close(self) -> None:
        """Give the connection up; the next request opens another."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._read.clear()


class Load:
    """Sends requests and writes a line for each answer. `dropped` were not sent, because too many were under way."""

    def __init__(self, port: int, path: str, body: Body, out: TextIO, answer: bytes = b"") -> None:
        self._port, self._path, self._body, self._out = port, path, body, out
        self._answer = re.compile(answer) if answer else None
        self._idle: list[Connection] = []
        self.under_way = self.dropped = 0

    async def one(self, due: float, body: bytes | None = None) -> None:
        """Send a request that was due at this moment, the usual one where no other body is given."""
        connection = self._connection()
        self.under_way += 1
        try:
            self._note(due, await asyncio.wait_for(connection.post(self._path, body or self._body()), PATIENCE))
            connection.used = time.monotonic()
            self._idle.append(connection)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as failure:
            connection.close()
            self._note(due, None, type(failure).__name__)
        finally:
            self.under_way -= 1

    def _connection(self) -> Connection:
        """The one that was used last, or a new one where that was long ago."""
        if self._idle:
            connection = self._idle.pop()
            if time.monotonic() - connection.used < LONGEST_IDLE:
                return connection
            for each in (connection, *self._idle):
                each.close()
            self._idle.clear()
        return Connection(self._port)

    def _checksum(self, body: bytes) -> int:
        return zlib.crc32(body if self._answer is None else b"".join(self._answer.findall(body)))

    def _note(self, due: float, reply: Reply | None, failure: str = "") -> None:
        line: dict[str, object] = {"due": round(due, 6), "end": round(time.monotonic(), 6)}
        if reply is None:
            line.update(sent=None, first=None, arrived=None, status=0, crc=0, failure=failure)
        else:
            for name in ("sent", "first", "arrived"):
                moment = getattr(reply, name)
                line[name] = None if moment is None else round(moment, 6)
            line.update(status=reply.status, crc=self._checksum(reply.body))
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()

    async def at_random(self, rate: float, until: float) -> None:
        """Open loop: exponential gaps."""
        running: set[asyncio.Task[None]] = set()
        due = time.monotonic()
        while (due := due + random.expovariate(rate)) < until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if self.under_way >= MOST_UNDER_WAY:
                self.dropped += 1
                continue
            task = asyncio.create_task(self.one(due))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def by_clients(self, clients: int, until: float) -> None:
        """Closed loop: each client sends as soon as it has its answer."""

        async def client() -> None:
            while time.monotonic() < until:
                await self.one(time.monotonic())

        await asyncio.gather(*(client() for _ in range(clients)))

    async def every(self, seconds: float, body: Body, until: float) -> None:
        """Another kind of request, at even intervals beside the others."""
        while time.monotonic() + seconds < until:
            await asyncio.sleep(seconds)
            await self.one(time.monotonic(), body())


def text(words: int) -> str:
    return " ".join(random.choices(WORDS, k=words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("path")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--rate", type=float, help="requests a second, at random")
    how.add_argument("--clients", type=int, help="clients that wait for each answer")
    parser.add_argument("--words", type=int, default=96, help="of a request's text")
    parser.add_argument("--same", action="store_true", help="the same text in each request")
    parser.add_argument("--field", default="text", help="the field of the request that has the text")
    parser.add_argument("--more", default="{}", help="other fields of a request, as JSON")
    parser.add_argument("--answer", default="", help="pattern of what the checksum is of, its group where it has one")
    parser.add_argument("--long-every", type=float, default=0.0, help="seconds between requests with a long text")
    parser.add_argument("--long-words", type=int, default=2000, help="of a long text")
    parser.add_argument("--odd-every", type=float, default=0.0, help="seconds between texts with a length of their own")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=argparse.FileType("a"), required=True)
    args = parser.parse_args()
    random.seed(args.seed)
    same, more, odd = text(args.words), json.loads(args.more), iter(range(args.words // 2, args.words))

    def body(words: int) -> bytes:
        chosen = same if args.same else text(words)
        return json.dumps({args.field: chosen, **more}).encode()

    async def run() -> None:
        until = time.monotonic() + min(args.seconds, MOST_SECONDS)
        load = Load(args.port, args.path, lambda: body(args.words), args.out, args.answer.encode())
        beside = []
        if args.long_every:
            long = json.dumps({args.field: text(args.long_words), **more}).encode()
            beside.append(load.every(args.long_every, lambda: long, until))
        if args.odd_every:
            beside.append(load.every(args.odd_every, lambda: body(next(odd)), until))
        usual = load.at_random(args.rate, until) if args.rate else load.by_clients(args.clients, until)
        await asyncio.gather(usual, *beside)
        if load.dropped:
            print(f"{load.dropped} requests were not sent: {MOST_UNDER_WAY} were under way", flush=True)

    # Clients usually have a machine of their own. A session may have a nice value beside those of its processes.
    with contextlib.suppress(OSError):
        os.nice(-5)
        Path("/proc/self/autogroup").write_text("-5")
    asyncio.run(run())


if __name__ == "__main__":
    main()
