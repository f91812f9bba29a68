"""The footer, the README and the keys themselves say the same."""

import re

from repository import ROOT
from textual.binding import Binding

from aitop.ui.app import AitopApp
from aitop.ui.panes.footer import KEYS
from aitop.ui.panes.processes import ProcessPane
from aitop.ui.screens.code_line import LineScreen
from aitop.ui.screens.fleet import FleetScreen
from aitop.ui.screens.hang import HangScreen
from aitop.ui.screens.help import key_name
from aitop.ui.screens.monitor import MonitorScreen
from aitop.ui.screens.replay import ReplayScreen

README = (ROOT / "README.md").read_text(encoding="utf-8")


def keys_of(*classes):
    """Every key of these and what they are made from, as people write it, with its action."""
    keys = {}
    for screen_class in classes:
        for base in screen_class.__mro__:
            if base.__module__.startswith("aitop"):
                for binding in base.__dict__.get("BINDINGS", ()):
                    assert isinstance(binding, Binding)
                    for key in binding.key.split(","):
                        keys.setdefault(key_name(key), binding.action)
    return keys


def test_the_footer_names_keys_that_do_what_it_says():
    known = keys_of(MonitorScreen, AitopApp)
    for key, _, action in KEYS:
        assert known[key] == action.removeprefix("screen."), key


def test_the_readme_names_keys_that_there_are():
    known = keys_of(MonitorScreen, ReplayScreen, AitopApp, ProcessPane, LineScreen, HangScreen, FleetScreen)
    keys = set(re.findall(r"`([!-_a-z]|\^[a-z]|⏎|tab|space|[←→↑↓◆])`", README.split("On the screen")[1])) - {"◆"}
    assert len(keys) > 25
    assert keys <= set(known), keys - set(known)


def test_the_readme_tells_of_every_key_of_the_footer():
    text = README.split("On the screen")[1]
    missing = [key for key, _, _ in KEYS if f"`{key}`" not in text]
    assert not missing
