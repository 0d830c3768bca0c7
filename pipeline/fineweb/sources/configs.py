"""Which files a config of a hub repository has: what its own YAML says, read by `datasets`.

- Names and paths come from the repository's card and listing; no rule of ours guesses a folder.
- Nothing is downloaded for it but the card: `datasets` resolves patterns against empty files with
  the names of the listing.

Usage: `files_of("sample-10BT", tree, card)` gives paths, or None if there is no such config.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path


def files_of(name: str, tree: Iterable[str], card: str) -> list[str] | None:
    """Paths of a config's files in the repository; None if the card names no such config."""
    import datasets

    with tempfile.TemporaryDirectory(prefix="tangobench-") as place:
        root = Path(place).resolve()
        for path in tree:
            if not {"", ".", ".."} & set(path.split("/")):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).touch()
        (root / "README.md").write_text(card, encoding="utf-8")
        try:
            if name not in datasets.get_dataset_config_names(str(root)):
                return None
            builder = datasets.load_dataset_builder(
                str(root), name=name, cache_dir=str(root / ".cache")
            )
        except Exception as error:
            unread = (ValueError, OSError, datasets.exceptions.DatasetsError)
            if isinstance(error, unread) or type(error).__module__.startswith("yaml."):
                return None  # a card or a layout that `datasets` cannot read names no config
            raise
        files = builder.config.data_files or {}
        paths = {
            Path(path).relative_to(root).as_posix() for part in files.values() for path in part
        }
    return sorted(paths)
