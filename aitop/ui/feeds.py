"""What a feed can do beyond giving Snapshots. The screen offers a key only where the feed has what it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from aitop.engine.position import Position
from aitop.model.stacks import StackDump

if TYPE_CHECKING:
    from aitop.engine.burst import Taken


@runtime_checkable
class Detachable(Protocol):
    """A feed that can take the hook out of the target and go on without it."""

    def detach(self) -> None: ...


@runtime_checkable
class Profilable(Protocol):
    """A feed whose target can be profiled. Raises an error that says in words why not."""

    def profile(self, steps: int, progress: Callable[[str], None]) -> Taken: ...


@runtime_checkable
class Dumpable(Protocol):
    """A feed that can read the stacks of all threads now. Slow; raises an error that says in words why not."""

    def dump(self) -> StackDump: ...


@runtime_checkable
class NativeDumpable(Protocol):
    """A feed that can read the frames below Python. Stops the processes for a moment; raises an error in words."""

    def native(self, pids: Sequence[int]) -> dict[int, tuple[str, ...]]: ...


@runtime_checkable
class Pausable(Protocol):
    """A feed that can stand still: a replay."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


@runtime_checkable
class Seekable(Protocol):
    """A feed that can be played from anywhere: see engine.replay."""

    def position(self) -> Position: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def step(self, ticks: int) -> None: ...

    def seek_by(self, seconds: float) -> None: ...

    def seek_to(self, seconds: float) -> None: ...

    def set_speed(self, speed: float) -> None: ...
