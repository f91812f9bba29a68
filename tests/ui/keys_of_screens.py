"""The keys of every screen and pane, and what a program is asked for when they are pressed."""

from __future__ import annotations

import importlib
import pkgutil

from textual.actions import parse
from textual.binding import Binding

import aitop.ui

# Told of by one part of the screen and done by the pane that has the focus.
DESCRIBED = "none"


def classes_with_keys():
    """Every class of the screen that has keys of its own, by name."""
    classes = {}
    for module in pkgutil.walk_packages(aitop.ui.__path__, "aitop.ui."):
        for name, member in vars(importlib.import_module(module.name)).items():
            if isinstance(member, type) and member.__module__ == module.name and vars(member).get("BINDINGS"):
                classes[name] = member
    return classes


CLASSES = classes_with_keys()


def bound(screen_or_pane):
    """Each key of a class with what it asks for: the name of the action and its parameters."""
    for binding in vars(screen_or_pane)["BINDINGS"]:
        assert isinstance(binding, Binding)
        _, action, parameters = parse(binding.action)
        if action != DESCRIBED:
            for key in binding.key.split(","):
                yield key.strip(), (action, parameters)


async def heard_from(eyes, screen_or_pane, monkeypatch):
    """What the program was asked for by each key in turn, and what it ought to be."""
    heard = []

    async def note(_namespace, action, parameters):
        heard.append((action, parameters))
        return True

    monkeypatch.setattr(eyes.app, "_dispatch_action", note)
    wanted = dict(bound(screen_or_pane))
    asked = {}
    for key in wanted:
        eyes.app.simulate_key(key)
        await eyes.pilot.pause()
        asked[key] = heard.pop() if heard else None
    return asked, wanted
