"""What the libraries that exchange data between ranks can be asked when nothing moves."""

from __future__ import annotations

import time
from collections.abc import Mapping

from aitop.model.ranks import ExchangeNotes
from aitop.sources.exchange.flight_recorder import flight_record
from aitop.sources.exchange.nccl_ras import ras_words
from aitop.sources.exchange.tcp_table import meet_on_this_machine


def exchange_notes(ranks: Mapping[int, int | None], *, passive: bool) -> ExchangeNotes:
    """Of these ranks, numbers by pid. `passive` asks nobody, and only reads what was written. Takes some seconds."""
    records = (flight_record(pid, rank) for pid, rank in ranks.items() if rank is not None)
    flights = tuple(record for record in records if record is not None)
    ras = () if passive else ras_words(ranks)
    return ExchangeNotes(time=time.monotonic(), flights=flights, ras=ras, local=meet_on_this_machine(ranks))
