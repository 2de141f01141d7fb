"""What makes runs of the command cheap: pictures that are not rendered, steps of one stage."""

import json
from types import SimpleNamespace

import diffrax
import pytest

from jaxdae.cli import main


@pytest.fixture
def rendered():
    """For a test that needs the pictures themselves."""


@pytest.fixture
def figures():
    """The figures by name."""
    return {}


@pytest.fixture(autouse=True)
def drawn(request, monkeypatch, figures):
    """Names of the figures, which are made but not rendered: that takes longest."""
    if "rendered" in request.fixturenames:
        return figures.keys()
    # The package last: what is imported here takes its function from there.
    for place in ("commands.tuning_pictures", "commands.analyze", "plotting"):
        save = f"jaxdae.{place}.save_figure"
        monkeypatch.setattr(save, lambda figure, path: figures.update({path.name: figure}))
    return figures.keys()


@pytest.fixture
def heun(monkeypatch):
    """Heun's method in place of RK4: two stages, and native like those."""
    monkeypatch.setattr("jaxdae.commands.tune.RK4", diffrax.Heun)


@pytest.fixture(scope="session")
def analyzed(tmp_path_factory):
    """`analyzed(name, *options)`: result, printed text in one line, folder; each run once."""
    done = {}

    def get(*words, capsys):
        if words not in done:
            out = tmp_path_factory.mktemp("analyze")
            capsys.readouterr()
            assert main(["analyze", *words, "--out", str(out)]) == 0
            text = (out / "analysis.json").read_text()
            printed = " ".join(capsys.readouterr().out.split())
            done[words] = SimpleNamespace(result=json.loads(text), text=printed, out=out)
        return done[words]

    return get
