"""Files that are complete at every moment."""

import os
from pathlib import Path


def replace_file(path: str | Path, data: bytes) -> None:
    """Write a file so that at every moment it is the old one or the new one, complete.

    Args:
        path: the file; its folder must exist.
        data: the whole new content.

    Raises:
        OSError: if it cannot be written; the old file is left as it is.
    """
    # Same folder, hence same file system: os.replace is atomic only within one. The name is
    # fixed, so a file left over by a killed process is reused and not piled up.
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, after files in it were made or renamed.

    Args:
        folder: the folder.
    """
    # Windows cannot open folders and needs no such call.
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
