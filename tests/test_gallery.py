"""The gallery: each film is made by the script beside it, is small, and is on the page."""

import ast
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

import jaxdae.models
from jaxdae.models import MODELS
from test_words import RX

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "docs" / "scripts"


@pytest.fixture(scope="module")
def gallery():
    """The module that builds it."""
    sys.path.insert(0, str(SCRIPTS))
    import gallery

    yield gallery
    sys.path.remove(str(SCRIPTS))


def test_captions_keep_to_the_words_of_the_field(gallery):
    texts = [f"{x.title} {x.caption}" for x in gallery.films().values()]
    assert [x for x in texts if RX.search(x)] == []


def test_every_script_is_listed_and_says_what_it_shows(gallery):
    files = {x.stem for x in gallery.FOLDER.glob("*.py")}
    assert files == {*gallery.films(), gallery.HELPER}
    assert not files & sys.stdlib_module_names  # they are run from their folder
    assert len(gallery.films()) >= 24
    for film in gallery.films().values():
        assert film.title, film.name
        assert film.caption.endswith("."), film.name
        assert f'"{film.name}.gif"' in film.source
    assert len({x.title for x in gallery.films().values()}) == len(gallery.films())


def test_scripts_name_models_that_exist(gallery):
    found = set()
    for film in gallery.films().values():
        found |= {*re.findall(r'get_model\("([^"]+)"\)', film.source)}
        for node in ast.walk(ast.parse(film.source)):
            if isinstance(node, ast.ImportFrom) and node.module == "jaxdae.models":
                assert all(hasattr(jaxdae.models, x.name) for x in node.names), film.name
    assert len(found) >= 15
    assert found <= {*MODELS}


def test_every_film_is_of_its_script_and_small(gallery):
    assert gallery.stale() == []  # else: python docs/scripts/gallery.py
    images = list(gallery.IMAGES.iterdir())
    assert {x.name for x in images} == {f"{x}.gif" for x in gallery.films()}
    assert max(x.stat().st_size for x in images) < 150_000
    assert sum(x.stat().st_size for x in images) < 2_000_000


def test_every_film_moves(gallery):
    for name in gallery.films():
        with Image.open(gallery.IMAGES / f"{name}.gif") as image:
            assert getattr(image, "n_frames", 1) >= 30, name
            first = image.convert("RGB").tobytes()
            image.seek(20)
            assert image.convert("RGB").tobytes() != first, name


def test_the_page_shows_every_film_and_its_script(gallery):
    ((uri, text),) = gallery.pages()
    assert uri == "gallery.md"
    for film in gallery.films().values():
        assert text.count(f'src="images/{film.name}.gif"') == 1
        assert film.caption in text
        for line in film.source.splitlines():
            assert f"    {line}".rstrip() in text


@pytest.mark.slow
def test_the_bicycle_has_the_modes_of_the_benchmark(gallery, monkeypatch):
    """Weave, capsize and castering at 5 m/s, as Meijaard and others print them in table 2."""
    monkeypatch.syspath_prepend(gallery.FOLDER)
    script = {}
    exec(gallery.films()["bicycle"].source.partition("\nfilm(")[0], script)
    terms = jax.jit(lambda q, v: jaxdae.evaluate(script["Bicycle"](), 0.0, q, v))
    free, speed, h = np.array([4, 6, 7]), 5.0, 1e-4  # roll, steering and the rear wheel

    def rate(x):
        """Of roll, steering and their velocities; odd in them, so that pitch stays as it is."""
        q = np.array([0.0, 0.0, 0.3, 0.0, x[0], 0.0, x[1], 0.0, 0.0])
        jac = np.asarray(terms(q, np.zeros(9)).jac)
        known = np.concatenate([np.zeros(6), x[2:], [speed / 0.3]])
        v = np.linalg.solve(np.concatenate([jac, np.eye(9)[free]]), known)
        at = terms(q, v)
        matrix = np.block([[at.mass, jac.T], [jac, np.zeros((6, 6))]])
        a = np.linalg.solve(matrix, np.concatenate([at.force, -at.gamma]))
        return np.concatenate([x[2:], a[free[:2]]])

    linear = np.stack([rate(h * x) / h for x in np.eye(4)], axis=1)
    weave, capsize, castering = (
        -0.77534188219585 + 4.46486771378823j,
        -0.32286642900409,
        -14.07838969279822,
    )
    found = np.sort_complex(np.linalg.eigvals(linear))
    # What is left out is of the order of h^2, times terms of the size of the largest root cubed.
    np.testing.assert_allclose(found, [castering, weave.conjugate(), weave, capsize], rtol=1e-5)
