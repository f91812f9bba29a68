"""How the parts of a ledger are called on screens and in reports."""

from __future__ import annotations

from aitop.model.ledger import Activity, Phase, Unit

PHASES: dict[Phase, str] = {
    "data": "data",
    "environment": "environment",
    "transfer": "transfer",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "exchange": "exchange",
    "evaluation": "evaluation",
    "save": "save",
    "host": "host",
}
ACTIVITIES: dict[Activity, str] = {
    "python": "runs Python",
    "native": "runs native code",
    "wait": "waits",
    "wait-lock": "waits for a lock",
    "wait-core": "waits for a core",
    "wait-disk": "waits for a disk",
    "wait-network": "waits for the network",
    "wait-queue": "waits for a queue",
    "wait-child": "waits for a child",
    "wait-device": "waits for the device",
    "sleep": "sleeps",
    "spawn": "starts processes",
    "collect": "collects garbage",
    "compile": "compiles",
}
UNITS: dict[Unit, str] = {
    "step": "a step",
    "request": "a request",
    "iteration": "an iteration",
    "second": "a second",
}
