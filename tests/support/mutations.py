"""Sixty ways to break the code, each with the tests that must notice: `make test-mutations`.

- A mutation is one replacement in one file, made in a copy of the project, never in the project.
- The tests must pass on the unchanged copy first; then one of them must fail on each mutation.
- A survivor is a guard that no test defends. The list was written before its first run.

Usage: `python tests/support/mutations.py [--no-control] [NAME …]`; it ends with 1 if one survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SKIPPED = (".git", ".venv", "out", "build", ".state", ".*_cache", "__pycache__", ".hypothesis")
SECONDS = 600


@dataclass(frozen=True, slots=True)
class Mutation:
    """`before` becomes `after` in `file`; one of `tests` (below tests/) must fail."""

    name: str
    file: str
    before: str
    after: str
    tests: str


HUB, CORE = "pipeline/fineweb/test_hub.py", "pipeline/core"
PUBLISH, REMOTE = f"{CORE}/test_publish_remote.py", f"{CORE}/test_remote.py"
FILES, CONTENTS = "security/test_files.py", "security/test_contents.py"
OWN, BATCHED = "pipeline/fineweb/own/test_own.py", "model/kernels/test_batched.py"
RANKS, TRAIN = "model/training/test_ranks.py", "model/training/test_train.py"
PLACE, PROCESS = "flows/local/test_place.py", "flows/local/test_process.py"
SOURCES, STORE = "pipeline/fineweb/sources", "pipeline/core/store.py"
DOOR, ROWS = "pipeline/core/files.py", "pipeline/core/shards.py"
SHARDS, PUBLISHING = "pipeline/core/shard_reader.py", "pipeline/core/publish.py"
KERNEL, NLL = "model/kernels/crossgate.py", "model/language.py"
WORLD, HOSTILE = "model/training/optim.py", "faults/test_own_data.py"
READERS, CONVERT = "pipeline/fineweb/own/readers.py", "pipeline/fineweb/own/convert.py"

NEWER = [
    # Downloads and the hub.
    ("hub-hash-skipped", f"{SOURCES}/download.py", "sha256_file(partial) == file.sha256",
     "sha256_file(partial) is not None", HUB),
    ("hub-range-forgotten", f"{SOURCES}/download.py", 'headers["Range"] = f', "_ = f", HUB),
    ("hub-range-off-by-one", f"{SOURCES}/download.py", 'f"bytes={start}-', 'f"bytes={start + 1}-',
     HUB),
    ("hub-other-commit", f"{SOURCES}/hub.py", "if found != expected:", "if False:",
     "faults/test_drift.py"),
    ("hub-token-to-storage", f"{SOURCES}/download.py", 'headers.pop("authorization", None)', "pass",
     HUB),
    ("hub-cache-of-any-size", f"{SOURCES}/hub.py", "file.size in (None, path.stat().st_size)",
     "True", "faults/test_downloads.py"),
    ("hub-never-patient", "pipeline/core/remote.py",
     "if status not in (408, 429) and status < 500:",
     "if status != 429:", HUB),
    ("hub-patience-not-reset", f"{SOURCES}/download.py", "patience.progressed()", "pass", HUB),
    ("hub-room-not-asked", f"{SOURCES}/download.py", "raise _no_room(repository, needed)",
     "pass", HUB),
    # Object storage.
    ("bucket-lock-unconditional", PUBLISHING,
     "(folder / LOCK_NAME).write(lock.to_bytes(), new=True)",
     "(folder / LOCK_NAME).write(lock.to_bytes())", PUBLISH),
    ("bucket-lock-first", PUBLISHING,
     "    _place_all(folder, files, store)\n",
     "    (folder / LOCK_NAME).write(lock.to_bytes())\n"
     "    _place_all(folder, files, store)\n", PUBLISH),
    ("bucket-old-lock-kept", PUBLISHING,
     "(folder / LOCK_NAME).remove()  # from here", "pass  # from here", PUBLISH),
    ("bucket-mark-ignored", STORE, "return (size, mark) == (record.size, record.mark)",
     "return size == record.size", REMOTE),
    ("bucket-size-and-mark-ignored", STORE, "return (size, mark) == (record.size, record.mark)",
     "return True", REMOTE),
    ("bucket-read-unhashed", STORE, "if found != address:",
     "if False:", REMOTE),
    ("bucket-corrupt-object-kept", STORE, "(self.root / _object_name(address)).remove()", "pass",
     REMOTE),
    ("bucket-range-off-by-one", STORE, "read(start, start + length)",
     "read(start, start + length - 1)", f"{REMOTE} {CORE}/test_store.py"),
    ("bucket-cached-copy-unchecked", SHARDS,
     "        try:\n            return map_checked(kept.parent, here, what)",
     "        try:\n            return pa.py_buffer(kept.read_bytes())", PUBLISH),
    ("bucket-fetched-unhashed", SHARDS,
     "    _require_bytes(path, data, entry, what)\n    if not path.cached",
     "    if not path.cached", PUBLISH),
    # Files that somebody else put there.
    ("door-follows-links", DOOR,
     "return os.open(_blob(folder, path), _FLAGS | os.O_NOFOLLOW)", "return os.open(path, _FLAGS)",
     FILES),
    ("door-follows-folders", DOOR,
     "if stat.S_ISLNK(os.stat(step, dir_fd=place, follow_symlinks=False).st_mode):", "if False:",
     FILES),
    ("door-opens-fifos", DOOR, "if not stat.S_ISREG(mode):", "if False:", FILES),
    ("door-of-any-size", DOOR, "if found.st_size > limit:", "if False:", FILES),
    ("door-any-blob-folder", DOOR,
     'target.parent == place.parent.parent / "blobs"', 'target.parent.name == "blobs"', FILES),
    # Contents of rows.
    ("contents-nulls", ROWS,
     "if column.null_count or any(chunk.null_count for chunk in inner):",
     "if column.null_count:", CONTENTS),
    ("contents-vocabulary-off-by-one", ROWS, "0, self.vocabulary - 1)",
     "0, self.vocabulary)", CONTENTS),
    ("contents-empty-rows", ROWS, '"a length", lengths, 1,',
     '"a length", lengths, 0,', CONTENTS),
    ("contents-target-outside", ROWS, "np.flatnonzero(first >= lengths)",
     "np.flatnonzero(first > lengths)", CONTENTS),
    ("contents-spans", ROWS, "np.diff(starts) > 0", "np.diff(starts) >= 0",
     CONTENTS),
    ("contents-columns-swapped", ROWS,
     "schema.names != list(self.columns)", "set(schema.names) != set(self.columns)", CONTENTS),
    # Kernels.
    ("kernel-null-gradient", KERNEL, "dnull_H[cut.heads] += dnull",
     "dnull_H[cut.heads] -= dnull", BATCHED),
    ("kernel-last-part-lost", KERNEL, "for start in range(0, batch, step):",
     "for start in range(0, max(1, batch - 1), step):", BATCHED),
    ("kernel-padding-kept", KERNEL, "found[..., : target.shape[-1]]",
     "found[..., -target.shape[-1] :]", BATCHED),
    ("nll-target-off-by-one", NLL, "torch.full_like(log_total, -1.0)",
     "torch.full_like(log_total, -0.99)", "model/test_loss.py"),
    ("nll-embedding-of-one-part", NLL, "dembed.addmm_(dlogits.T.to(embed.dtype), ",
     "dembed.copy_(dlogits.T.to(embed.dtype) @ ", "model/test_loss.py"),
    # Ranks.
    ("ranks-one-ignored", WORLD, "_together(lambda: dist.all_reduce(flat))",
     "pass", f"{TRAIN}::test_two_processes_follow_the_curve_of_one"),
    ("ranks-do-not-compare", WORLD, "if len(set(places)) > 1:",
     "if False:", f"{RANKS}::test_ranks_that_begin_elsewhere_stop_all"),
    ("ranks-lost-untyped", WORLD, "except RuntimeError as error:",
     "except ZeroDivisionError as error:",
     f"{RANKS}::test_a_killed_rank_ends_the_others_and_the_command_resumes"),
    # The local server and recording.
    ("server-state-of-any-process", "flows/local/place.py",
     "found.pid < 2 or found.command[1 : 1 + len(form)] != form", "False", PLACE),
    ("server-secret-for-all", "flows/local/place.py", "os.fchmod(file.descriptor, 0o600)",
     "os.fchmod(file.descriptor, 0o644)", PLACE),
    ("server-readable-secret-kept", "flows/local/place.py",
     "if found.st_mode & 0o077 or found.st_uid != os.geteuid():", "if False:", PLACE),
    ("server-reused-pid", "flows/local/process.py",
     "found is None or found.command != process.command:", "found is None:",
     f"{PLACE} {PROCESS}"),
    # Own data.
    ("own-batches-not-validated", READERS, "    batch.validate(full=True)\n", "",
     HOSTILE),
    ("own-line-without-end", READERS, "len(line) > _LONGEST and not", "False and", HOSTILE),
    ("own-share-reversed", CONVERT, "share < spec.split.share", "share >= spec.split.share", OWN),
    ("own-cut-off-by-one", CONVERT, "date >= spec.split.moment()",
     "date > spec.split.moment()", OWN),
    ("own-names-decide", CONVERT, "for sha256, path in sorted(by_hash.items()):",
     "for sha256, path in by_hash.items():", OWN),
    ("own-recipe-of-any-size", "model/training/recipe_files.py", "if total > _LARGEST_MODEL:",
     "if False:", "model/training/test_recipe_files.py"),
]  # fmt: skip
OLDER = [
    ("file-not-synced", "pipeline/core/files.py", "            os.fsync(self.descriptor)\n", "",
     f"{CORE}/test_files.py"),
    ("folder-not-synced", "pipeline/core/files.py", "            sync_folder(path.parent)\n", "",
     f"{CORE}/test_files.py"),
    ("record-unchecked", STORE, "cls(**hashing.unseal(data, hashing.RECORD))",
     "cls(**{k: v for k, v in json.loads(data).items() if k != 'checksum'})",
     f"{CORE}/test_store.py"),
    ("unit-object-unchecked", STORE,
     "return sha256_bytes(self._read(_object_name(record.address))) == record.address",
     "return bool(self._read(_object_name(record.address)))", f"{CORE}/test_store.py"),
    ("unit-of-another-key", STORE, "record.key == key and ", "", f"{CORE}/test_store.py"),
    ("shard-unhashed", SHARDS, 'if digest != entry["sha256"]:', "if False:",
     f"{CORE}/test_publish.py faults/test_corruption.py"),
    ("rows-unhashed", SHARDS,
     "_require(self.entry, tokens=tokens, rows_sha256=rows_sha256(rows))",
     "_require(self.entry, tokens=tokens)",
     f"{CORE}/test_publish.py"),
    ("extra-files-passed-over", SHARDS,
     'raise broken(path, "extra", "the lock does not know it", kind)', "pass",
     f"{CORE}/test_publish.py"),
    ("side-tables-unchecked", SHARDS,
     "SideTable(folder, entry, lock.name).check_rows()", "pass", "faults/test_corruption.py"),
    ("foreign-file-deleted", PUBLISHING, "if not _OURS.fullmatch(path.name):",
     "if False:", f"{CORE}/test_publish.py"),
    ("strays-kept", PUBLISHING, "    for path in strays:\n        path.unlink()\n", "",
     f"{CORE}/test_publish.py"),
    ("other-spec-overwritten", PUBLISHING,
     "if found != wanted:", "if False:", f"{CORE}/test_publish.py"),
]  # fmt: skip
MUTATIONS = [Mutation(*fields) for fields in (*NEWER, *OLDER)]


class Copy:
    """A copy of the project whose package is found before the installed one."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        shutil.copytree(PROJECT, self.root, symlinks=True, ignore=shutil.ignore_patterns(*SKIPPED))
        package = self.root / "build" / "types" / "tangobench"
        package.mkdir(parents=True)
        rooms = ("pipeline", "flows", "manifests", "results", "model", "eval")
        for path in [
            *(self.root / "src" / "tangobench").iterdir(),
            *map(self.root.joinpath, rooms),
        ]:
            (package / path.name).symlink_to(path)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(package.parent),
            # A file changed within a second to one of equal size looks unchanged.
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }

    def passes(self, tests: str) -> bool:
        """Whether the tests pass in the copy."""
        words = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider"]
        chosen = [f"tests/{name}" for name in tests.split()]
        done = subprocess.run(
            [*words, "-m", "not slow", *chosen],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return done.returncode == 0

    def survives(self, mutation: Mutation) -> bool:
        """Whether the tests pass although the code is broken."""
        path = self.root / mutation.file
        text = path.read_text(encoding="utf-8")
        assert text.count(mutation.before) == 1, f"{mutation.name} does not fit {mutation.file}"
        path.write_text(text.replace(mutation.before, mutation.after), encoding="utf-8")
        try:
            return self.passes(mutation.tests)
        except subprocess.TimeoutExpired:
            return False  # a hang is noticed too
        finally:
            path.write_text(text, encoding="utf-8")


def main() -> int:
    names = [word for word in sys.argv[1:] if word != "--no-control"]
    controls = "--no-control" not in sys.argv
    chosen = [m for m in MUTATIONS if not names or m.name in names]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Copy(Path(folder))
        for tests in dict.fromkeys(mutation.tests for mutation in chosen):
            assert not controls or copy.passes(tests), f"{tests} fails without a mutation"
        for mutation in chosen:
            survived = copy.survives(mutation)
            survivors += [mutation.name] if survived else []
            print(f"{'SURVIVED' if survived else 'noticed':9} {mutation.name}", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} noticed; survivors: {survivors}")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
