"""MDN's pages in six yearly snapshots, as the input of `manifests/mdn.toml`.

- Snapshots are commits of mdn/content; a page's address is its slug, its time the snapshot's date.
- The text is the page's Markdown under its title. Pages by themselves are CC-BY-SA 2.5.

Usage: `python bench/mdn.py path/to/content mdn.parquet`, with a clone that has its history.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import git
import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.pipeline.lean.git import opened

SNAPSHOTS: Final = {
    "2021-12-31": "9c992e61b5fb15cef3b170eeb9cf7600321a5434",
    "2022-12-30": "a7117b5b167f78ccf60d1466ddc386a6ef96aa60",
    "2023-12-31": "2fd17e35cfff23961e137fa32fe2348fda28f453",
    "2024-12-31": "53c832f09b5f55b2cbe040907bff8abfb7b57f72",
    "2025-12-31": "373b648fd3f8f742aac14180ebe4ab2e07f8dfab",
    "2026-08-22": "b2c48c8b7c097aeab4bc15a388c913f466f40e25",
}
_FOLDER: Final = "files/en-us"
_PAGE: Final = re.compile(r"---\n(.*?)\n---\n(.*)", re.DOTALL)
_FIELD: Final = {
    name: re.compile(rf"^{name}: *[\"']?(.*?)[\"']?$", re.MULTILINE) for name in ("title", "slug")
}


def pages(repository: git.Repo, date: str, commit: str) -> Iterator[dict[str, str]]:
    """The Markdown pages of one snapshot, in the order of their paths."""
    for blob in repository.commit(commit).tree.join(_FOLDER).traverse():
        if blob.type != "blob" or not blob.path.endswith("index.md"):
            continue
        page = _PAGE.match(blob.data_stream.read().decode("utf-8", "replace"))
        found = {name: rule.search(page[1]) for name, rule in _FIELD.items()} if page else {}
        if page and all(found.values()):
            title, slug = (match[1] for match in found.values())
            yield {
                "id": f"{commit[:12]}/{blob.path}",
                "url": f"https://developer.mozilla.org/en-US/docs/{slug}",
                "time": date,
                "text": f"# {title}\n\n{page[2].strip()}\n",
            }


def main(clone: str, target: str) -> None:
    """Write all snapshots into one Parquet file."""
    partial = Path(target).with_suffix(".partial")
    schema = pa.schema(dict.fromkeys(("id", "url", "time", "text"), pa.string()))
    inside = Path(clone) / ".git"
    with (
        opened(inside if inside.is_dir() else Path(clone)) as repository,
        pq.ParquetWriter(partial, schema, compression="snappy") as writer,
    ):
        for date, commit in SNAPSHOTS.items():
            table = pa.Table.from_pylist(list(pages(repository, date, commit)), schema)
            writer.write_table(table, row_group_size=1000)
            print(f"{date} {table.num_rows:7,} pages {table.nbytes / 1e6:7.1f} MB")
    partial.rename(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
