"""A feed in place of the live one, for tests of what is done with Snapshots."""

from collections.abc import Callable

from aitop.model.snapshot import Snapshot


class PublishingFeed:
    """Publishes these Snapshots as soon as it is started, and nothing after them."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self._snapshots = snapshots

    def start(self, publish: Callable[[Snapshot], None]) -> None:
        for snapshot in self._snapshots:
            publish(snapshot)

    def conclude(self) -> None:
        """Nothing is under way."""

    stop = conclude
