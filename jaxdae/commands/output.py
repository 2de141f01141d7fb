"""The folder that a command writes to."""

import tempfile
from pathlib import Path


def output_folder(chosen: str | None, model_name: str) -> Path:
    """Where a command writes: what the user gives, or `results/MODEL`. Makes nothing yet."""
    path = Path(chosen or f"results/{model_name}")
    for place in (path, *path.parents):
        if place.is_file():
            raise ValueError(
                f"cannot write to the folder {path}: {place} is a file; give another --out."
            )
    there = next(place for place in (path, *path.absolute().parents) if place.is_dir())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write to the folder {path}: {there} takes no files ({error.strerror}); give "
            "another --out."
        ) from error
    return path
