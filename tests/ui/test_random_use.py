"""Whatever is pressed, clicked, resized and measured in whatever order: nothing raises, and every cell stays drawn."""

from __future__ import annotations

import random

import pytest
import sample_snapshots as samples
from rich.cells import cell_len
from sample_serving import SERVERS
from scripted_feeds import ScriptedFeed, SeekableFeed
from textual import events

from aitop.ui.screens.help import our_bindings

EVERYTHING = samples.ALL | SERVERS
KEYS = 500
ROUNDS = 24
SHAPES = [(1, 1), (9, 3), (39, 9), (80, 24), (100, 30), (120, 36), (200, 50), (170, 12), (60, 60)]
TYPED = ("slash", "a", "backspace", "enter", "escape", "pageup", "pagedown", "shift+left", "shift+right", "j", "k", "x")
# What leaves the program, writes files or starts other programs is tried elsewhere.
LEFT_OUT = ("leave", "interrupt", "suspend", "save", "record", "edit", "command_palette", "quit")


def keys_of(screen):
    """Every key that does something on this screen."""
    bindings = [binding for binding in our_bindings(screen) if not any(word in binding.action for word in LEFT_OUT)]
    return [key.strip() for binding in bindings for key in binding.key.split(",")] + list(TYPED)


def use_mouse(app, chance, size):
    """A move, a click, a drag or the wheel, as a terminal reports it: the toolkit makes the click of it."""
    x, y = chance.randrange(size[0]), chance.randrange(size[1])
    end = (x, y) if chance.random() < 0.7 else (chance.randrange(size[0]), chance.randrange(size[1]))
    kinds = chance.choice(
        ((events.MouseDown, events.MouseUp),) * 4 + ((events.MouseScrollDown,), (events.MouseScrollUp,))
    )
    for kind, (column, row) in ((events.MouseMove, (x, y)), *zip(kinds, ((x, y), end), strict=False)):
        button = chance.choice((1, 1, 2, 3)) if kind is events.MouseDown else 1
        held = chance.random() < 0.1
        app.post_message(
            kind(None, column, row, 0, 0, button, shift=held, meta=False, ctrl=held, screen_x=column, screen_y=row)
        )


@pytest.fixture
def clicks(monkeypatch):
    """The clicks that the toolkit has made."""
    made = []
    from_event = events.Click.from_event

    def noted(*arguments, **options):
        made.append(from_event(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(events.Click, "from_event", noted)
    return made


@pytest.mark.parametrize(("kind", "rounds"), [("live", ROUNDS), ("replay", ROUNDS // 3)])
async def test_no_sequence_of_keys_clicks_resizes_and_samples_breaks_it(look_at, kind, rounds, clicks):
    chance = random.Random(kind)
    feed = SeekableFeed() if kind == "replay" else ScriptedFeed()
    async with look_at(feed=feed, size=(80, 24)) as eyes:
        keys = keys_of(eyes.app.screen)
        assert {"space", "t", "z", "enter", "question_mark"} <= set(keys)
        for _ in range(rounds):
            feed.publish(EVERYTHING[chance.choice(list(EVERYTHING))]())
            width, height = chance.choice(SHAPES)
            size = (max(1, width + chance.randint(-5, 5)), max(1, height + chance.randint(-3, 3)))
            await eyes.pilot.resize_terminal(*size)
            for key in chance.choices(keys, k=-(-KEYS // ROUNDS)):
                eyes.app.simulate_key(key)
            for _ in range(chance.randint(1, 3)):
                use_mouse(eyes.app, chance, size)
                await eyes.pilot.pause()
            assert len(eyes.app.screen_stack) <= 4
            rows = eyes.text().split("\n")
            assert (len(rows), {cell_len(row) for row in rows}) == (size[1], {size[0]})
    assert len(clicks) >= rounds / 2, "buttons are pressed and let go, and nothing is clicked"
