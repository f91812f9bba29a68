"""What the user lets us write is never written to where somebody else wants it."""

from __future__ import annotations

import os

import pytest

from aitop.commands.diagnose import write_report
from aitop.errors import WrongUsageError
from aitop.model.snapshot import Target
from aitop.outputs.output_file import open_output, write_output
from aitop.outputs.recording import RecordingWriter


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
