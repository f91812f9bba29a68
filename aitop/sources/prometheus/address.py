"""The address of a Prometheus server as the user wrote it, with a form that can be shown."""

from __future__ import annotations

import base64
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

EXAMPLE = "http://prometheus.example:9090"
PORTS = {"http": 80, "https": 443}
_UNSAFE = re.compile(r"[\x00-\x20\x7f-\xa0?#\\]")
_PASSWORD = re.compile(r"^([^/]*?//)?([^/@:]*):[^/]*@")


class Address(NamedTuple):
    """Where to ask. `path` is what stands before `/api`; `credentials` is the value of the header Authorization.

    `shown` is the URL without name and password: the only form that may be printed.
    """

    secure: bool
    host: str
    port: int
    path: str
    credentials: str | None
    shown: str

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def parse(text: str) -> Address:
    """The address in a URL such as http://host:9090 or https://name:password@host/prometheus.

    Raises ValueError, which says what is wrong without repeating the text: there may be a password in it.
    """
    if _UNSAFE.search(text):
        raise ValueError("there are characters in it that no such URL has")
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("its host or its port cannot be read") from None
    if parts.scheme not in PORTS:
        raise ValueError("it begins neither with http:// nor with https://")
    if not host:
        raise ValueError("it names no host")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("its host cannot be read") from None
    path = parts.path.rstrip("/")
    credentials = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        credentials = "Basic " + base64.b64encode(pair.encode("utf-8", "surrogateescape")).decode()
    bracketed = f"[{host}]" if ":" in host else host
    shown = f"{parts.scheme}://{bracketed}{f':{port}' if port is not None else ''}{path}"
    port = PORTS[parts.scheme] if port is None else port
    return Address(parts.scheme == "https", host, port, path, credentials, shown)


def without_password(text: str) -> str:
    """The text of a URL with *** in place of a password."""
    return _PASSWORD.sub(r"\1\2:***@", text)
