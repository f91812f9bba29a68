"""What the measures of all servers have in common: how they come in, and go where a release is not as expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...patches import Patches
from .. import Measure
from .names import TABLE, Wrap, put, take_back
from .requests import Requests

if TYPE_CHECKING:
    from ...session import Session

MOST_ERRORS = 3


class Server(Measure):
    """Wraps what `TABLE` has for its `servers` as soon as it is imported. `wraps` has the wrappers by attribute."""

    servers: tuple[str, ...] = ()

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self.session = session
        self.requests = Requests.of(session)
        self._patches = patches
        self._wraps = self.wraps()
        # Rows of the table whose modules are not imported yet.
        self._rest = [row for server in self.servers for row in TABLE[server]]
        self._errors = 0
        self.look(0)

    def wraps(self) -> dict[str, Wrap]:
        """Return the wrappers by the name of the attribute that each of them replaces."""
        return {}

    def look(self, now: int) -> None:
        """Patch what can be patched by now: a server's modules may be imported after the hook has come."""
        self._rest = put(self._patches, self._rest, self._wraps)

    def failed(self) -> None:
        """Count an error; after MOST_ERRORS this server is left alone, and all else that the hook measures goes on."""
        self._errors += 1
        if self._errors >= MOST_ERRORS:
            self._rest = []
            for server in self.servers:
                take_back(self._patches, server)
