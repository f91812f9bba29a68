"""Where the `/metrics` of a recognised server is: a TCP port that its own process listens on, on the loopback."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from aitop.sources import procfs
from aitop.sources.access import why_denied
from aitop.sources.exchange.tcp_table import LISTENS, Connection, connections, ip_address, own_sockets
from aitop.sources.servers.engines import Metrics
from aitop.sources.servers.recognition import Server
from aitop.sources.source import SourceError

MOST_SERVERS = 8


class Endpoint(NamedTuple):
    """A port of the process `pid` with a loopback address that reaches it."""

    pid: int
    address: str
    port: int


def endpoints(server: Server, metrics: Metrics) -> list[Endpoint]:
    """One endpoint for each process that answers HTTP, or for each port that several share. Raises SourceError.

    A port counts if the command line or the engine's default names it, or if it is the process's only one. So no other
    service gets a request that it does not expect.
    """
    answering = sorted(pid for pid, part in server.parts.items() if part.answers)
    if not answering:
        raise SourceError("absent", f"no process of {server.name} that is watched answers HTTP", transient=True)
    named = named_ports(server.commands, metrics)
    by_port: dict[int, Endpoint] = {}
    refused: SourceError | None = None
    for pid in answering:
        try:
            endpoint = _of_process(pid, named)
        except SourceError as error:
            refused = error
            continue
        if endpoint is not None:
            by_port.setdefault(endpoint.port, endpoint)
    if not by_port:
        if refused is not None:
            raise refused
        pids = ", ".join(map(str, answering[:4]))
        which = f"no port on which {server.name} (pid {pids}) listens on the loopback"
        raise SourceError("absent", f"{which} could be recognised as its HTTP port", transient=True)
    return list(by_port.values())[:MOST_SERVERS]


def named_ports(commands: Sequence[Sequence[str]], metrics: Metrics) -> frozenset[int]:
    """The ports that the command lines name with the engine's option, else its default."""
    ports = set()
    for argv in commands:
        for number, word in enumerate(argv):
            option, equals, value = word.partition("=")
            if option == metrics.port_option:
                value = value if equals else "".join(argv[number + 1 : number + 2])
                if value.isascii() and value.isdigit() and 0 < int(value[:6]) < 65536:
                    ports.add(int(value[:6]))
    return frozenset(ports) or frozenset([metrics.port] if metrics.port is not None else [])


def _of_process(pid: int, named: frozenset[int]) -> Endpoint | None:
    network = procfs.network(pid)
    if network != procfs.network(os.getpid()):
        if network is not None:
            reason = f"process {pid} is in another network (a container?), whose loopback is not ours"
            raise SourceError("absent", reason)
        stat = procfs.stat(pid)
        if stat is None or stat.ended:
            raise SourceError("absent", f"process {pid} has ended", transient=True)
        raise why_denied(pid)
    # Whoever may read which network it is in may read its descriptors.
    own = own_sockets(pid)
    listening = [socket for socket in connections(pid) if socket.state == LISTENS and socket.inode in own]
    ports = {socket.local_port for socket in listening}
    chosen = ports & named or (ports if len(ports) == 1 else set())
    for socket in sorted(listening, key=lambda socket: socket.local_port):
        address = loopback_for(socket) if socket.local_port in chosen else None
        if address is not None:
            return Endpoint(pid, address, socket.local_port)
    return None


def loopback_for(socket: Connection) -> str | None:
    """The loopback address that reaches a listening socket; None where it listens elsewhere only."""
    address = ip_address(socket.local)
    if address is None:
        return None
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return str(address) if address.is_loopback else None
