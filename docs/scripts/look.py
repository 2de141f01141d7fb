"""Opens the built site in a browser, wide and light, narrow and dark, and says what is wrong.

Errors of the console, requests that fail or leave the site, missing pictures, pages wider
than the screen, a search that does not answer. Needs `pip install playwright` and a Chromium.

    mkdocs build && python docs/scripts/look.py --chromium /usr/bin/chromium [--out pictures]
"""

import argparse
import functools
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
SCREENS = {"wide": (1280, 900, "light"), "narrow": (390, 844, "dark")}
MISSING = "[...document.images].filter(x => !x.complete || !x.naturalWidth).map(x => x.src)"
TOO_WIDE = "document.documentElement.scrollWidth - window.innerWidth"


class Quiet(SimpleHTTPRequestHandler):
    """Serves the site without a line for each request."""

    def log_message(self, format: str, *args) -> None:
        """Nothing."""


def faults(page: Page, address: str) -> Iterator[str]:
    """What is wrong with one page."""
    seen: list[str] = []
    page.on("console", lambda x: seen.append(x.text) if x.type in {"error", "warning"} else None)
    page.on("requestfailed", lambda x: seen.append(f"failed: {x.url}"))
    page.on("request", lambda x: seen.append(x.url) if "127.0.0.1" not in x.url else None)
    page.goto(address, wait_until="networkidle")
    yield from (x for x in seen if not x.startswith(("data:", "blob:")))
    yield from (f"no picture: {x}" for x in page.evaluate(MISSING))
    if (beyond := page.evaluate(TOO_WIDE)) > 0:
        yield f"{beyond} pixels wider than the screen"


def search(page: Page, address: str, words: str) -> int:
    """Number of results of the search of the site."""
    page.goto(address, wait_until="networkidle")
    page.keyboard.press("/")
    page.locator(".md-search__input").press_sequentially(words)
    page.wait_for_selector(".md-search-result__item", timeout=15000)
    return page.locator(".md-search-result__item").count()


def main() -> int:
    """Look at all pages; the number of faults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--chromium", default=None, help="program; by default playwright's own")
    parser.add_argument("--out", type=Path, default=None, help="folder of pictures")
    options = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_port}/"
    urls = [x.parent.relative_to(SITE).as_posix() for x in sorted(SITE.rglob("index.html"))]
    count = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=options.chromium, args=["--no-sandbox"]
        )
        for screen, (width, height, scheme) in SCREENS.items():
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=scheme,  # pyright: ignore[reportArgumentType]
            )
            # Of the entries of the API, which have one template, every tenth.
            for url in [x for i, x in enumerate(urls) if not x.startswith("api/") or i % 10 == 0]:
                page = context.new_page()
                for fault in faults(page, f"{root}{url}/"):
                    print(f"{screen} {url}: {fault}")
                    count += 1
                if options.out is not None:
                    name = f"{url.replace('/', '_').strip('.') or 'home'}-{screen}.png"
                    page.screenshot(path=options.out / name)
                page.close()
            answers = search(context.new_page(), root, "singular position")
            print(f"{screen}: {len(urls)} pages, search answers with {answers} results")
        browser.close()
    return count


if __name__ == "__main__":
    sys.exit(min(main(), 1))
