"""The settings file: what it says holds, the command line goes before it, and what is wrong with it is said."""

import os

import pytest

from aitop.cli import parse, run
from aitop.commands.config import KEYS, as_toml, path, read
from aitop.errors import WrongUsageError
from aitop.model.settings import Settings

OTHERS = Settings(
    theme="light", ascii=True, folded=("gpu", "code"), editor='code --wait "x"', interval=0.5, passive=True, gpu=False,
    stacks=False, hook=False,
)  # fmt: skip


def test_without_a_file_everything_has_its_default(settings_file):
    assert read() == Settings()


def test_the_verb_shows_the_effective_settings_and_where_they_are(settings_file, capsys):
    settings_file('interval = "500ms"')
    assert run(["config"]) == 0
    assert 'interval = "0.5s"' in capsys.readouterr().out
    settings_file("theme")
    assert run(["config", "--path"]) == 0, "a bad file does not keep one from asking where it is"
    assert capsys.readouterr().out.strip() == str(path())


def test_a_user_without_a_home_has_the_defaults(monkeypatch, capsys):
    """As in containers whose user has no entry and no HOME."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 3_999_999_999)
    assert read() == Settings()
    assert run(["config"]) == 0
    assert capsys.readouterr().out == as_toml(Settings())
    assert run(["config", "--path"]) == 2
    assert capsys.readouterr().err == "aitop: no home is known for this user: set HOME or XDG_CONFIG_HOME\n"


@pytest.mark.parametrize("settings", [Settings(), OTHERS], ids=["defaults", "others"])
def test_the_settings_shown_are_a_file_with_the_same_settings(settings_file, settings):
    settings_file(as_toml(settings))
    assert read() == settings


def test_every_setting_can_be_set():
    assert set(KEYS) == set(Settings.__struct_fields__)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('\n\ntheme = "pink"', 3, "theme must be one of auto, dark"),
        ("interval = 0.01", 1, "interval must be a time"),
        ("interval = true", 1, "interval must be a time"),
        ("# x\npassive = 1", 2, "passive must be true or false"),
        ('folded = ["attic"]', 1, "folded must be a list of some of"),
        ("ascii = 1", 1, 'ascii must be true, false or "auto"'),
        ("editor = 7", 1, "editor must be a command"),
        ("\n[theme]\na = 1", 2, "theme must be one of"),
        ("colour = 1", 1, "no setting 'colour', only theme"),
        ("\ntheme = ", 2, "not TOML"),
        ("theme = 'dark'\ntheme = 'dark'", 2, "not TOML"),
        (b"# \n# \xff", 2, "not UTF-8"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_key(settings_file, capsys, text, line, words):
    settings_file(text)
    assert run(["config", "--show"]) == 2
    complaint = capsys.readouterr().err
    assert f"{path()}, line {line}: " in complaint
    assert words in complaint
    assert complaint.count("\n") == 1


def test_the_command_line_goes_before_the_file(settings_file):
    settings_file(as_toml(OTHERS))
    args = parse(["--pid", "7"])
    options = args.settings
    assert (options.passive, options.interval) == (True, 0.5)
    assert (options.gpu, options.stacks, options.hook) == (False, False, False)
    assert args.settings == OTHERS
    args = parse(["--pid", "7", "--interval", "2", "--no-passive", "--hook", "--theme", "dark", "--no-ascii"])
    options = args.settings
    assert (options.passive, options.interval, options.gpu, options.hook) == (False, 2.0, False, True)
    assert (args.settings.theme, args.settings.ascii) == ("dark", False)


def test_the_place_is_that_of_the_desktop_standard(monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "not/absolute")
    monkeypatch.setenv("HOME", "/home/ada")
    assert os.fspath(path()) == "/home/ada/.config/aitop/config.toml"


def test_a_home_that_is_closed_to_us_has_no_settings(monkeypatch, tmp_path):
    def closed(*_):
        raise PermissionError(13, "Permission denied")

    seen = tmp_path / "seen.toml"
    seen.write_text("")
    monkeypatch.setattr("pathlib.Path.open", closed)
    assert read(tmp_path / "not" / "seen.toml") == Settings()
    with pytest.raises(WrongUsageError, match="cannot read the settings"):
        read(seen)
