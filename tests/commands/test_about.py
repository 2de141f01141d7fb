"""`jaxdae --version`, and what completes words in shells."""

import platform
import subprocess
import sys
from importlib.metadata import version

import pytest

from jaxdae.cli import main


def test_versions_are_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    expected = f"jaxdae {version('jaxdae')}, jax {version('jax')}"
    assert capsys.readouterr().out == f"{expected}, Python {platform.python_version()}\n"


def test_without_shtab_the_remedy_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", "bash"])
    assert ended.value.code == 2
    assert "pip install 'jaxdae[completion]' installs it" in capsys.readouterr().err


# What is typed, and what bash offers for the last word.
TYPED = {
    "jaxdae sim": {"simulate"},
    "jaxdae simulate ball": {"ball-beam", "ball-beam-simplified"},
    "jaxdae tune four-bar --formulation penal": {"penalty"},
    "jaxdae simulate pendulum --unst": {"--unstabilized"},
}


def test_bash_completes_commands_models_and_names(capsys, tmp_path):
    pytest.importorskip("shtab", reason="the extra `completion`, which the extra `test` has")
    with pytest.raises(SystemExit):
        main(["--print-completion", "bash"])
    script = tmp_path / "jaxdae"
    script.write_text(capsys.readouterr().out)
    ask = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_jaxdae'
    ask += "; echo ${COMPREPLY[@]}"
    for line, offered in TYPED.items():
        words = ["bash", "-c", ask, str(script), *line.split()]
        done = subprocess.run(words, check=True, stdout=-1, text=True)
        assert set(done.stdout.split()) == offered
