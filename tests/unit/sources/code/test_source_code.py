"""Source lines read through the root of a process (here: this one)."""

import os
import struct
import tempfile
from pathlib import Path

import pytest
from process_numbers import BEYOND_EVERY_PROCESS

from aitop.commands.monitor import source_around
from aitop.model.host import ProcessId
from aitop.sources import foreign_file, procfs
from aitop.sources.code import lines as code_module
from aitop.sources.code.lines import SourceCode
from aitop.sources.foreign_file import READ, User, belongs_to_other_user, open_as, readable_path
from aitop.sources.stacks import window

US = procfs.process_id(os.getpid())


@pytest.fixture
def code():
    return SourceCode(US)


def line_of(code, file, line):
    """A line as it is, None if there is no such line."""
    found = code.around(file, line, before=0, after=0)
    return found[0][1] if found else None


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


def test_lines(code, tmp_path):
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


STRANGER = User(12345, frozenset((1, 77)))


@pytest.fixture
def public():
    """A folder that everybody may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_of_another_users_process_only_what_that_user_may_read(public, monkeypatch):
    file = public / "secret.py"
    file.write_text("secret")
    file.chmod(0o600)
    monkeypatch.setattr(foreign_file, "user_of", lambda process: STRANGER)
    assert line_of(SourceCode(US), str(file), 1) is None
    file.chmod(0o604)
    assert line_of(SourceCode(US), str(file), 1) == "secret"
    public.chmod(0o700)
    assert line_of(SourceCode(US), str(file), 1) is None
    assert readable_path(US, str(file)) is None


def with_acl(file, *entries):
    """The file with an access control list: kind, rights, number. See linux/posix_acl_xattr.h."""
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in sorted(entries))
    try:
        os.setxattr(file, "system.posix_acl_access", acl)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")


NOBODY = 0xFFFFFFFF
OWNER, NAMED, MEMBERS, GROUP, MASK, OTHERS = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
USUAL = ((OWNER, 6, NOBODY), (MEMBERS, 4, NOBODY), (MASK, 6, NOBODY), (OTHERS, 4, NOBODY))


@pytest.mark.parametrize(
    ("entries", "may"),
    [
        ([], True),
        # This user is kept out, although everybody else may read it.
        ([(NAMED, 0, 12345)], False),
        # By its mode the group may read it. That is the mask: only one user may.
        ([(MEMBERS, 0, NOBODY), (NAMED, 4, 99), (OTHERS, 0, NOBODY)], False),
        ([(MEMBERS, 0, NOBODY), (GROUP, 4, 77), (OTHERS, 0, NOBODY)], True),
        ([(MEMBERS, 0, NOBODY), (GROUP, 0, 77)], False),
        ([(NAMED, 4, 12345), (MASK, 2, NOBODY)], False),
        ([(NAMED, 4, 12345), (MEMBERS, 0, NOBODY), (OTHERS, 0, NOBODY)], True),
    ],
)
def test_an_access_control_list_counts(public, monkeypatch, entries, may):
    file = public / "train.py"
    file.write_text("x = 1")
    given = {entry[0] for entry in entries}
    with_acl(file, *entries, *(entry for entry in USUAL if entry[0] not in given))
    user = User(12345, frozenset((file.stat().st_gid, 77)))
    monkeypatch.setattr(foreign_file, "user_of", lambda process: user)
    assert (line_of(SourceCode(US), str(file), 1) == "x = 1") is may


def test_a_folders_access_control_list_counts(public, monkeypatch):
    file = public / "train.py"
    file.write_text("x = 1")
    file.chmod(0o644)
    with_acl(public, *USUAL[:3], (OTHERS, 5, NOBODY), (NAMED, 0, 12345))
    monkeypatch.setattr(foreign_file, "user_of", lambda process: STRANGER)
    assert line_of(SourceCode(US), str(file), 1) is None


def test_a_file_named_by_an_ended_process_is_not_read_with_the_rights_of_the_pids_new_owner(tmp_path):
    file = tmp_path / "secret.py"
    file.write_text("secret")
    gone = ProcessId(US.pid, US.started - 1.0)
    assert source_around(US, str(file), 1) == [(1, "secret")]
    assert source_around(gone, str(file), 1) is None and line_of(SourceCode(gone), str(file), 1) is None
    with pytest.raises(ProcessLookupError):
        open_as(gone, str(file))


def test_root_opens_no_file_in_an_editor_that_a_process_named_which_is_gone(public):
    """Nobody knows any more as whom that process ran."""
    file, link = public / "train.py", public / "link.py"
    file.write_text("x = 1")
    link.symlink_to(file)
    gone = ProcessId(US.pid, US.started - 1.0)
    assert readable_path(gone, str(file)) == str(file) and readable_path(None, str(file)) == str(file)
    if os.geteuid() != 0:
        pytest.skip("needs root")
    assert readable_path(gone, str(link)) is None
    os.chown(file, 12345, 12345)
    assert readable_path(gone, str(file)) is None


def test_an_editor_of_ours_is_not_opened_on_another_users_files(public, monkeypatch):
    file = public / "train.py"
    file.write_text("x = 1")
    file.chmod(0o644)
    assert readable_path(US, str(file)) == str(file) and not belongs_to_other_user(US)
    monkeypatch.setattr(foreign_file, "user_of", lambda process: STRANGER)
    assert line_of(SourceCode(US), str(file), 1) == "x = 1"
    assert readable_path(US, str(file)) is None and belongs_to_other_user(US)


def test_a_link_of_a_process_in_a_container_is_resolved_there(tmp_path, monkeypatch):
    """The root of the process is another folder; the link in it is absolute."""
    box, secret = tmp_path / "box", tmp_path / "train.py"
    (box / tmp_path.relative_to("/")).mkdir(parents=True)
    secret.write_text("of this machine")
    there = box / secret.relative_to("/")
    there.write_text("of the container")
    (box / "app.py").symlink_to(secret)
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "root").symlink_to(box)
    (tmp_path / "proc" / "7" / "cwd").symlink_to("/")
    monkeypatch.setattr(procfs, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(foreign_file, "user_of", lambda process: User(os.geteuid(), frozenset()))
    path = readable_path(ProcessId(7, 1.0), "/app.py")
    assert path is not None and Path(path).read_text() == "of the container"


@pytest.mark.parametrize(
    ("mode", "group", "may"),
    [(0o600, 5, False), (0o640, 5, False), (0o640, 77, True), (0o604, 77, False), (0o604, 5, True), (0o640, 1, True)],
)
def test_every_group_of_the_user_counts(mode, group, may):
    status = os.stat_result((mode, 0, 0, 0, 999, group, 0, 0, 0, 0))
    assert User(12345, frozenset({1, 77})).may(status, READ) is may
    assert User(0, frozenset()).may(status, READ)


def test_pipes_and_devices_are_not_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out").symlink_to("/dev/zero")
    opened = []
    real = os.open

    def noted(path, flags, **how):
        if not str(path).endswith(("/status", "/stat")):
            opened.append(flags)
        return real(path, flags, **how)

    monkeypatch.setattr(os, "open", noted)
    for name in ("pipe", "out"):
        with pytest.raises(OSError, match="not a regular file"):
            open_as(US, str(tmp_path / name))
    assert opened and all(flags & os.O_PATH for flags in opened)


def test_no_process_has_no_source():
    assert line_of(SourceCode(ProcessId(BEYOND_EVERY_PROCESS, 1.0)), "/etc/hostname", 1) is None


def test_no_process_is_read_for_with_the_rights_of_another(monkeypatch):
    """A launcher is root's, say, and what runs below it a user's, whose frames can bear any file's name."""
    users = {os.getpid(): User(0, frozenset()), 1 << 40: User(5, frozenset()), 1 << 41: User(0, frozenset())}
    monkeypatch.setattr(window, "user_of", lambda process: users.get(process.pid))
    monkeypatch.setattr(procfs, "link", lambda path: "mnt:[1]" if path.endswith("/mnt") else "/")
    code = window.CodeOfProcesses()
    assert [code.of(pid).process.pid for pid in users] == [os.getpid(), 1 << 40, os.getpid()]
    users |= {1 << 40: User(0, frozenset()), 1 << 42: User(5, frozenset())}
    assert code.of(1 << 42).process.pid == 1 << 42, "the pid of the first one is root's now"
