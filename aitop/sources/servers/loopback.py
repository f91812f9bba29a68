"""One HTTP request to a server on this machine. No other host, no redirect, no proxy, little time and few bytes.

http.client, which asks Prometheus, would add 6 MB to a monitor that watches a server: it loads OpenSSL.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time

from aitop.sources.source import SourceError

PATIENCE_SECONDS = 1.5
MOST_BYTES, MOST_HEADER_BYTES = 4 << 20, 32 << 10
_SIZE = re.compile(rb"[0-9a-fA-F]{1,8}")


def get(address: str, port: int, path: str) -> str:
    """The body of the answer to `GET path`. Raises SourceError where there is none, ValueError for another machine."""
    if not ipaddress.ip_address(address).is_loopback:
        raise ValueError(f"{address} is not the loopback")
    host = f"[{address}]" if ":" in address else address
    # Version 1.0: the answer ends with the connection. Some servers send it in chunks all the same.
    request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: text/plain\r\nUser-Agent: aitop\r\n\r\n"
    try:
        answer = _exchange(address, port, request.encode("ascii"))
    except TimeoutError:
        reason = f"port {port} gave no answer to {path} within {PATIENCE_SECONDS:g} s"
        raise SourceError("failed", reason, transient=True) from None
    except OSError as error:
        reason = f"port {port}: {error.strerror or error}"
        raise SourceError("failed", reason, transient=True) from None
    return _body(answer, port, path)


def _exchange(address: str, port: int, request: bytes) -> bytes:
    """What comes back until the other side closes, or has sent all that it announced."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pieces, size, expected = [], 0, MOST_BYTES
    with socket.create_connection((address, port), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(request)
        while size < min(expected, MOST_BYTES):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
            data = connection.recv(1 << 16)
            if not data:
                break
            pieces.append(data)
            size += len(data)
            if expected == MOST_BYTES and size - len(data) < MOST_HEADER_BYTES:
                expected = _announced(b"".join(pieces))
    if size >= MOST_BYTES or size < (expected if expected != MOST_BYTES else 0):
        # Figures of a part of the text would be too small.
        raise OSError(f"its answer is longer than {MOST_BYTES >> 20} MB, or was cut off")
    return b"".join(pieces)


def _announced(answer: bytes) -> int:
    """The length of the whole answer by its header, MOST_BYTES where that does not say it."""
    header, separator, _ = answer.partition(b"\r\n\r\n")
    for line in header.split(b"\r\n")[1:] if separator else ():
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return min(MOST_BYTES, len(header) + 4 + int(value.strip()[:12]))
    return MOST_BYTES


def _body(answer: bytes, port: int, path: str) -> str:
    header, separator, body = answer.partition(b"\r\n\r\n")
    words = header.split(b"\r\n", 1)[0].split()
    if not separator or len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise SourceError("failed", f"port {port} does not answer in plain HTTP", transient=True)
    code = int(words[1][:4])
    if code in (401, 403):
        raise SourceError("denied", f"port {port} lets nobody read {path} without a key (HTTP {code})")
    if code == 404:
        raise SourceError("absent", f"port {port} has no {path}")
    if code != 200:
        raise SourceError("failed", f"port {port} answers {path} with HTTP {code}", transient=True)
    if b"transfer-encoding: chunked" in header.lower():
        whole = _joined(body)
        if whole is None:
            raise SourceError("failed", f"port {port}: its answer was cut off", transient=True)
        body = whole
    return body.decode("utf-8", "replace")


def _joined(body: bytes) -> bytes | None:
    """What stands in the chunks of a body; None where the last one, which is empty, does not come."""
    chunks: list[bytes] = []
    at = 0
    while (end := body.find(b"\r\n", at)) >= 0:
        number = body[at:end].partition(b";")[0].strip()
        size = int(number, 16) if _SIZE.fullmatch(number) else -1
        if size == 0:
            return b"".join(chunks)
        at = end + 2 + size + 2
        if size < 0 or at > len(body):
            return None
        chunks.append(body[end + 2 : end + 2 + size])
    return None
