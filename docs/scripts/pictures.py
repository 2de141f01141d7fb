"""Small copies of pictures, for files that are committed."""

import io

from PIL import Image

# As wide as twice the column of a page, for screens with fine pixels.
WIDTH, COLOURS = 1400, 96


def small_png(image: Image.Image) -> bytes:
    """A PNG with fewer points and colours.

    Each colour stays near its own, however few points have it: a median cut, which is usual, gives
    thin curves the colours of others.
    """
    image = image.convert("RGB")
    image.thumbnail((WIDTH, 4 * WIDTH))
    out = io.BytesIO()
    reduced = image.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE)
    reduced.save(out, "png", optimize=True)
    return out.getvalue()
