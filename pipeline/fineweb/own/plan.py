"""What a build of your own documents would read and take: an estimate from file sizes."""

from __future__ import annotations

from typing import Any, Final

from tangobench.pipeline.fineweb.own.convert import find_files
from tangobench.pipeline.fineweb.own.readers import rows_of
from tangobench.pipeline.fineweb.own.spec import Spec

_PACKED: Final = 3.0  # text bytes per byte of a compressed file
_START: Final = 1.0  # seconds: imports, the encoder, publishing
_RATE: Final = 20e6  # bytes of text per core-second: read, convert, encode, pack
_TOKEN_BYTES: Final = 4.2


def plan(spec: Spec, source: str | None, workers: int) -> dict[str, Any]:
    """Totals and lines to print; the first row of every file is read, so `build` will too."""
    del workers
    files = find_files(source or spec.files)
    for path in files:
        next(rows_of(path, spec.columns.named()), None)
    size = sum(path.stat().st_size for path in files)
    text = sum(
        path.stat().st_size * (_PACKED if path.suffix in (".gz", ".zst", ".bz2", ".parquet") else 1)
        for path in files
    )
    rows = min(int(text / _TOKEN_BYTES / spec.context), spec.train_rows + spec.validation_rows)
    return {
        "rows": rows,
        "read_bytes": 2 * size,
        "disk_bytes": int(text + 4 * rows * spec.context),
        "memory_bytes": 600_000_000,
        "core_seconds": _START + text / _RATE,
        "lines": [f"input    {len(files)} file{'s' if len(files) != 1 else ''}"],
    }
