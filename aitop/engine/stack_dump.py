"""A look at all stacks at once, asked for by whoever watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aitop.model.stacks import StackDump
from aitop.sources.source import SourceError
from aitop.sources.stacks.dump import native_frames, take_dump


class NoDumpError(Exception):
    """In words: why there are no stacks, and what would mend it."""


def take_stacks(
    tops: Sequence[int], script: str | None, switched_off: str | None, *, wanted: Callable[[], bool] = lambda: True
) -> StackDump:
    """The stacks of every thread below `tops`. `switched_off` says why stacks are not looked at here, if they are not.

    `script` and `wanted`: see sources.stacks.dump. Raises NoDumpError.
    """
    if switched_off is not None:
        raise NoDumpError(f"stacks are {switched_off}: they are not looked at")
    try:
        return take_dump(tops, script=script, wanted=wanted)
    except SourceError as error:
        raise NoDumpError(f"{error}{f': {error.remedy}' if error.remedy else ''}") from error


def take_native(pids: Iterable[int], switched_off: str | None) -> dict[int, tuple[str, ...]]:
    """What the main threads of these processes are in below Python, by pid. Stops each for some tenths of a second.

    See sources.stacks.dump. Raises NoDumpError.
    """
    if switched_off is not None:
        raise NoDumpError(f"stacks are {switched_off}: they are not looked at")
    try:
        return native_frames(pids)
    except SourceError as error:
        raise NoDumpError(f"{error}{f': {error.remedy}' if error.remedy else ''}") from error
