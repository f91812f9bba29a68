"""The base class of the measures of servers: it patches a server, and unpatches it if a release is not as expected."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...errors import Errors
from ...patches import Patches
from .. import Measure
from .names import TABLE, Wrap
from .requests import Requests, now_ns

if TYPE_CHECKING:
    from ...session import Session

# Bound for requests that were received and never ended: above this many, all are forgotten.
MOST_KNOWN = 100_000

Note = Callable[..., None]


class Server(Measure):
    """Wraps what `TABLE` lists for its `servers`, as soon as their modules are imported. `layer` names its requests."""

    servers: tuple[str, ...] = ()
    layer = ""

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self.session = session
        self.requests = Requests.of(session)
        self._patches = patches
        self._wraps = self.wraps()
        # The places of the table that are patched.
        self._done: set[str] = set()
        self._errors = Errors()
        self.look(0)

    def wraps(self) -> dict[str, Wrap]:
        """Return the wrappers, by the name of the attribute that each of them replaces."""
        return {}

    def look(self, now: int) -> None:
        """Patch what can be patched by now. A server's modules may be imported after the hook has come in."""
        for place, owner, attributes in self.places():
            if place not in self._done:
                self._done.add(place)
                for attribute in attributes:
                    if attribute in vars(owner):
                        self._patches.put(owner, attribute, self._wraps[attribute])

    def places(self) -> Iterator[tuple[str, Any, list[str]]]:
        """Yield each place of the table that is imported by now: its name, the class or module, and the attributes."""
        for server in self.servers:
            for place, attributes in TABLE[server].items():
                module, _, name = place.partition(":")
                owner = sys.modules.get(module)
                if name:
                    owner = getattr(owner, name, None)
                if owner is not None:
                    yield place, owner, attributes.split()

    def failed(self) -> None:
        """Count an error. If there are too many, this server is unpatched; the other measures go on."""
        if self._errors.too_many():
            for _, owner, attributes in self.places():
                for attribute in attributes:
                    self._patches.take_back(owner, attribute)
            self.servers = ()
            # Else those that are in flight now would be so for ever.
            if self.requests.watched():
                self.requests.forget(self.layer)

    def in_flight(self, number: int) -> None:
        """Note how many requests of this server are in flight, unless it was unpatched."""
        if self.servers:
            self.requests.count(self.layer, number)

    def noting(self, before: Note | None = None, after: Note | None = None) -> Wrap:
        """Return a wrapper that calls `before(*args)` ahead of each call and `after(start, result, *args)` behind it.

        `args` are the arguments of the wrapped call (keywords are passed too), `start` is when it began (ns). If the
        call raises, `after` is not called.
        """

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*args: Any, **kwargs: Any) -> Any:
                if before is not None:
                    self._note(before, args, kwargs)
                start = now_ns()
                result = original(*args, **kwargs)
                if after is not None:
                    self._note(after, (start, result, *args), kwargs)
                return result

            return noted

        return wrap

    def timing(self, part: str) -> Wrap:
        """Return a wrapper that adds the duration of each call (ns) to the attribute `part`."""

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*args: Any, **kwargs: Any) -> Any:
                start = now_ns()
                try:
                    return original(*args, **kwargs)
                finally:
                    setattr(self, part, getattr(self, part) + now_ns() - start)

            return timed

        return wrap

    def _note(self, note: Note, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            if self.requests.watched():
                note(*args, **kwargs)
        except Exception:
            self.failed()
