"""Whatever is pressed, clicked, resized and measured in whatever order: nothing raises, and every cell stays drawn."""

from __future__ import annotations

import random

import pytest
import sample_snapshots as samples
from rich.cells import cell_len
from sample_serving import SERVERS
from textual import events

from aitop.engine.replay_position import Mark, Position
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
    found = [binding for binding in our_bindings(screen) if not any(word in binding.action for word in LEFT_OUT)]
    return [key.strip() for binding in found for key in binding.key.split(",")] + list(TYPED)


def seekable(kind):
    """A replay that only notes where it was told to go."""

    class Replay(kind):
        stands = Position(duration=60.0, marks=(Mark(5.0, "input-bound"), Mark(59.9, "target ended")))

        def position(self):
            return self.stands

        def _note(self, *_):
            self.stands = Position(
                seconds=random.Random(len(self.asked)).uniform(0, 60),
                duration=60.0,
                playing=len(self.asked) % 3 == 0,
                seeking=0.5 if len(self.asked) % 7 == 0 else None,
                marks=self.stands.marks,
            )
            self.asked.append("moved")

        pause = resume = step = seek_by = seek_to = set_speed = _note

    return Replay(live=False)


@pytest.mark.parametrize(("kind", "rounds"), [("live", ROUNDS), ("replay", ROUNDS // 3)])
async def test_no_sequence_of_keys_clicks_resizes_and_samples_breaks_it(look_at, feeds, kind, rounds):
    chance = random.Random(kind)
    feed = seekable(feeds["scripted"]) if kind == "replay" else feeds["scripted"]()
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
            x, y = chance.randrange(size[0]), chance.randrange(size[1])
            for kind_of_event in (events.MouseDown, events.MouseUp):
                eyes.app.screen._forward_event(
                    kind_of_event(None, x, y, 0, 0, 1, shift=False, meta=False, ctrl=False, screen_x=x, screen_y=y)
                )
            await eyes.pilot.pause()
            assert len(eyes.app.screen_stack) <= 4
            rows = eyes.text().split("\n")
            assert (len(rows), {cell_len(row) for row in rows}) == (size[1], {size[0]})
