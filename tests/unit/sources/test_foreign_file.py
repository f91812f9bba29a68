"""Files that another process names: opened only where that process could open them, within its root."""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

import pytest
from source_lines import line_of

from aitop.commands.monitor import source_around
from aitop.model.host import ProcessId
from aitop.sources import foreign_file, procfs
from aitop.sources.code.lines import SourceCode
from aitop.sources.foreign_file import (
    READ,
    User,
    belongs_to_other_user,
    open_as,
    open_below,
    open_folder_as,
    readable_path,
)
from aitop.sources.process_status import parse_status
from aitop.sources.stacks import window

LINKS = {"real": "real", "relative": "real", "up": "real", "absolute": "real", "out": None, "loop": None}


@pytest.mark.parametrize("name", LINKS)
def test_no_link_leads_out_of_the_targets_root(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (root / "relative").symlink_to("real")
    (root / "up").symlink_to("../../../real")
    (root / "absolute").symlink_to("/real")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "loop").symlink_to("loop")
    fd = os.open(root, os.O_PATH)
    try:
        if LINKS[name] is None:
            with pytest.raises(OSError):
                open_below(fd, f"/{name}", None, folder=True)
        else:
            folder = open_below(fd, f"/{name}/../{name}/.", None, folder=True)
            assert os.fstat(folder).st_ino == (root / "real").stat().st_ino
            os.close(folder)
    finally:
        os.close(fd)


def test_a_path_through_hundreds_of_folders_is_not_followed(tmp_path: Path) -> None:
    """Each folder on the way is an open file of ours, and a target may name any path as its code's."""
    (tmp_path / "/".join("d" * 200)).mkdir(parents=True)
    fd = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(OSError, match="name too long"):
            open_below(fd, "/".join("d" * 200), None, folder=True)
        os.close(open_below(fd, "/".join("d" * 100), None, folder=True))
    finally:
        os.close(fd)


def test_root_makes_no_file_where_the_target_could_not() -> None:
    text = "Uid:\t{0}\t{0}\t{0}\t{0}\nGid:\t{0}\t{0}\t{0}\t{0}\nGroups:\t{0} 77\n"
    stranger = parse_status(os.getpid(), text.format(12345), 1).user
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        inner = Path(name) / "inner"
        inner.mkdir()
        inner.chmod(0o777)
        Path(name).chmod(0o700)
        with pytest.raises(PermissionError):  # it may write there, but could not get there
            open_folder_as(os.getpid(), str(inner), stranger)
        Path(name).chmod(0o711)
        os.close(open_folder_as(os.getpid(), str(inner), stranger))
        inner.chmod(0o770)
        with pytest.raises(PermissionError):
            open_folder_as(os.getpid(), str(inner), stranger)
        if os.geteuid() == 0:
            os.chown(inner, 0, 77)
            os.close(open_folder_as(os.getpid(), str(inner), stranger))


US = procfs.process_id(os.getpid())


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


def test_no_process_is_read_for_with_the_rights_of_another(monkeypatch):
    """A launcher is root's, say, and what runs below it a user's, whose frames can bear any file's name."""
    users = {os.getpid(): User(0, frozenset()), 1 << 40: User(5, frozenset()), 1 << 41: User(0, frozenset())}
    monkeypatch.setattr(window, "user_of", lambda process: users.get(process.pid))
    monkeypatch.setattr(procfs, "link", lambda path: "mnt:[1]" if path.endswith("/mnt") else "/")
    code = window.CodeOfProcesses()
    assert [code.of(pid).process.pid for pid in users] == [os.getpid(), 1 << 40, os.getpid()]
    users |= {1 << 40: User(0, frozenset()), 1 << 42: User(5, frozenset())}
    assert code.of(1 << 42).process.pid == 1 << 42, "the pid of the first one is root's now"
