"""Draws every picture of this folder from recordings: `python screenshots/make.py [NAME ...]`.

SVG comes from the program itself; PNG needs a headless Chromium and is left out without it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
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
    photograph(path, drawn)
    print(path.name)


def photograph(path: Path, drawn: str) -> None:
    """Write the PNG beside the SVG, in its own size."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    if browser is None or size is None:
        return
    width, height = (round(float(side)) for side in size.groups())
    with tempfile.TemporaryDirectory() as profile:
        quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
        where = [f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        output = f"--screenshot={path.with_suffix('.png')}"
        subprocess.run([browser, *quiet, *where, output, path.as_uri()], check=True, capture_output=True, timeout=60)


def main(names: list[str]) -> None:
    """Draw the named pictures, or all of them."""
    for picture in PICTURES:
        if not names or picture.name in names:
            draw(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
