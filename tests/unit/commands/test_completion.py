"""The completion scripts, run by the shells that they are for."""

import os
import shutil
import subprocess

import pytest

from aitop import cli
from aitop.commands.completion import SHELLS
from aitop.commands.replay import EXPORTS


@pytest.fixture
def script(tmp_path, capsys):
    def written(shell):
        with pytest.raises(SystemExit) as left:
            cli.run(["--print-completion", shell])
        assert left.value.code == 0
        path = tmp_path / f"aitop.{shell}"
        path.write_text(capsys.readouterr().out, encoding="utf-8")
        return path

    return written


def bash(path, *words):
    """What bash offers for the last of the words."""
    typed = " ".join(f"'{word}'" for word in words)
    line = f"source {path}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _shtab_aitop"
    asked = line + "; printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.split()


def test_bash_completes_verbs_options_and_choices(script):
    path = script("bash")
    assert bash(path, "aitop", "rep") == ["replay"]
    assert bash(path, "aitop", "diagnose", "--fo") == ["--for", "--format"]
    assert bash(path, "aitop", "diagnose", "--format", "") == ["text", "json", "html"]
    assert bash(path, "aitop", "replay", "--export", "c") == ["collapsed", "csv"]
    assert bash(path, "aitop", "demo", "slow-") == ["slow-loader", "slow-transform"]
    assert bash(path, "aitop", "explain", "gil") == ["gil-contention"]
    assert bash(path, "aitop", "diagnose", "--on", "a") == ["any"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_choices(script, tmp_path):
    asked = f"source {script('fish')}; complete -C 'aitop replay --export '"
    home = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(["fish", "-N", "-c", asked], capture_output=True, text=True, check=True, timeout=20, env=home)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(EXPORTS)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_takes_its_script_which_names_every_verb(script, shell):
    text = script(shell).read_text(encoding="utf-8")
    assert all(verb in text for verb in cli.VERBS)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", script(shell)], capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
