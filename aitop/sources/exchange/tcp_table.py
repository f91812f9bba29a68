"""The TCP sockets in a process's network, from /proc/PID/net, and which of them are its own."""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Iterable
from typing import NamedTuple

from aitop.sources import procfs

ESTABLISHED, LISTENS = "01", "0A"
_OWN_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Connection(NamedTuple):
    """A socket. Addresses are the kernel's hexadecimal words; `state` is its two digits."""

    local: str
    local_port: int
    remote: str
    remote_port: int
    state: str
    inode: int


def connections(pid: int) -> list[Connection]:
    """All sockets of the network that the process is in, empty where they may not be read."""
    sockets = []
    for table in ("tcp", "tcp6"):
        text = (procfs.read(f"{procfs.PROC}/{pid}/net/{table}") or b"").decode("ascii", "replace")
        sockets += [parsed for line in text.splitlines()[1:] if (parsed := _parsed(line.split())) is not None]
    return sockets


def _parsed(fields: list[str]) -> Connection | None:
    if len(fields) < 10:
        return None
    local, remote = fields[1].split(":"), fields[2].split(":")
    try:
        return Connection(local[0], int(local[1], 16), remote[0], int(remote[1], 16), fields[3], int(fields[9]))
    except (ValueError, IndexError):
        return None


def own_sockets(pid: int) -> frozenset[int]:
    """The inodes of the sockets that the process holds."""
    held = (_OWN_SOCKET.fullmatch(path) for path in procfs.descriptors(pid).values())
    return frozenset(int(match[1]) for match in held if match)


def is_loopback(address: str) -> bool:
    """Whether this address, in the kernel's hexadecimal, is a loopback one: nobody on another machine has it."""
    known = ip_address(address)
    return known is not None and known.is_loopback


def ip_address(word: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address in the kernel's hexadecimal: words of four bytes in the machine's order."""
    if len(word) not in (8, 32):
        return None
    try:
        packed = b"".join(struct.pack("=I", int(word[place : place + 8], 16)) for place in range(0, len(word), 8))
    except ValueError:
        return None
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def meet_on_this_machine(pids: Iterable[int]) -> bool:
    """Whether all connections to the store of these ranks come over the loopback, so that no rank is elsewhere.

    The store is a port that one of the ranks, or its parent, listens on, and that a rank is connected to.
    """
    ranks = tuple(pids)
    if not ranks:
        return False
    known = connections(ranks[0])
    parents = {stat.ppid for pid in ranks if (stat := procfs.stat(pid)) is not None and stat.ppid > 1}
    own = frozenset().union(*(own_sockets(pid) for pid in ranks))
    listening = own.union(*(own_sockets(pid) for pid in parents))
    stores = {socket.local_port for socket in known if socket.state == LISTENS and socket.inode in listening}
    there = [socket for socket in known if socket.state == ESTABLISHED]
    met = {socket.remote_port for socket in there if socket.inode in own and socket.remote_port in stores}
    return any(
        all(is_loopback(socket.remote) for socket in there if socket.local_port == port and socket.inode != 0)
        and all(is_loopback(socket.remote) for socket in there if socket.remote_port == port and socket.inode in own)
        for port in met
    )
