"""Source lines read through the root of a process (here: this one)."""

import os

import pytest
from process_numbers import BEYOND_EVERY_PROCESS
from source_lines import line_of

from aitop.model.host import ProcessId
from aitop.sources import procfs
from aitop.sources.code import lines as code_module
from aitop.sources.code.lines import SourceCode

US = procfs.process_id(os.getpid())


@pytest.fixture
def code():
    return SourceCode(US)


def test_what_lies_beside_the_metadata_of_packages_is_installed(code, tmp_path):
    (tmp_path / "layer" / "numbers" / "core").mkdir(parents=True)
    (tmp_path / "layer" / "numbers-1.2.dist-info").mkdir()
    (tmp_path / "project" / "layers").mkdir(parents=True)
    assert code.packages(str(tmp_path / "layer" / "numbers" / "core" / "add.py")) == str(tmp_path / "layer")
    assert code.packages(str(tmp_path / "project" / "layers" / "net.py")) is None
    assert code.packages(str(tmp_path / "gone" / "net.py")) is None


def test_a_file_may_claim_to_lie_in_any_number_of_folders(code, monkeypatch):
    monkeypatch.setattr(code_module, "FOLDERS_KEPT", 100)
    assert code.packages("/a" * 3000 + "/x.py") is None
    for number in range(500):
        code.packages(f"/{number}/x.py")
    assert len(code._packages) <= 102


def test_a_line_is_decoded_and_stripped_of_what_a_terminal_obeys(code, tmp_path):
    file = tmp_path / "train.py"
    file.write_bytes(b"one\r\ntwo\n\tthree\x1b[31m \xe2\x80\xaered\nb\xff")
    assert line_of(code, str(file), 1) == "one"
    assert line_of(code, str(file), 3) == "    three·[31m ·red"
    assert line_of(code, str(file), 4) == "b\ufffd"
    assert line_of(code, str(file), 0) is None and line_of(code, str(file), 5) is None


def test_a_very_long_line_is_cut(code, tmp_path):
    """Rules search lines in ways that take the square of their length; a file of data may be one line."""
    file = tmp_path / "data.py"
    file.write_text("DATA = '" + "a" * 1_000_000 + "'\n\t\tx = 1\n")
    assert line_of(code, str(file), 1) == "DATA = '" + "a" * (code_module.LONGEST_LINE - 8)
    assert line_of(code, str(file), 2) == "        x = 1"
    assert len(code.text(str(file))) > 1_000_000


def test_the_condition_around_a_line(code, tmp_path):
    file = tmp_path / "model.py"
    file.write_text("def f():\n    if a:\n        g()\n    else:\n        for _ in x:\n            h()\n    i()\n")
    places = [code.place(str(file), number) for number in range(1, 8)]
    assert [place.guard for place in places[1:]] == [None, "if a:", None, *["else of if a:"] * 2, None]
    assert places[5].text == "h()"


def test_around_is_cut_at_both_ends_and_a_changed_file_is_read_again(code, tmp_path, monkeypatch):
    file = tmp_path / "train.py"
    file.write_text("\n".join(f"line {n}" for n in range(1, 11)))
    assert code.around(str(file), 2, before=6, after=2) == [(1, "line 1"), (2, "line 2"), (3, "line 3"), (4, "line 4")]
    assert [n for n, _ in code.around(str(file), 10)] == [4, 5, 6, 7, 8, 9, 10]
    assert code.around(str(file), 11) is None
    file.write_text("newer")
    monkeypatch.chdir(tmp_path)
    assert line_of(code, str(file), 1) == line_of(SourceCode(US), "train.py", 1) == "newer"


def test_links_are_followed_within_the_root(code, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.py").write_text("real")
    links = {"absolute.py": tmp_path / "real" / "train.py", "relative.py": "real/train.py", "loop.py": "loop.py"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    assert [line_of(code, str(tmp_path / name), 1) for name in links] == ["real", "real", None]


def test_a_path_that_is_no_regular_file_of_reasonable_size_has_no_source(code, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    file = tmp_path / "large.py"
    file.write_text("x" * 100)
    monkeypatch.setattr(code_module, "LARGEST_FILE", 99)
    names = [str(tmp_path / "pipe"), str(file), str(tmp_path), str(tmp_path / "missing"), "/dev/zero"]
    names += ["<string>", "<frozen importlib._bootstrap>", "", "a\0b", "x" * 5000]
    assert [line_of(code, name, 1) for name in names] == [None] * len(names)
    assert [code.around(name, 1) for name in names] == [None] * len(names)


def test_no_process_has_no_source():
    assert line_of(SourceCode(ProcessId(BEYOND_EVERY_PROCESS, 1.0)), "/etc/hostname", 1) is None
