"""The site is built without a warning, its links lead somewhere, and a browser shows its pages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "docs" / "scripts"


@pytest.fixture(scope="module")
def scripts():
    """The modules that look at the site."""
    sys.path.insert(0, str(SCRIPTS))
    import links
    import look

    yield links, look
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def links(scripts):
    return scripts[0]


@pytest.fixture(scope="module")
def look(scripts):
    return scripts[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, as it is published, but for notebooks that are not executed anew."""
    folder = tmp_path_factory.mktemp("site")
    environment = {x: y for x, y in os.environ.items() if x != "JAXDAE_EXECUTE"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def window(look):
    """A browser, for all tests: it takes a second to start."""
    if look.chromium() is None:
        pytest.skip("there is no Chromium on this machine: nothing shows the pages")
    with look.browser() as started:
        yield started


@pytest.fixture(scope="module")
def narrow(look, window):
    """An empty page on the screen of a telephone whose owner likes it dark."""
    with look.screen(window, look.SCREENS["narrow"]) as page:
        yield page


@pytest.mark.slow
def test_the_site_is_built_and_every_link_leads_to_a_place_that_is_there(site, links, look):
    assert list(links.broken(site)) == []
    assert list(links.undescribed(site)) == []
    assert {"", "gallery/", "tutorials/00_from_zero/", "api/jaxdae/simulate/"} < {*look.pages(site)}


@pytest.mark.slow
def test_a_browser_finds_no_fault_with_any_page(site, look, narrow):
    """Narrow: what is too wide shows there first."""
    urls = look.of_different_kinds(site)
    assert len(urls) > 50
    with look.served(site) as root:
        assert [(url, x) for url in urls for x in look.faults(narrow, root + url)] == []


# Words that a user would look for, and the page that he should find among the first three.
SEARCHED = {
    "singular position": "concepts/singular/",
    "choose gains": "howto/gains/",
    "consistent_state": "api/jaxdae/consistent_state/",
    "ball and beam": "tutorials/02_shulgin_ball_beam/",
    "Hairer Wanner": "references/",
    "identify parameters": "howto/identify/",
    "read a warning": "howto/warnings/",
    "glossary": "glossary/",
}


@pytest.mark.slow
def test_the_search_answers_with_the_page_that_one_looks_for(site, look, window):
    with look.served(site) as root, look.screen(window, look.SCREENS["wide"]) as page:
        page.goto(root)
        for words, url in SEARCHED.items():
            pages = list(dict.fromkeys(x.split("#")[0] for x in look.search(page, words)))
            assert root + url in pages[:3], (words, pages[:5])


@pytest.mark.slow
def test_colours_are_those_of_the_system_until_they_are_changed_and_then_kept(site, look, window):
    with look.served(site) as root, look.screen(window, look.SCREENS["narrow"]) as page:
        page.goto(root)
        assert look.toggled(page) == ("slate", "default")
        page.goto(root + "faq/")
        assert page.evaluate(look.COLOURS) == "default"
        assert look.toggled(page) == ("default", "slate")
