"""Where the links and pictures of the built site lead, without a browser."""

import posixpath
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote

TARGET = re.compile(r'<[a-z][^<>]*?\s(?:href|src)="([^"]*)"')
PLACE = re.compile(r'<[a-z][^<>]*?\s(?:id|name)="([^"]*)"')
ELSEWHERE = re.compile(r"[a-z]+:")


def broken(site: Path) -> Iterator[str]:
    """Links to files or places that are not there, with the page that has them."""
    # What browsers show for an address that is not there has absolute links, which need a server.
    texts = {
        x.relative_to(site).as_posix(): x.read_text()
        for x in sorted(site.rglob("*.html"))
        if x.name != "404.html"
    }
    places = {page: {*map(unescape, PLACE.findall(text))} for page, text in texts.items()}
    for page, text in texts.items():
        for target in dict.fromkeys(map(unescape, TARGET.findall(text))):
            if not ELSEWHERE.match(target) and not _leads(site, page, target, places):
                yield f"{page}: {target}"


def _leads(site: Path, page: str, target: str, places: dict[str, set[str]]) -> bool:
    path, _, place = target.partition("#")
    path = unquote(path.partition("?")[0])
    file = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    if path.endswith("/") or file == "." or (site / file).is_dir():
        file = posixpath.normpath(posixpath.join(file, "index.html"))
    if file not in places:
        return not place and (site / file).is_file()
    return not place or unquote(place) in places[file]


def undescribed(site: Path) -> Iterator[str]:
    """Pictures without words for those who do not see them."""
    for page in sorted(site.rglob("*.html")):
        for tag in re.findall(r"<img\s[^>]*>", page.read_text()):
            if not re.search(r'\salt="[^"]', tag):
                yield f"{page.relative_to(site).as_posix()}: {tag}"
