"""Pages of the notebooks: as they are written, or executed with their outputs.

`JAXDAE_EXECUTE=1 mkdocs build` executes them, which takes minutes; without it pages have the text
and the code. The tests execute all of them.
"""

import os
from collections.abc import Iterator

import jupytext
from names import ROOT
from nbclient import NotebookClient
from nbconvert import MarkdownExporter


def pages() -> Iterator[tuple[str, str | bytes]]:
    """Paths below `docs/` and contents, pictures among them."""
    for source in sorted((ROOT / "notebooks").glob("[0-9]*.py")):
        notebook = jupytext.read(source)
        if os.environ.get("JAXDAE_EXECUTE"):
            NotebookClient(notebook, timeout=1800).execute(cwd=str(ROOT))
        text, resources = MarkdownExporter().from_notebook_node(
            notebook, {"unique_key": source.stem, "output_files_dir": source.stem}
        )
        yield f"tutorials/{source.stem}.md", text.replace(f"]({source.stem}/", f"]({source.stem}/")
        for name, data in resources.get("outputs", {}).items():
            yield f"tutorials/{name}", data
