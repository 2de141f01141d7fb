"""Opens the built site in a browser, says what is wrong, and takes pictures of its pages.

Errors and warnings of the console, requests that fail or leave the site, missing pictures, pages
wider than the screen, a search that does not answer, colours that are not kept.

    mkdocs build && python docs/scripts/look.py              # all pages, two screens
    python docs/scripts/look.py --out pictures gallery faq   # these, with pictures of them
"""

import argparse
import functools
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
# A machine that does other things beside may be slow; a page that hangs is still found.
PATIENCE = 120_000  # ms
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Addresses elsewhere are answered by nobody, at once, whether or not there is a network.
ARGUMENTS = ("--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
# What a page still waits for when the next one is opened is no fault of either.
LEFT = "net::ERR_ABORTED"
# Pictures that cannot be drawn, those not yet on the screen among them.
MISSING = """async () => {
  const missing = [];
  for (const x of document.images) x.loading = "eager";
  await Promise.all([...document.images].map(x => x.decode().catch(() => missing.push(x.src))));
  return missing;
}"""
# What reaches beyond the screen: nobody sees it, unless it is in a part that scrolls.
BEYOND = """() => {
  const wide = [], edge = document.documentElement.clientWidth + 1;
  const scrolls = x => ["auto", "scroll"].includes(getComputedStyle(x).overflowX);
  const root = document.documentElement;
  const within = x => x && x !== root && (scrolls(x) || within(x.parentElement));
  for (const x of (document.querySelector("main") || document.body).querySelectorAll("*")) {
    const box = x.getBoundingClientRect();
    if (box.width && box.right > edge && !within(x.parentElement) && !scrolls(x))
      wide.push(`${x.localName} reaches to ${Math.round(box.right)} of ${edge - 1} pixels`);
  }
  return wide.slice(0, 1);
}"""
COLOURS = "() => document.body.dataset.mdColorScheme"
RESULTS = ".md-search-result__item > a"


class Screen(NamedTuple):
    """What a page is shown on.

    Args:
        width: in pixels.
        height: in pixels.
        scheme: which colours its owner likes.
    """

    width: int
    height: int
    scheme: Literal["light", "dark"]


# Each page reads the words of all for the search, which takes longer than to show it.
WORDS = "**/search_index.json"
NO_WORDS = {
    "config": {"lang": ["en"], "separator": "[\\s]+", "pipeline": [], "fields": {"title": {}}},
    "docs": [],
}

SCREENS = {
    "wide": Screen(1280, 900, "light"),
    "narrow": Screen(390, 844, "dark"),
    "wide-dark": Screen(1280, 900, "dark"),
    "narrow-light": Screen(390, 844, "light"),
}


class Quiet(SimpleHTTPRequestHandler):
    """Serves the site without a line for each request."""

    def log_message(self, format: str, *args) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Address under which a folder is to be read, on this machine alone."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def chromium() -> str | None:
    """The program: of the machine, or else the one that playwright has installed."""
    for program in PROGRAMS:
        if path := shutil.which(program):
            return path
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if os.access(path, os.X_OK) else None


@contextmanager
def browser(program: str | None = None) -> Iterator[Browser]:
    """A browser without a window.

    Raises:
        FileNotFoundError: if there is no Chromium.
    """
    program = program or chromium()
    if program is None:
        raise FileNotFoundError("no Chromium: install Debian's, or `playwright install chromium`")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=program, args=ARGUMENTS, timeout=PATIENCE
        )
        yield started
        started.close()


@contextmanager
def screen(window: Browser, of: Screen) -> Iterator[Page]:
    """An empty page on a screen, without anything kept from pages before."""
    context = window.new_context(
        viewport={"width": of.width, "height": of.height}, color_scheme=of.scheme
    )
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()


def faults(page: Page, address: str) -> list[str]:
    """What is wrong with one page, which is shown afterwards."""
    seen: list[str] = []
    root = "/".join(address.split("/")[:3]) + "/"
    ours = (root, "data:", "blob:")
    heard = {
        "console": lambda x: x.type in {"error", "warning"} and seen.append(f"{x.type}: {x.text}"),
        "pageerror": lambda x: seen.append(f"error: {x}"),
        "requestfailed": lambda x: x.failure == LEFT or seen.append(f"failed: {x.url}"),
        "request": lambda x: x.url.startswith(ours) or seen.append(f"elsewhere: {x.url}"),
        "response": lambda x: x.ok or x.status == 304 or seen.append(f"{x.status}: {x.url}"),
    }
    for event, listener in heard.items():
        page.on(event, listener)  # pyright: ignore[reportArgumentType, reportCallIssue]
    page.route(WORDS, lambda x: x.fulfill(json=NO_WORDS))
    page.goto(address)
    page.unroute(WORDS)
    seen += [f"no picture: {x}" for x in page.evaluate(MISSING)]
    seen += page.evaluate(BEYOND)
    for event, listener in heard.items():
        page.remove_listener(event, listener)
    return seen


def search(page: Page, words: str) -> list[str]:
    """Addresses with which the site that is shown answers, the best first."""
    field = page.locator(".md-search__input")
    # It looks at its words when a key is let go: once, so that none answers for half of them.
    field.fill("")
    field.press("Shift")
    page.wait_for_function(f"() => !document.querySelector('{RESULTS}')")
    field.fill(words)
    field.press("Shift")
    page.wait_for_selector(RESULTS, state="attached")
    return page.eval_on_selector_all(RESULTS, "all => all.map(x => x.href.split('?')[0])")


def toggled(page: Page) -> tuple[str, str]:
    """Colours before and after a click on what changes them."""
    before = page.evaluate(COLOURS)
    page.locator("label[for^=__palette]:visible").click()
    page.wait_for_function(f"before => ({COLOURS})() !== before", arg=before)
    return before, page.evaluate(COLOURS)


def pages(site: Path) -> list[str]:
    """Addresses of all pages, relative to that of the site, in alphabetical order."""
    every = (x.parent.relative_to(site).as_posix() for x in site.rglob("index.html"))
    return sorted("" if x == "." else f"{x}/" for x in every)


def of_different_kinds(site: Path) -> list[str]:
    """Those written by hand; of the entries of names, which are made by one rule, each 40th."""
    return [x for i, x in enumerate(pages(site)) if not x.startswith("api/") or i % 40 == 0]


def main() -> int:
    """Look at pages; one if there is a fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", help="such as home or howto/gains; else of each kind")
    parser.add_argument("--site", type=Path, default=SITE, help="folder of the built site")
    parser.add_argument("--out", type=Path, default=None, help="folder of pictures")
    parser.add_argument("--chromium", default=None, help="program of the browser")
    parser.add_argument("--screens", nargs="*", choices=SCREENS, default=["wide", "narrow"])
    options = parser.parse_args()
    chosen = ["" if x == "home" else f"{x.strip('/')}/" for x in options.pages]
    count = 0
    with browser(options.chromium) as window, served(options.site) as root:
        for name in options.screens:
            with screen(window, SCREENS[name]) as page:
                for url in chosen or of_different_kinds(options.site):
                    found = faults(page, root + url)
                    count += len(found)
                    print(*(f"{name} /{url}: {x}" for x in found), sep="\n", end="\n" * bool(found))
                    if options.out is not None:
                        file = f"{url.strip('/').replace('/', '_') or 'home'}-{name}.png"
                        page.screenshot(path=options.out / file, full_page=True)
    print(f"{count} faults")
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main())
