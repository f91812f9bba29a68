"""Asks Prometheus one query: `/api/v1/query` and nothing else. No redirect, no proxy, bounded in time and in bytes.

What comes back is foreign. Whatever it is, the result is rows, or an AitopError with a sentence that says what to do.
"""

from __future__ import annotations

import http.client
import math
import socket
import threading
import time
from collections.abc import Mapping
from urllib.parse import quote, urlencode

import msgspec

from aitop.errors import AitopError, NotPermittedError
from aitop.sources.prometheus.address import Address

PATIENCE_SECONDS = 10.0
MOST_BYTES = 16 << 20
MOST_WORDS = 300
"""Characters of a reason that Prometheus gives."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """One element of a query's result: labels and value, which is finite."""

    labels: Mapping[str, str]
    value: float


# There are tens of thousands of these, none in a cycle: the garbage collector need not look at them.
class _Value(msgspec.Struct, frozen=True, array_like=True, gc=False):
    time: float
    text: str


class _Element(msgspec.Struct, frozen=True, gc=False):
    metric: dict[str, str]
    value: _Value


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str = ""
    result: tuple[_Element, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: _Data | None = None
    error: str = ""


_DECODER = msgspec.json.Decoder(_Answer)


def ask(address: Address, queries: Mapping[str, str], patience: float = PATIENCE_SECONDS) -> dict[str, list[Row]]:
    """The rows that each query gives now, under its name. Raises AitopError, NotPermittedError among them.

    All of them together may take `patience` seconds.
    """
    deadline = time.monotonic() + patience
    try:
        return {name: _asked(address, query, deadline) for name, query in queries.items()}
    except TimeoutError:
        raise AitopError(
            f"{address.shown} gave no whole answer within {patience:g} s",
            "is it overloaded, or is the address wrong?",
        ) from None


def _asked(address: Address, query: str, deadline: float) -> list[Row]:
    status, kind, body = _get(address, "/api/v1/query?" + urlencode({"query": query}), deadline)
    if 300 <= status < 400:
        raise AitopError(
            f"{address.shown} redirects to another address (HTTP {status}), which aitop does not follow",
            "name the address that it leads to",
        )
    if status in (401, 403):
        raise NotPermittedError(
            f"{address.shown} lets nobody ask without the right name and password (HTTP {status})",
            "put them into the URL, as in http://NAME:PASSWORD@HOST:9090, best in the file of `aitop config --path`",
        )
    if len(body) > MOST_BYTES:
        raise AitopError(
            f"the answer of {address.shown} is larger than {MOST_BYTES >> 20} MB",
            "is this a Prometheus with aitop's metrics?",
        )
    return _rows(address, status, kind, body)


def _get(address: Address, path: str, deadline: float) -> tuple[int, str, bytes]:
    """Status, content type and body, of which at most one byte more than MOST_BYTES is read. Raises TimeoutError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
    connection = kind(address.host, address.port, timeout=left)
    headers = {"Accept": "application/json", "User-Agent": "aitop", "Connection": "close"}
    if address.credentials is not None:
        headers["Authorization"] = address.credentials
    # The socket's timeout is for each read: a server that sends a byte now and then would never reach it.
    cut: threading.Timer | None = None
    try:
        connection.connect()
        cut = threading.Timer(max(0.0, deadline - time.monotonic()), _cut, [connection.sock])
        cut.daemon = True
        cut.start()
        connection.request("GET", quote(address.path, safe="/%~!$&'()*+,;=:@") + path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(MOST_BYTES + 1)
        if time.monotonic() >= deadline:
            raise TimeoutError  # an answer that was cut off ends like a whole one
        return answer.status, answer.headers.get_content_type(), body
    except (OSError, http.client.HTTPException, ValueError) as error:
        if time.monotonic() >= deadline or isinstance(error, TimeoutError):
            raise TimeoutError from None
        if isinstance(error, OSError):
            words = error.strerror or str(error) or type(error).__name__
            raise AitopError(
                f"cannot reach Prometheus at {address.shown}: {words[:MOST_WORDS]}",
                "is it running, and is the address right?",
            ) from None
        raise _no_prometheus(address, "it breaks off, or does not speak HTTP") from None
    finally:
        if cut is not None:
            cut.cancel()
        connection.close()


def _cut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has ended by itself
        pass


def _rows(address: Address, status: int, kind: str, body: bytes) -> list[Row]:
    try:
        answer = _DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        answered = f"HTTP {status}, {kind[:40]}"
        raise _no_prometheus(address, f"it answers a query with what is no result of one ({answered})") from None
    if answer.status != "success" or status != 200:
        reason = answer.error[:MOST_WORDS] or f"HTTP {status}"
        raise AitopError(f"Prometheus at {address.shown} cannot answer: {reason}", "a shorter --over asks for less")
    if answer.data is None or answer.data.result_type != "vector":
        raise _no_prometheus(address, "its answer holds no vector")
    values = ((element.metric, _number(element.value.text)) for element in answer.data.result)
    return [Row(labels, value) for labels, value in values if value is not None]


def _no_prometheus(address: Address, why: str) -> AitopError:
    return AitopError(
        f"{address.shown} is no Prometheus: {why}", "name its address and the path before /api, as in http://HOST:9090"
    )


def _number(text: str) -> float | None:
    """A finite number; None for NaN, the infinities and what is no number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
