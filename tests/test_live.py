"""The mechanism that the start page runs: the numbers of `simulate`, controls for everybody."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxdae

DOCS = Path(__file__).parents[1] / "docs"
LIVE = [DOCS / "live" / x for x in ("two_link.js", "live.js")]
NODE = shutil.which("node")
with_node = pytest.mark.skipif(NODE is None, reason="node executes the page's scripts")


@pytest.fixture(scope="module")
def scripts():
    """The modules that write the code and open the page."""
    sys.path.insert(0, str(DOCS / "scripts"))
    import live
    import look

    yield live, look
    sys.path.remove(str(DOCS / "scripts"))


def in_node(expression):
    """Value of an expression of JavaScript in which the page's scripts are known."""
    text = "\n".join(x.read_text().replace('"use strict";', "") for x in LIVE)
    script = f"""
    {text}
    loaded().then((runs) => console.log(JSON.stringify({expression}, (_, x) =>
      ArrayBuffer.isView(x) ? [...x] : x)));
    """
    done = subprocess.run([str(NODE), "-"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@with_node
@pytest.mark.parametrize(("number", "h", "by"), [(0, 0.01, "guess"), (1, 0.02, "theory"),
                                                 (2, 0.016, "theory")])  # fmt: skip
def test_the_page_has_the_drift_of_simulate(scripts, number, h, by):
    """In ten seconds; the calls of the page, one after the other, are one run."""
    live, _ = scripts
    name, method = list(live.METHODS.items())[number]
    best = jaxdae.Baumgarte.for_step(method(), h)
    of_theory = {x: float(getattr(best, x)) for x in live.GUESS}
    gains = of_theory if by == "theory" else live.GUESS
    found, marked = in_node(
        f"[motion(runs[{name!r}], {json.dumps(gains | {'h': h})}), theory({name!r}, {h})]"
    )
    # The gains of a method are in proportion to 1 / h and 1 / h^2.
    np.testing.assert_allclose(list(marked.values()), list(of_theory.values()), rtol=1e-12)
    system, _, start = live.problem()
    run = jaxdae.simulate(
        system, jaxdae.Multipliers(jaxdae.Baumgarte(**gains)), start, t1=10.0, dt=h,
        solver=method(), start_tolerance=None, saveat=live.diffrax.SaveAt(t0=True, steps=True),
    )  # fmt: skip
    assert found["failed"] is None
    drift = np.linalg.norm(run.violation.phi, axis=1)
    assert len(found["ts"]) == len(drift) == round(10.0 / h) + 1
    # What the page is to be equal to; round-off of positions of about a metre is 1e-16.
    np.testing.assert_allclose(found["drift"], drift, atol=1e-9)
    np.testing.assert_allclose(found["q1"], run.q[:, 0], atol=1e-9)
    np.testing.assert_allclose(found["ts"], run.ts, atol=1e-12)


@with_node
def test_a_run_that_fails_ends_at_its_last_good_step(scripts):
    """Gains beyond the limit of Runge-Kutta steps: `h K_D` above 2.8."""
    name = next(iter(scripts[0].METHODS))
    found = in_node(f"motion(runs[{name!r}], {{K_D: 1e4, K_P: 1, h: 0.01}})")
    assert 0 < found["failed"] < 10
    assert len({len(found[x]) for x in ("ts", "q1", "q2", "drift")}) == 1
    assert 0 < len(found["ts"]) <= round(found["failed"] / 0.01)
    assert np.isfinite([*found["drift"], *found["q1"], *found["q2"]]).all()


def test_the_file_is_one_script_without_addresses():
    """A page that is opened from a disk loads neither modules nor other files."""
    for file in LIVE:
        text = file.read_text()
        assert not re.search(r"^(import|export) |import\.meta|https?://", text, re.MULTILINE)
    assert LIVE[0].stat().st_size < 100_000


@pytest.fixture(scope="module")
def window(scripts):
    """A browser, for all tests: it takes a second to start."""
    if scripts[1].chromium() is None:
        pytest.skip("there is no Chromium on this machine: nothing shows the page")
    with scripts[1].browser() as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Of the part of the start page, on the disk."""
    part = re.search(r'<div class="live".*</script>', (DOCS / "index.md").read_text(), re.DOTALL)
    assert part
    file = tmp_path_factory.mktemp("page") / "page.html"
    head = f'<!doctype html><base href="{DOCS.as_uri()}/"><meta charset="utf-8"><title>live</title>'
    size = (
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="site.css">'
    )
    file.write_text(f"{head}{size}<body><main>{part[0]}</main>")
    return file.as_uri()


READY = "#two-link[data-spent]"


@pytest.fixture
def page(window, address):
    """The page on a narrow screen that is touched, without a server."""
    context = window.new_context(viewport={"width": 360, "height": 740}, has_touch=True)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda x: said.append(x.text))
    page.on("pageerror", lambda x: said.append(str(x)))
    page.on("request", lambda x: x.url.startswith("file:") or said.append(x.url))
    page.goto(address)
    page.wait_for_selector(READY)
    yield page
    assert said == []
    context.close()


def status(page):
    return page.get_by_role("status").inner_text()


def test_controls_are_named_and_moved_by_keys_and_touch(page):
    first = status(page)
    for name in ("K_D", "K_P", "Step"):
        slider = page.get_by_role("slider", name=re.compile(f"^{name}"))
        before = slider.get_attribute("aria-valuetext")
        slider.press("ArrowRight")
        assert slider.get_attribute("aria-valuetext") != before
    assert status(page) != first
    page.get_by_role("button", name="Gains by theory").tap()
    for name in ("K_D", "K_P"):
        said = page.get_by_role("slider", name=re.compile(f"^{name}"))
        gain, _, marked = (said.get_attribute("aria-valuetext") or "").partition(", theory ")
        assert gain.split()[0] == marked
    page.get_by_role("combobox", name="Method").select_option(index=2)
    page.get_by_role("slider", name=re.compile("^Step")).fill("50")
    assert "lost" in status(page)  # Heun's steps of 50 ms do not take the gains for those of 11 ms
    page.get_by_role("button", name="Guessed gains").tap()
    assert "lost" not in status(page)
    page.get_by_role("slider", name=re.compile("^Time")).fill("5")
    assert page.get_by_role("button", name="Play", exact=True).is_visible()
    assert page.get_by_role("img").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_ten_seconds_take_less_than_fifty_milliseconds(page):
    """The shortest of ten runs, of which other work on the machine makes the others longer."""
    spent = []
    for _ in range(10):
        page.get_by_role("button", name="Guessed gains").click()
        spent.append(float(page.locator("#two-link").get_attribute("data-spent")))
    assert min(spent) < 50


def test_nothing_moves_by_itself_for_who_does_not_like_it(window, address):
    context = window.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(READY)
    assert page.get_by_role("button", name="Play", exact=True).is_visible()
    context.close()


@pytest.mark.parametrize("missing", ["JavaScript", "WebAssembly"])
def test_a_film_takes_its_place(window, address, missing):
    context = window.new_context(java_script_enabled=missing != "JavaScript")
    page = context.new_page()
    page.add_init_script("delete globalThis.WebAssembly")
    page.goto(address)
    film = page.get_by_role("img", name=re.compile("^Film: "))
    film.wait_for(state="visible")
    assert page.get_by_role("slider").count() == 0
    context.close()
