"""What NCCL's RAS threads (NCCL 2.24 and later) say of the health of a job: errors and outliers among its ranks.

Source: the text that they answer a client with, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable, Mapping

from aitop.model.text import printable
from aitop.sources import procfs
from aitop.sources.exchange.tcp_table import LISTENS, connections, in_our_network, own_sockets

PORT, VARIABLE = 28028, "NCCL_RAS_ADDR"
QUESTION = b"verbose status\n"
PATIENCE_SECONDS = 6.0
MOST_BYTES, MOST_LINES, LONGEST = 1 << 20, 40, 160
TROUBLES = frozenset({"Errors", "Warnings"})


def ras_words(pids: Iterable[int]) -> tuple[str, ...]:
    """The lines of trouble that RAS tells, where one of these processes has it listening on this machine."""
    for pid in pids:
        port = port_of(procfs.environ(pid) or {})
        if in_our_network(pid) and _listens(pid, port):
            with contextlib.suppress(OSError):
                return troubles(_asked(port))
    return ()


def port_of(environment: Mapping[str, str]) -> int:
    """The port of the RAS thread of a process that has this environment."""
    port = environment.get(VARIABLE, "").rpartition(":")[2]
    return int(port) if port.isascii() and port.isdigit() and 0 < int(port) < 65536 else PORT


def troubles(text: str) -> tuple[str, ...]:
    """The lines below the headings Errors and Warnings; a heading is underlined."""
    lines = text.splitlines()
    complaints, telling = [], False
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if following and not following.strip("="):
            telling = line.strip() in TROUBLES
        elif telling and line.strip() and line.strip("= "):
            complaints.append(printable(line.strip())[:LONGEST])
    return tuple(complaints[:MOST_LINES])


def _asked(port: int) -> str:
    """The answer of the thread behind the port."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    answer = b""
    with socket.create_connection(("localhost", port), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(QUESTION)
        while len(answer) < MOST_BYTES and (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            try:
                data = connection.recv(1 << 16)
            except TimeoutError:
                break
            if not data:
                break
            answer += data
    return answer.decode("utf-8", "replace")


def _listens(pid: int, port: int) -> bool:
    """Whether a socket of the process itself listens on the port: no other service is to be spoken to."""
    mine = {entry.inode for entry in connections(pid) if entry.local_port == port and entry.state == LISTENS}
    return bool(mine) and not mine.isdisjoint(own_sockets(pid))
