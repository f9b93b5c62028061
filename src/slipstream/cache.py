"""The user's cache folder, and folders in it that are built once."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """Return `SLIPSTREAM_CACHE`, else `slipstream` in the user's cache folder."""
    root = os.environ.get("SLIPSTREAM_CACHE")
    return Path(root) if root else Path.home() / ".cache" / "slipstream"


def build_once(folder: Path, write: Callable[[Path], None], marker: str) -> Path:
    """Return `folder`, written first if it lacks the file `marker`: by one process at a time; a build that
    dies leaves nothing behind."""
    if (folder / marker).exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / marker).exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                draft = Path(scratch) / folder.name
                draft.mkdir()
                write(draft)
                shutil.rmtree(folder, ignore_errors=True)
                draft.rename(folder)
    return folder
