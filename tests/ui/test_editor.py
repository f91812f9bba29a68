"""Opening a line in the editor of whoever watches."""

import os
import stat

import sample_snapshots as samples

from aitop.sources import procfs
from aitop.ui.editor import arguments, edit, editor_command, has_window
from aitop.ui.panes.code.hot_lines import Place


def test_editors_are_told_the_line_in_their_own_way():
    assert arguments(["vim"], "/a.py", 7) == ["vim", "+7", "/a.py"]
    assert arguments(["/usr/bin/code", "--wait"], "/a.py", 7) == ["/usr/bin/code", "--wait", "-g", "/a.py:7"]
    assert arguments(["subl"], "/a.py", 0) == ["subl", "/a.py:1"]
    assert arguments(["pycharm"], "/a.py", 7) == ["pycharm", "--line", "7", "/a.py"]
    assert (has_window(["code"]), has_window(["nano"]), has_window(["hx"])) == (True, False, False)


def test_the_editor_is_the_one_that_is_set_or_there(tmp_path):
    assert editor_command({"VISUAL": "emacs -nw", "EDITOR": "vi"}) == ["emacs", "-nw"]
    assert editor_command({"VISUAL": " ", "EDITOR": "vi"}) == ["vi"]
    assert editor_command({"PATH": str(tmp_path)}) is None
    (tmp_path / "nano").touch()
    (tmp_path / "nano").chmod(0o755)
    assert editor_command({"PATH": str(tmp_path)}) == ["nano"]


async def test_e_opens_the_line_or_says_why_not(look_at, monkeypatch, tmp_path):
    script = tmp_path / "subl"
    seen = tmp_path / "seen"
    script.write_text(f'#!/bin/sh\necho "$@" > {seen}.part; mv {seen}.part {seen}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    source = tmp_path / "mine.py"
    source.write_text("x = 1\n")
    monkeypatch.setenv("VISUAL", str(script))
    async with look_at(samples.input_bound(), size=(160, 50)) as eyes:
        await eyes.press("e")
        assert "decode.py cannot be read from here" in eyes.pane("footer")
        us = procfs.process_id(os.getpid())
        said = edit(eyes.app, Place(os.getpid(), str(source), 1, "f"), us)
        assert said == "mine.py:1 opened in subl"
        await eyes.until_true(seen.exists, "what the editor was started with")
        assert seen.read_text() == f"{source}:1\n"
        monkeypatch.setenv("VISUAL", str(tmp_path / "vi"))
        assert "cannot be lent" in edit(eyes.app, Place(os.getpid(), str(source), 1, "f"), us)
        monkeypatch.setenv("VISUAL", "'")
        assert "cannot be understood" in edit(eyes.app, Place(os.getpid(), str(source), 1, "f"), us)
