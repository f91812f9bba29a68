"""Draws every picture of this folder from recordings: `python screenshots/make.py [NAME ...]`.

SVG comes from the program itself; PNG needs rsvg-convert (Debian: librsvg2-bin) and is left out without it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal, NamedTuple

from aitop.engine.core import Engine
from aitop.model.snapshot import Snapshot
from aitop.sources.replay import read_recording
from aitop.ui.picture import svg

HERE = Path(__file__).parent
RECORDINGS = HERE.parent / "tests" / "recordings"

Screen = Literal["monitor", "evidence", "help", "tree"]


class Picture(NamedTuple):
    """One picture: the recording it shows the end of, its size in columns and rows, and the screen."""

    name: str
    recording: str
    size: tuple[int, int]
    screen: Screen = "monitor"


PICTURES = (
    Picture("monitor-80x24", "slow-loader", (80, 24)),
    Picture("monitor-120x36", "slow-loader", (120, 36)),
    Picture("monitor-200x50", "slow-loader", (200, 50)),
    Picture("evidence-120x36", "slow-loader", (120, 36), "evidence"),
    Picture("tree-120x36", "slow-loader", (120, 36), "tree"),
    Picture("healthy-120x36", "healthy", (120, 36)),
    Picture("simulated-gpu-120x36", "simulated-gpu", (120, 36)),
)


def last_snapshot(name: str) -> Snapshot:
    """The recording's last picture."""
    header, events = read_recording(RECORDINGS / f"{name}.jsonl.gz")
    engine, last = Engine(header.target), None
    for event in events:
        last = engine.handle(event) or last
    assert last is not None, f"{name} holds no tick"
    return last


def around(script: str, line: int) -> list[tuple[int, str]] | None:
    """Lines of the workload of that name in this checkout: the recorded path is another machine's."""
    path = HERE.parent / "aitop" / "workloads" / Path(script).name
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    first = max(1, line - 6)
    return [(number, lines[number - 1]) for number in range(first, min(len(lines), line + 6) + 1)]


def draw(picture: Picture) -> None:
    """Write NAME.svg, and NAME.png where there is a converter."""
    drawn = svg(
        last_snapshot(picture.recording),
        picture.size,
        screen=picture.screen,
        source_around=lambda _pid, file, line: around(file, line),
    )
    path = HERE / f"{picture.name}.svg"
    path.write_text(drawn, encoding="utf-8")
    converter = shutil.which("rsvg-convert")
    if converter is not None:
        subprocess.run([converter, "--output", str(path.with_suffix(".png")), str(path)], check=True)
    print(path.name)


def main(names: list[str]) -> None:
    """Draw the named pictures, or all of them."""
    for picture in PICTURES:
        if not names or picture.name in names:
            draw(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
