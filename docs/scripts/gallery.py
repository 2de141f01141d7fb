"""The gallery: films of mechanisms, each by the script beside it, and their page.

python docs/scripts/gallery.py              # what changed since it was built
python docs/scripts/gallery.py four_bar     # these
python docs/scripts/gallery.py --all        # everything, after changes of the library

A film is built again where its script or `draw.py` changed. Films are committed: together they are
small, and the site is built without running anything.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import os
import runpy
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

from names import ROOT

FOLDER = ROOT / "docs" / "gallery"
IMAGES = FOLDER / "images"
BUILT = ROOT / "docs" / "data" / "gallery.json"
HELPER = "draw"
# On the page in this order.
GROUPS = {
    "Linkages": (
        "pendulum", "chain", "slider_crank", "motor", "four_bar", "andrews", "peaucellier",
        "jansen", "leg", "platform_on_cranks", "pump",
    ),
    "Arms and controllers": (
        "five_bar", "ball_beam", "mirror", "regulator", "arm", "surface_arm", "two_link_again",
        "two_link_lost", "crank_swing_up",
    ),
    "Rolling and spinning": (
        "disk", "sleigh", "knife_edge", "robot", "constant_speed", "appell_hamel", "t_handle",
        "bicycle", "trailer",
    ),
    "Side by side": ("drift", "kepler", "tuned", "identified", "design"),
    "Batches": ("fan", "sleighs"),
}  # fmt: skip
HEAD = """# Gallery

Mechanisms in motion. Each film is made by the script under it, which runs beside
[`draw.py`](#draw), the only helper; `python docs/scripts/gallery.py` builds all of them.
"""


class Film(NamedTuple):
    """A script and what it says of itself.

    Args:
        name: of its file, without the suffix.
        title: first line of its docstring.
        caption: the other lines.
        source: its text.
    """

    name: str
    title: str
    caption: str
    source: str


def films() -> dict[str, Film]:
    """All of the gallery by name, in the order of the page."""
    return {name: _film(name) for names in GROUPS.values() for name in names}


def _film(name: str) -> Film:
    source = (FOLDER / f"{name}.py").read_text()
    title, _, caption = (ast.get_docstring(ast.parse(source)) or "").partition(".\n\n")
    return Film(name, title, " ".join(caption.split()), source)


def fingerprint(film: Film) -> str:
    """Of what a film is made of, the library aside."""
    text = film.source + _film(HELPER).source
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def built() -> dict[str, str]:
    """Fingerprints of the films that were built."""
    return json.loads(BUILT.read_text()) if BUILT.exists() else {}


def stale() -> list[str]:
    """Films that are to be built: without a picture, or of other scripts."""
    known = built()
    return [
        x.name
        for x in films().values()
        if known.get(x.name) != fingerprint(x) or not (IMAGES / f"{x.name}.gif").exists()
    ]


def build(name: str) -> None:
    """Run a script in the folder of the pictures, and note what it was made of."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    made_of = fingerprint(_film(name))
    sys.path.append(str(FOLDER))
    try:
        with contextlib.chdir(IMAGES):
            runpy.run_path(str(FOLDER / f"{name}.py"))
    finally:
        sys.path.remove(str(FOLDER))
    known = built() | {name: made_of}
    kept = {x: known[x] for x in films() if x in known}
    BUILT.write_text(json.dumps(kept, indent=1) + "\n")


def pages() -> Iterator[tuple[str, str]]:
    """Path below `docs/` and content of the gallery's page."""
    every = films()
    parts = [HEAD]
    for group, names in GROUPS.items():
        parts += [f"## {group}\n", '<div class="gallery">', *(_thumbnail(every[x]) for x in names)]
        parts += ["</div>\n", *(_script(every[x]) for x in names)]
    parts += ["## The helper { #draw }\n", _script(_film(HELPER))]
    yield "gallery.md", "\n".join(parts)


def _thumbnail(film: Film) -> str:
    image = IMAGES / f"{film.name}.gif"
    width, height = struct.unpack("<HH", image.read_bytes()[6:10])  # of a GIF's header
    return (
        f'<figure id="{film.name}"><img src="images/{image.name}" alt="{film.title}" '
        f'width="{width}" height="{height}" loading="lazy">'
        f"<figcaption><strong>{film.title}</strong><br>{film.caption}</figcaption></figure>"
    )


def _script(film: Film) -> str:
    code = "\n".join(f"    {line}".rstrip() for line in film.source.splitlines())
    return f'??? example "{film.title}: `{film.name}.py`"\n\n    ```python\n{code}\n    ```\n'


def main() -> None:
    """Build what is to be built."""
    from tqdm import tqdm

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *films()], help="which; else what changed")
    parser.add_argument("--all", action="store_true", help="everything")
    options = parser.parse_args()
    os.environ.setdefault("MPLBACKEND", "agg")
    chosen = list(films()) if options.all else options.names or stale()
    bar = tqdm(chosen, unit="film")
    for name in bar:
        bar.set_description(name)
        build(name)
    size = sum(x.stat().st_size for x in IMAGES.glob("*.gif"))
    print(f"{len(chosen)} built, {len(films())} in all, {size / 1e6:.2f} MB in {IMAGES}")


if __name__ == "__main__":
    main()
