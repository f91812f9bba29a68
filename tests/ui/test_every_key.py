"""Every key of every screen and pane gets there and asks for what its binding says. What that does is tested elsewhere.

A class with keys that is not among PLACES, and a key that something else takes first, fail here.
"""

from __future__ import annotations

import pytest
import sample_snapshots as samples
from choosing import choosing
from keys_of_screens import CLASSES, bound, heard_from
from scripted_feeds import RunFeed, ScriptedFeed, SeekableFeed

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
    "ProfileScreen": MAIN | {"keys": ("p",), "feed": RunFeed},
    "ReplayScreen": MAIN | {"feed": SeekableFeed},
    "ReplayBar": MAIN | {"feed": SeekableFeed, "focus": "replay"},
    "PickerScreen": {},
    # Tried in test_fleet_screen.
    "TableScreen": {},
    "FleetScreen": {},
    "RanksScreen": {},
}


def test_every_class_with_keys_has_its_place_here():
    assert set(CLASSES) == set(PLACES)
    assert all(list(bound(screen_or_pane)) for screen_or_pane in CLASSES.values())


def together():
    """The classes that can be tried at one place, with that place."""
    places = []
    for name, place in PLACES.items():
        same = next((names for tried, names in places if tried == place), None)
        if same is None:
            places.append((place, [name]))
        else:
            same.append(name)
    return [pytest.param(place, names, id="+".join(names)) for place, names in places if place]


@pytest.mark.parametrize(("place", "names"), together())
async def test_every_key_asks_for_what_its_binding_says(place, names, look_at, monkeypatch):
    feed = place.get("feed", ScriptedFeed)(place["snapshot"]())
    async with look_at(feed=feed, size=place.get("size", (120, 36))) as eyes:
        if "focus" in place:
            eyes.app.screen.set_focus(eyes.app.screen.query_one(f"#{place['focus']}"))
        await eyes.press(*place["keys"])
        for name in names:
            asked, wanted = await heard_from(eyes, CLASSES[name], monkeypatch)
            assert asked == wanted


async def test_every_key_of_the_choice_of_jobs_asks_for_what_its_binding_says(monkeypatch):
    async with choosing(samples.candidates) as eyes:
        asked, wanted = await heard_from(eyes, CLASSES["PickerScreen"], monkeypatch)
        assert asked == wanted
