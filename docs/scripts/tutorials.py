"""Pages of the notebooks, with the outputs that their last execution left.

python docs/scripts/tutorials.py             # notebooks whose code changed since
python docs/scripts/tutorials.py 04_servo    # these
python docs/scripts/tutorials.py --all       # everything, after changes of the library

Outputs are committed in `docs/data/tutorials/`: the site is built without running anything.
`JAXDAE_EXECUTE=1 mkdocs build` executes the notebooks anew. The tests execute all of them.
"""

import argparse
import ast
import base64
import hashlib
import io
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jupytext
from names import ROOT

SOURCES = ROOT / "notebooks"
KEPT = ROOT / "docs" / "data" / "tutorials"
LOG = logging.getLogger("mkdocs.site")
REMEDY = "python docs/scripts/tutorials.py"


class Output(NamedTuple):
    """What a cell shows at one place.

    Args:
        text: as it is printed; empty for a picture.
        picture: a PNG; empty for a text.
    """

    text: str = ""
    picture: bytes = b""


Outputs = list[list[Output]]  # of each cell with code


def names() -> list[str]:
    """Of all notebooks, in their order."""
    return sorted(x.stem for x in SOURCES.glob("[0-9]*.py"))


def read(name: str):
    """A notebook, from its text."""
    return jupytext.read(SOURCES / f"{name}.py")


def fingerprint(name: str) -> str:
    """Of the code of a notebook: its text may change without an execution."""
    code = [x.source for x in read(name).cells if x.cell_type == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def stale() -> list[str]:
    """Notebooks whose outputs are not there, or are those of other code."""
    return [x for x in names() if _record(x).get("code") != fingerprint(x)]


def _record(name: str) -> dict:
    file = KEPT / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def kept(name: str) -> Outputs:
    """Those of the last execution."""
    folder = KEPT / name
    return [[_output(folder, x) for x in cell] for cell in _record(name)["outputs"]]


def _output(folder: Path, record: dict[str, str]) -> Output:
    if "picture" in record:
        return Output(picture=(folder / record["picture"]).read_bytes())
    return Output(text=record["text"])


def executed(name: str, after_cell: Callable[..., object] | None = None) -> Outputs:
    """Those of an execution now, in a kernel of its own and a folder that is removed.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell raises.
        RuntimeError: if a cell writes to the error stream, which pages do not show.
    """
    from nbclient import NotebookClient

    notebook = read(name)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(x for x in paths if x),
        # Most programs run for milliseconds, and compile for seconds with all optimizations.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    environment.pop("MPLBACKEND", None)  # pictures belong into the notebook
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=3600,
            coalesce_streams=True,  # however many messages a cell's prints come in
            on_cell_executed=after_cell,
            resources={"metadata": {"path": folder}},
            extra_arguments=["--InlineBackend.figure_formats=retina", "--log-level=40"],
        )
        client.execute(env=environment)
    return [[*_shown(name, x)] for x in notebook.cells if x.cell_type == "code"]


def _shown(name: str, cell) -> Iterator[Output]:
    for x in cell.outputs:
        if x.output_type == "stream" and x.name == "stderr":
            raise RuntimeError(
                f"{name}: this cell writes to the error stream, which pages do not show:\n"
                f"{cell.source}\n---\n{x.text}"
            )
        if x.output_type == "stream":
            yield Output(text=x.text)
        elif "image/png" in x.data:
            yield Output(picture=_small(base64.b64decode(x.data["image/png"])))
        else:
            yield Output(text=x.data["text/plain"])


def _small(picture: bytes) -> bytes:
    """With fewer points and colours."""
    from pictures import small_png
    from PIL import Image

    return small_png(Image.open(io.BytesIO(picture)))


def keep(name: str, outputs: Outputs) -> None:
    """Write outputs to where the pages are made from, in the place of those before."""
    folder = KEPT / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    records = []
    for i, cell in enumerate(outputs):
        records.append([{"text": x.text} if x.text else {"picture": f"{i}-{j}.png"}
                        for j, x in enumerate(cell)])  # fmt: skip
        for record, output in zip(records[-1], cell, strict=True):
            if output.picture:
                (folder / record["picture"]).write_bytes(output.picture)
    record = {"code": fingerprint(name), "outputs": records}
    (KEPT / f"{name}.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def pages() -> Iterator[tuple[str, str | bytes]]:
    """Paths below `docs/` and contents, pictures among them."""
    without = stale()
    for name in names():
        if os.environ.get("JAXDAE_EXECUTE"):
            outputs = executed(name)
        elif name in without:
            LOG.warning("the outputs of notebook %s are of other code: %s %s", name, REMEDY, name)
            outputs = []
        else:
            outputs = kept(name)
        yield from page(name, outputs)


def page(name: str, outputs: Outputs) -> Iterator[tuple[str, str | bytes]]:
    """The pictures of a notebook and its page."""
    left, pictures, heading, parts = iter(outputs), 0, "", []
    for cell in read(name).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            heading = ([heading, *re.findall(r"^#+ (.*)", cell.source, re.MULTILINE)])[-1]
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in next(left, []):
            if output.picture:
                path = f"{name}/{pictures}.png"
                parts.append(f"![{_title(cell.source) or heading}]({path})")
                yield f"tutorials/{path}", output.picture
                pictures += 1
            else:
                parts.append(f"``` {{ .text .output .no-copy }}\n{output.text.rstrip()}\n```")
    yield f"tutorials/{name}.md", "\n\n".join(parts) + "\n"


def _title(source: str) -> str:
    """The title that code gives its picture."""
    code = "\n".join(x for x in source.splitlines() if not x.startswith("%"))
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.keyword) and node.arg == "title":
            return str(node.value.value) if isinstance(node.value, ast.Constant) else ""
    return ""


def main() -> None:
    """Execute what is to be executed, and keep its outputs."""
    from tqdm import tqdm

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *names()], help="else what changed")
    parser.add_argument("--all", action="store_true", help="everything")
    options = parser.parse_args()
    chosen = names() if options.all else options.names or stale()
    cells = sum(x.cell_type == "code" for name in chosen for x in read(name).cells)
    with tqdm(total=cells, unit="cell") as bar:
        for name in chosen:
            bar.set_description(name)
            keep(name, executed(name, lambda **_: bar.update()))
    size = sum(x.stat().st_size for x in KEPT.rglob("*") if x.is_file())
    print(f"{len(chosen)} executed, {len(names())} in all, {size / 1e6:.2f} MB in {KEPT}")


if __name__ == "__main__":
    main()
