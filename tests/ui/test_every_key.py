"""Every key of every screen and pane gets there and asks for what its binding says. What that does is tested elsewhere.

A class with keys that is not among PLACES, and a key that something else takes first, fail here.
"""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import sample_snapshots as samples
from test_picker_screen import picker
from test_random_use import seekable
from textual.actions import parse
from textual.binding import Binding

import aitop.ui

MAIN = {"snapshot": samples.measured, "keys": ()}
PLACES = {
    "AitopApp": MAIN,
    "MonitorScreen": MAIN,
    "Pane": MAIN,
    "ChartPane": MAIN | {"focus": "step"},
    "CodePane": MAIN | {"focus": "code"},
    "ProcessPane": MAIN | {"keys": ("T",)},
    "RowPane": MAIN | {"keys": ("T",)},
    "RankPane": {"snapshot": samples.many_ranks, "keys": (), "focus": "ranks", "size": (200, 50)},
    "HeadedScreen": MAIN | {"keys": ("enter",)},
    "EvidenceScreen": MAIN | {"keys": ("enter",)},
    "ComparisonScreen": {"snapshot": samples.compared, "keys": ("b",)},
    "HelpScreen": MAIN | {"keys": ("question_mark",)},
    "HangScreen": {"snapshot": samples.many_ranks, "keys": ("h",)},
    "StackScreen": MAIN | {"keys": ("S",)},
    "StacksScreen": MAIN | {"keys": ("S",)},
    "LineScreen": MAIN | {"focus": "code", "keys": ("o",)},
    "ProfileScreen": MAIN | {"keys": ("p",), "feed": "profiles"},
    "ReplayScreen": MAIN | {"feed": "replays"},
    "ReplayBar": MAIN | {"feed": "replays", "focus": "replay"},
    "PickerScreen": {},
    # Tried in test_fleet_screen.
    "TableScreen": {},
    "FleetScreen": {},
    "RanksScreen": {},
}
# Told of by one part of the screen and done by the pane that has the focus.
DESCRIBED = "none"


def classes_with_keys():
    """Every class of the screen that has keys of its own, by name."""
    found = {}
    for module in pkgutil.walk_packages(aitop.ui.__path__, "aitop.ui."):
        for name, one in vars(importlib.import_module(module.name)).items():
            if isinstance(one, type) and one.__module__ == module.name and vars(one).get("BINDINGS"):
                found[name] = one
    return found


CLASSES = classes_with_keys()


def bound(one):
    """Each key of a class with what it asks for: the name of the action and its parameters."""
    for binding in vars(one)["BINDINGS"]:
        assert isinstance(binding, Binding)
        _, action, parameters = parse(binding.action)
        if action != DESCRIBED:
            for key in binding.key.split(","):
                yield key.strip(), (action, parameters)


async def heard_from(app, pilot, one, monkeypatch):
    """What the program was asked for by each key in turn, and what it ought to be."""
    heard = []

    async def note(_namespace, action, parameters):
        heard.append((action, parameters))
        return True

    monkeypatch.setattr(app, "_dispatch_action", note)
    wanted = dict(bound(one))
    asked = {}
    for key in wanted:
        app.simulate_key(key)
        await pilot.pause()
        asked[key] = heard.pop() if heard else None
    return asked, wanted


def test_every_class_with_keys_has_its_place_here():
    assert set(CLASSES) == set(PLACES)
    assert sum(len(list(bound(one))) for one in CLASSES.values()) > 150


def together():
    """The classes that can be tried at one place, first the place."""
    places = []
    for name, place in PLACES.items():
        same = next((names for one, names in places if one == place), None)
        if same is None:
            places.append((place, [name]))
        else:
            same.append(name)
    return [pytest.param(place, names, id="+".join(names)) for place, names in places if place]


@pytest.mark.parametrize(("place", "names"), together())
async def test_every_key_asks_for_what_its_binding_says(place, names, look_at, feeds, monkeypatch):
    snapshot = place["snapshot"]()

    class Profiles(feeds["run"]):
        def profile(self, steps, progress):
            raise RuntimeError("not now")

    feed = {"profiles": Profiles, "replays": lambda _: seekable(feeds["scripted"])}.get(
        place.get("feed"), feeds["scripted"]
    )(snapshot)
    if not feed.first:
        feed.first = (snapshot,)
    async with look_at(feed=feed, size=place.get("size", (120, 36))) as eyes:
        if "focus" in place:
            eyes.app.screen.set_focus(eyes.app.screen.query_one(f"#{place['focus']}"))
        await eyes.press(*place["keys"])
        for name in names:
            asked, wanted = await heard_from(eyes.app, eyes.pilot, CLASSES[name], monkeypatch)
            assert asked == wanted


async def test_every_key_of_the_choice_of_jobs_asks_for_what_its_binding_says(monkeypatch):
    async with picker(samples.candidates) as (app, pilot, _):
        asked, wanted = await heard_from(app, pilot, CLASSES["PickerScreen"], monkeypatch)
        assert asked == wanted
