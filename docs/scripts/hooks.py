"""What MkDocs calls while it builds the site: pages that are made, equations, references."""

import logging
import re
import sys
from html import escape, unescape
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs takes it out again after this file

import bibliography
import copies
import gallery
import measured
import reference
import suite_pages
import tutorials

MAKERS = (reference, bibliography, tutorials, copies, gallery, suite_pages)
LOG = logging.getLogger("mkdocs.site")
EQUATION = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
KEYS = "|".join(bibliography.entries())
OF_OTHERS = ("The code continues", "Part of")  # what paragraphs begin with that say where one is
PARAGRAPH, TAG = re.compile(r"<p>(.*?)</p>", re.DOTALL), re.compile(r"<[^>]*>")
NO_TEXT = re.compile(r"(<pre.*?</pre>|<code.*?</code>|<a .*?</a>|<[^>]*>)", re.DOTALL)
CITED = re.compile(rf"(?<=[\[ ])({KEYS})(?=[^\[\]<>]*\])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages that are made from the package, the notebooks and committed numbers."""
    for maker in MAKERS:
        for uri, content in maker.pages():
            files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:  # noqa: ARG001 - MkDocs' signature
    """Numbers in their places."""
    return measured.filled(markdown)


def on_page_content(html: str, page, config, files) -> str:  # noqa: ARG001 - MkDocs' signature
    """Equations as MathML, which browsers set without a script; citations as links."""
    page.meta.setdefault("description", described(html))
    return linked(EQUATION.sub(_mathml, html), page.url)


def described(html: str) -> str:
    """The first sentences of a page, for lists of pages elsewhere: what searches show of it."""
    texts = (" ".join(unescape(TAG.sub("", x)).split()) for x in PARAGRAPH.findall(html))
    first = next((x for x in texts if len(x) > 20 and not x.startswith(OF_OTHERS)), "")
    return escape(first if len(first) <= 160 else first[:160].rpartition(" ")[0] + " …")


def linked(html: str, url: str) -> str:
    """`[Baumgarte1972, eq. 3]` with a link to its entry, but for code, links and what tags say."""
    up = "../" * url.count("/")
    parts = NO_TEXT.split(html)
    for i in range(0, len(parts), 2):
        parts[i] = CITED.sub(rf'<a href="{up}references/#\1">\1</a>', parts[i])
    return "".join(parts)


def _mathml(match: re.Match) -> str:
    """One equation; what cannot be converted is reported, and shown as it is written."""
    text = unescape(match[2]).strip()
    source, display = text[2:-2].strip(), "block" if match[1] == "div" else "inline"
    try:
        made = convert(source, display=display)
        # Only a box around it scrolls.
        return f'<div class="equation">{made}</div>' if display == "block" else made
    except Exception as error:  # Any: the page must say which equation it is.
        LOG.warning("equation %r: %s", source, error)
        return f"<code>{escape(source)}</code>"
