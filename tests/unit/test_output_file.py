"""What the user lets us write is never written to where somebody else wants it."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from aitop import output_file
from aitop.commands.diagnose import write_report
from aitop.errors import WrongUsageError
from aitop.model.snapshot import Target
from aitop.output_file import make_folder, open_output, remove_output, replace_output, write_output
from aitop.outputs.recording import RecordingWriter
from aitop.ui.saving import write_new

OTHER, GROUP = 12345, 12346


def need_root():
    if os.geteuid() != 0:
        pytest.skip("needs root, to make another user's files")


def others_link(path, target):
    path.symlink_to(target)
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


# Like /tmp, and like a folder of root's for the members of a group.
@pytest.fixture(params=[0o1777, 0o2775], ids=["everybody", "group"])
def shared(tmp_path, request):
    """A folder of ours that others may write to, and a file of ours beside it."""
    need_root()
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(request.param)
    (tmp_path / "precious").write_text("mine")
    return folder


def test_in_a_shared_folder_nobody_elses_link_is_followed(shared, tmp_path):
    write_output(shared / "out", b"new")
    assert (shared / "out").read_text() == "new"
    others_link(shared / "there", tmp_path / "precious")
    others_link(shared / "not-there", tmp_path / "made")
    others_link(shared / "folder", tmp_path)
    (shared / "ours").symlink_to(shared / "folder")
    for name in ("there", "not-there", "folder/precious", "folder/made", "ours/precious", "ours/made"):
        with pytest.raises(WrongUsageError, match="is a link of another user's"):
            write_report("text", shared / name)
        with pytest.raises(WrongUsageError, match="is a link of another user's"):
            RecordingWriter(shared / name, Target(pid=1, command="x"))
        with pytest.raises(OSError):
            open_output(shared / name, new=True)
    assert (tmp_path / "precious").read_text() == "mine" and not (tmp_path / "made").exists()


def test_where_others_may_write_an_own_link_leads_on(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    (tmp_path / "shared" / "own").symlink_to("../away")
    (tmp_path / "away").mkdir()
    write_output(tmp_path / "shared" / "own" / ".." / "away" / "out", b"new")
    assert (tmp_path / "away" / "out").read_text() == "new"


def test_in_a_shared_folder_what_another_user_laid_out_is_not_written_to(shared, tmp_path):
    (shared / "trap").touch()
    (shared / "trap").chmod(0o666)
    os.chown(shared / "trap", OTHER, OTHER)
    os.link(tmp_path / "precious", shared / "name")
    for name in ("trap", "name"):
        with pytest.raises(PermissionError, match="another user's"):
            open_output(shared / name)
    assert not (shared / "trap").read_bytes() and (tmp_path / "precious").read_text() == "mine"


def test_a_folder_that_becomes_a_link_meanwhile_is_not_entered(shared, tmp_path, monkeypatch):
    """The folder is exchanged between the look at its name and the opening of it."""
    (shared / "folder").mkdir()
    look = output_file._link

    def exchanged(place):
        seen = look(place)
        if place.name == "folder":
            (shared / "folder").rmdir()
            others_link(shared / "folder", tmp_path)
        return seen

    monkeypatch.setattr(output_file, "_link", exchanged)
    with pytest.raises(OSError):
        write_output(shared / "folder" / "precious", b"overwritten")
    assert (tmp_path / "precious").read_text() == "mine"


def test_links_to_what_is_open_are_followed(tmp_path):
    with open(tmp_path / "open", "w+b") as file:
        write_output(Path(f"/dev/fd/{file.fileno()}"), b"by its number")
        assert file.read() == b"by its number"
    write_output(Path("/proc/self/cwd", os.path.relpath(tmp_path, "."), "below"), b"by a folder")
    assert (tmp_path / "below").read_text() == "by a folder"
    reading, writing = os.pipe()
    write_output(Path(f"/proc/self/fd/{writing}"), b"into a pipe")
    assert os.read(reading, 99) == b"into a pipe"
    os.close(reading), os.close(writing)


def test_an_output_path_that_is_no_file_is_refused_with_the_reason(tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "nowhere").symlink_to("none/file")
    for path, words in (("circle", "[Ll]evels of symbolic links"), ("nowhere", "No such file"), (".", "directory")):
        with pytest.raises(WrongUsageError, match=words):
            write_report("text", tmp_path / path)
    with pytest.raises(WrongUsageError, match="directory"):
        write_report("text", Path("/"))


@pytest.fixture
def others(tmp_path):
    """A folder of another user's, and a file of root's beside it."""
    need_root()
    for folder in (tmp_path, *tmp_path.parents):
        # pytest keeps its folders to itself; another user has to get through.
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o711)
    folder = tmp_path / "others"
    folder.mkdir()
    os.chown(folder, OTHER, OTHER)
    (tmp_path / "precious").write_text("mine")
    return folder


def test_root_writes_in_another_users_folder_what_that_user_could_write(others, tmp_path):
    write_output(others / "out", b"new")
    assert (others / "out").read_text() == "new"
    assert ((others / "out").stat().st_uid, (others / "out").stat().st_gid) == (OTHER, OTHER)
    (others / "target").symlink_to(tmp_path / "precious")
    (others / "made").symlink_to(tmp_path / "made")
    (others / "folder").symlink_to(tmp_path)
    for path in (others / "target", others / "made", others / "folder" / "precious", others / "folder" / "made"):
        with pytest.raises(PermissionError):
            write_output(path, b"overwritten")
        with pytest.raises(WrongUsageError, match="Permission denied"):
            RecordingWriter(path, Target(pid=1, command="x"))
    assert (tmp_path / "precious").read_text() == "mine" and not (tmp_path / "made").exists()
    # Only for that one opening.
    assert os.stat(f"/proc/self/task/{os.getpid()}").st_uid == os.geteuid() == 0
    write_output(tmp_path / "precious", b"still mine to write")


def test_what_is_saved_from_the_screen_follows_no_link(others, tmp_path):
    (others / "folder").symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        write_new(others / "folder", "aitop-1", {".txt": "text"})
    assert [path.name for path in write_new(others, "aitop-1", {".txt": "text"})] == ["aitop-1-1.txt"]
    assert not list(tmp_path.glob("aitop*"))


def test_what_replaces_a_file_is_made_and_removed_with_the_rights_of_the_folders_owner(others, tmp_path):
    (others / "folder").symlink_to(tmp_path)
    for path in (others / "folder" / "precious", others / "folder" / "made"):
        with pytest.raises(PermissionError):
            replace_output(path, b"overwritten", 0o644)
        remove_output(path)
    with pytest.raises(PermissionError):
        make_folder(others / "folder" / "made" / "below", 0o700)
    assert (tmp_path / "precious").read_text() == "mine" and not (tmp_path / "made").exists()
    (others / "out").symlink_to(tmp_path / "precious")
    replace_output(others / "out", b"new", 0o640)
    make_folder(others / "made" / "below", 0o700)
    for path, mode in ((others / "out", 0o100640), (others / "made" / "below", 0o40700)):
        assert (path.lstat().st_uid, path.lstat().st_mode) == (OTHER, mode)
    remove_output(others / "out")
    assert os.listdir(others / "made") == ["below"] and not (others / "out").exists()
    assert (tmp_path / "precious").read_text() == "mine"


def test_the_rights_of_roots_own_groups_are_given_up(others, tmp_path):
    (tmp_path / "precious").chmod(0o660)
    os.chown(tmp_path / "precious", 0, GROUP)
    (others / "target").symlink_to(tmp_path / "precious")
    child = os.fork()
    if not child:
        os.setgroups([GROUP])
        try:
            write_output(others / "target", b"overwritten")
        except PermissionError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (tmp_path / "precious").read_text() == "mine"


def test_where_the_rights_cannot_be_taken_nothing_is_written(others, monkeypatch):
    without_effect = SimpleNamespace(syscall=lambda *_: 0, setfsgid=lambda _: 0, setfsuid=lambda _: 0)
    monkeypatch.setattr(output_file.ctypes, "CDLL", lambda name: without_effect)
    with pytest.raises(PermissionError, match="cannot take the rights"):
        write_output(others / "out", b"new")
    assert not os.listdir(others)


def test_what_replaces_a_file_is_written_into_no_link_that_came_meanwhile(tmp_path, monkeypatch):
    (tmp_path / "precious").write_text("mine")

    def planted(name, *, dir_fd):
        os.symlink("precious", name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", planted)
    with pytest.raises(FileExistsError):
        replace_output(tmp_path / "out", b"new", 0o644)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_new_file_takes_no_others_place(tmp_path):
    (tmp_path / "there").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(WrongUsageError, match="File exists"):
        RecordingWriter(tmp_path / "there", Target(pid=1, command="x"), new=True)
    with pytest.raises(FileExistsError):
        open_output(tmp_path / "link", new=True)


# What runs in the target or goes there has rules of its own; demos write in their own folders.
ELSEWHERE = ("output_file.py", "hook/", "attach/payload/", "workloads/")
WRITES = {"write_text", "write_bytes", "mkdir", "makedirs", "touch", "rename", "symlink_to", "mkstemp", "mkdtemp"}
MODES = re.compile("[wax+]")


def test_nothing_else_opens_files_to_write():
    places = []
    root = Path(output_file.__file__).parent
    for path in sorted(root.rglob("*.py")):
        name = str(path.relative_to(root))
        text = path.read_text()
        if name.startswith(ELSEWHERE) or not any(word in text for word in (*WRITES, "O_CREAT", "open(")):
            continue
        for node in ast.walk(ast.parse(text)):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in WRITES:
                places.append(f"{name}:{node.lineno} {called.attr}")
            elif isinstance(node, ast.Attribute) and node.attr == "O_CREAT":
                places.append(f"{name}:{node.lineno} O_CREAT")
            elif isinstance(called, ast.Name) and called.id == "open":
                # By a number it was opened elsewhere.
                by_name = not (isinstance(node.args[0], ast.Name) and node.args[0].id == "descriptor")
                modes = [arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)]
                places += [f"{name}:{node.lineno} open" for mode in modes if by_name and MODES.search(str(mode))]
    assert not places
