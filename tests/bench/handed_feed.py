"""A feed for the screen that publishes what it is handed, for benches that make their own snapshots."""

from __future__ import annotations

from aitop.engine.feed import Publish


class HandedFeed:
    """`publish` is there once the screen has started the feed."""

    live = True
    publish: Publish | None = None

    def start(self, publish: Publish) -> None:
        self.publish = publish

    def stop(self) -> None:
        """Nothing runs."""
