"""The measure of copies to a device and waits for it. Without a device in use nothing is patched."""

from __future__ import annotations

from typing import Any

from . import blocking, transfers
from .calls import Watch, device_in_use
from .patches import Patches
from .wrappers import Keeper


class DeviceCalls:
    """Comes in by itself once the program uses a device."""

    def __init__(self, torch: Any, patches: Patches, keeper: Keeper) -> None:
        self.watches: tuple[str, ...] = ()
        self._torch = torch
        self._patches = patches
        self._keeper = keeper
        self._watch: Watch | None = None
        self.look(0)

    def look(self, now: int) -> None:
        watch = self._watch
        if watch is not None:
            watch.transfers.tick()
            watch.waits.tick()
            return
        far = device_in_use(self._torch)
        if far is not None:
            self._watch = watch = Watch(self._torch, self._keeper, far)
            transfers.put_in(self._torch, self._patches, watch)
            blocking.put_in(self._torch, self._patches, watch)
            self.watches = ("transfer", "blocking")

    def facts(self) -> dict[str, Any]:
        watch = self._watch
        return {} if watch is None else {"calls": watch.transfers.facts() + watch.waits.facts()}
