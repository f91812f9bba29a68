"""Tells systemd that a service has started and still works (sd_notify): a datagram to a socket that it names."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Send a state such as READY=1 or WATCHDOG=1; nothing happens where systemd did not start this process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    # An abstract address begins with a zero byte.
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), target)
    except OSError:
        return
