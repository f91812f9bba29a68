"""What the user lets us write is never written to where somebody else wants it."""

from __future__ import annotations

import os

import pytest

from aitop.commands.diagnose import write_report
from aitop.errors import WrongUsageError
from aitop.model.snapshot import Target
from aitop.output_file import open_output, write_output
from aitop.outputs.recording import RecordingWriter
from aitop.ui.saving import write_new


@pytest.fixture
def public(tmp_path):
    """A folder like /tmp, and a file of ours beside it."""
    folder = tmp_path / "public"
    folder.mkdir()
    folder.chmod(0o1777)
    (tmp_path / "precious").write_text("mine")
    return folder


def test_what_is_there_is_replaced(tmp_path):
    output = tmp_path / "out.html"
    output.write_text("longer than the new")
    write_output(output, b"new")
    assert output.read_text() == "new"
    (tmp_path / "link").symlink_to(output)
    write_output(tmp_path / "link", b"by a link of the user's own")
    assert output.read_text() == "by a link of the user's own"


def test_in_a_public_folder_nobodys_link_is_followed(public, tmp_path):
    write_output(public / "out", b"new")
    assert (public / "out").read_text() == "new"
    for name, place in (("there", "precious"), ("not-there", "made")):
        (public / name).symlink_to(tmp_path / place)
        with pytest.raises(WrongUsageError, match="it is a link"):
            write_report("text", public / name)
        with pytest.raises(WrongUsageError, match="it is a link"):
            RecordingWriter(public / name, Target(pid=1, command="x"))
    assert (tmp_path / "precious").read_text() == "mine" and not (tmp_path / "made").exists()


def test_in_a_public_folder_what_another_user_laid_out_is_not_written_to(public):
    (public / "trap").touch()
    (public / "trap").chmod(0o666)
    if os.geteuid() != 0:
        pytest.skip("needs root, to make another user's file")
    os.chown(public / "trap", 12345, 12345)
    with pytest.raises(PermissionError, match="another user's"):
        open_output(public / "trap")
    assert not (public / "trap").read_bytes()


@pytest.fixture
def others(tmp_path):
    """A folder of another user's, and a file of root's beside it."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make another user's folder")
    for folder in (tmp_path, *tmp_path.parents):
        # pytest keeps its folders to itself; another user has to get through.
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o711)
    folder = tmp_path / "others"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    (tmp_path / "precious").write_text("mine")
    return folder


def test_root_writes_in_another_users_folder_what_that_user_could_write(others, tmp_path):
    write_output(others / "out", b"new")
    assert (others / "out").read_text() == "new"
    assert ((others / "out").stat().st_uid, (others / "out").stat().st_gid) == (12345, 12345)
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


def test_a_new_file_takes_no_others_place(tmp_path):
    (tmp_path / "there").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        open_output(tmp_path / "there", new=True)
