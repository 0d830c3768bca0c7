"""Reading one commit from every kind of repository, and refusing the rest."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tangobench.errors import CorruptionError, InputError, UsageError
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.lean.fetch import open_repository, resolve_commit
from tangobench.pipeline.lean.git import File, list_files, object_id, read_files, refusal

FILES = {"Lib/A.lean": b"theorem a : P := h\n", "Lib/B/C.lean": "-- ∀\n".encode(), "README": b"x"}
DATED = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def git(folder: Path, *words: str, stdin: bytes = b"") -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        input=stdin,
        check=True,
        capture_output=True,
        env={**os.environ, **DATED},
    )
    return done.stdout.decode().strip()


def commit_entries(folder: Path, entries: list[tuple[str, str, bytes, bytes]]) -> str:
    """A commit whose tree has exactly these (mode, type, path, content) entries."""
    lines = b""
    for mode, kind, path, content in entries:
        blob = (
            "0" * 39 + "1"
            if kind == "commit"
            else git(folder, "hash-object", "-w", "--stdin", stdin=content)
        )
        lines += f"{mode} {kind} {blob}\t".encode() + path + b"\0"
    tree = git(folder, "mktree", "-z", "--missing", stdin=lines)
    return git(folder, "commit-tree", tree, "-m", "x")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    folder.mkdir()
    git(folder, "init", "--quiet", "-b", "main")
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def contents(git_dir: Path, commit: str, root: str = "Lib/") -> dict[str, bytes]:
    listing = list_files(git_dir, commit, root)
    paths = [file.path for file in listing.files]
    return dict(zip(paths, read_files(git_dir, listing.files), strict=True))


WANTED = {name: data for name, data in FILES.items() if name.endswith(".lean")}


def _as_clone(clone: Path, tmp_path: Path) -> str:
    return str(clone)


def _as_git_directory(clone: Path, tmp_path: Path) -> str:
    return str(clone / ".git")


def _as_bare(clone: Path, tmp_path: Path) -> str:
    git(tmp_path, "clone", "--quiet", "--bare", str(clone), "bare.git")
    return str(tmp_path / "bare.git")


def _as_bare_without_config(clone: Path, tmp_path: Path) -> str:
    bare = Path(_as_bare(clone, tmp_path))
    (bare / "config").unlink()
    return str(bare)


def _as_linked_worktree(clone: Path, tmp_path: Path) -> str:
    git(clone, "worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"))
    return str(tmp_path / "linked")


def _as_bundle(clone: Path, tmp_path: Path) -> str:
    git(clone, "bundle", "create", str(tmp_path / "all.bundle"), "--all")
    return str(tmp_path / "all.bundle")


def _as_url(clone: Path, tmp_path: Path) -> str:
    git(clone, "config", "uploadpack.allowFilter", "true")
    git(clone, "config", "uploadpack.allowAnySHA1InWant", "true")
    return clone.as_uri()


@pytest.mark.parametrize(
    "form",
    [
        _as_clone,
        _as_git_directory,
        _as_bare,
        _as_bare_without_config,
        _as_linked_worktree,
        _as_bundle,
        _as_url,
    ],
    ids=lambda form: form.__name__[4:],
)
def test_every_form_of_source_reads_the_same(form, clone: Path, tmp_path: Path) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    source = form(clone, tmp_path)
    assert contents(open_repository(source, commit), commit) == WANTED


@pytest.mark.parametrize("name", ["HEAD", "main", "v1", "light", "v1^{}"])
@pytest.mark.parametrize(
    "form",
    [_as_clone, _as_bare_without_config, _as_linked_worktree, _as_bundle, _as_url],
    ids=lambda form: form.__name__[4:],
)
def test_names_become_the_commit_that_git_says(form, name, clone: Path, tmp_path: Path) -> None:
    git(clone, "tag", "-a", "v1", "-m", "annotated")
    git(clone, "tag", "light")
    git(clone, "commit", "--quiet", "--allow-empty", "-m", "second")
    source = form(clone, tmp_path)
    if name == "v1^{}" and form in (_as_bundle, _as_url):
        pytest.skip("a remote is asked for names, not for expressions")
    assert resolve_commit(source, name) == git(clone, "rev-parse", f"{name}^{{commit}}")


@pytest.mark.parametrize(
    "name", ["none", "", "--all", "HEAD:README", "HEAD^{tree}", "a b", "v1\nv2"]
)
@pytest.mark.parametrize("form", [_as_clone, _as_bundle, _as_url], ids=lambda f: f.__name__[4:])
def test_a_name_that_is_no_commit(form, name: str, clone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        resolve_commit(form(clone, tmp_path), name)
    assert caught.value.kind == "commit-missing"


def test_a_fetch_shows_gits_own_progress(clone: Path, tmp_path: Path) -> None:
    shown = io.StringIO()
    commit = git(clone, "rev-parse", "HEAD")
    reporter = Reporter(stream=shown)
    open_repository(_as_url(clone, tmp_path), commit, reporter=reporter)
    assert "lean-fetch receive: " in shown.getvalue()


HOSTILE_CONFIG = """
[include]
	path = FIFO
[core]
	worktree = /nowhere
	fsmonitor = touch TRACE
	sshCommand = touch TRACE
	gitProxy = touch TRACE
	pager = touch TRACE
	editor = touch TRACE
	hooksPath = HOOKS
	repositoryformatversion = 7
[extensions]
	objectFormat = sha9
"""


def test_the_configuration_of_a_repository_is_never_read(clone: Path, tmp_path: Path) -> None:
    """git itself waits for ever at the FIFO, and GitPython's parser would."""
    commit = git(clone, "rev-parse", "HEAD")
    os.mkfifo(tmp_path / "fifo")
    text = HOSTILE_CONFIG.replace("FIFO", str(tmp_path / "fifo"))
    (clone / ".git" / "config").write_text(text.replace("TRACE", str(tmp_path / "trace")))
    assert resolve_commit(str(clone), "HEAD") == commit
    assert contents(open_repository(str(clone), commit), commit) == WANTED
    assert not (tmp_path / "trace").exists()


def test_git_variables_of_the_caller_have_no_effect(
    clone: Path, tmp_path: Path, monkeypatch
) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    names = ("DIR", "OBJECT_DIRECTORY", "WORK_TREE", "COMMON_DIR", "EXEC_PATH", "CONFIG_PARAMETERS")
    for name in names:
        monkeypatch.setenv(f"GIT_{name}", str(tmp_path))
    assert contents(open_repository(str(clone), commit), commit) == WANTED
    assert all(os.environ[f"GIT_{name}"] == str(tmp_path) for name in names)


def test_replacement_refs_have_no_effect(clone: Path) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    other = commit_entries(clone, [("100644", "blob", b"X.lean", b"other")])
    git(clone, "replace", commit, other)
    assert contents(open_repository(str(clone), commit), commit) == WANTED


def test_the_work_tree_is_never_read(clone: Path) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    (clone / "Lib/A.lean").write_bytes(b"changed")
    assert contents(open_repository(str(clone), commit), commit) == WANTED


def test_a_url_fetches_only_wanted_blobs_and_goes_on(clone: Path, tmp_path: Path) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    url = _as_url(clone, tmp_path)
    git_dir = open_repository(url, commit, root="Lib/")
    readme = git(clone, "rev-parse", "HEAD:README")
    there = git(git_dir, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    assert readme not in there
    packs = sorted(
        (git_dir / "objects" / "pack").glob("*.pack"), key=lambda p: p.stat().st_mtime_ns
    )
    for part in packs[-1].parent.glob(f"{packs[-1].stem}.*"):  # lose what was fetched last
        part.unlink()
    assert contents(open_repository(url, commit, root="Lib/"), commit) == WANTED


@contextmanager
def served(folder: Path, port: int) -> Iterator[None]:
    """A real git server on loopback."""
    words = ["--export-all", f"--base-path={folder}", "--listen=127.0.0.1", f"--port={port}"]
    daemon = subprocess.Popen(["git", "daemon", "--reuseaddr", *words], stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield
    finally:
        daemon.terminate()
        daemon.wait()


def test_a_server_that_goes_away_and_comes_back(clone: Path, tmp_path: Path) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    _as_url(clone, tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"git://127.0.0.1:{port}/clone/.git"
    with served(tmp_path, port):
        git_dir = open_repository(url, commit, root="Lib/B/")
    assert contents(git_dir, commit, "Lib/B/") == {"Lib/B/C.lean": WANTED["Lib/B/C.lean"]}
    with pytest.raises(InputError) as caught:  # the rest was never fetched
        open_repository(url, commit, root="Lib/")
    assert caught.value.kind == "fetch-failed"
    with served(tmp_path, port):
        assert contents(open_repository(url, commit, root="Lib/"), commit) == WANTED
        with pytest.raises(InputError) as caught:
            open_repository(url, "0" * 40)
        assert caught.value.kind == "fetch-failed"


def test_a_finished_fetch_needs_no_network(clone: Path, tmp_path: Path) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    url = _as_url(clone, tmp_path)
    open_repository(url, commit)
    clone.rename(tmp_path / "gone")
    assert contents(open_repository(url, commit), commit) == WANTED


def test_rejections_are_counted(clone: Path) -> None:
    commit = commit_entries(
        clone,
        [
            ("100644", "blob", b"Good.lean", b"ok"),
            ("100755", "blob", b"Run.lean", b"ok"),
            ("120000", "blob", b"Link.lean", b"Good.lean"),
            ("160000", "commit", b"Sub.lean", b""),
            ("100644", "blob", b"\xff\xfe.lean", b"x"),
            ("100644", "blob", b"new\nline.lean", b"x"),
            ("100644", "blob", b"Big.lean", b"x" * 100),
            ("100644", "blob", b"other.txt", b"x"),
        ],
    )
    listing = list_files(clone / ".git", commit, "", max_bytes=99)
    assert [file.path for file in listing.files] == ["Good.lean", "Run.lean"]
    assert listing.rejected == {
        "path-characters": 1,
        "path-not-utf8": 1,
        "submodule": 1,
        "symlink": 1,
        "too-large": 1,
    }


@pytest.mark.parametrize(
    ("mode", "path", "reason"),
    [
        (0o100644, b"a/b.lean", None),
        (0o100644, "α/β γ.lean".encode(), None),
        (0o100644, b"-rf.lean", None),
        (0o100644, b"a.txt", ""),
        (0o100644, b"../a.lean", "path-characters"),
        (0o100644, b"a\x1b[2J.lean", "path-characters"),
        (0o100644, b"a\x00b.lean", "path-characters"),
        (0o100644, "a\u2028b.lean".encode(), "path-characters"),
        (0o100644, b"\xc3\x28.lean", "path-not-utf8"),
        (0o170000, b"a.lean", "submodule"),
        (0o120000, b"a.lean", "symlink"),
        (0o160000, b"a", "submodule"),
    ],
    ids=repr,
)
def test_what_is_left_out(mode: int, path: bytes, reason: str | None) -> None:
    assert refusal(mode, path) == reason


def test_a_file_of_50_megabytes(clone: Path) -> None:
    huge = b'def a := 1 -- "\n' * 3_200_000
    assert len(huge) > 50_000_000
    commit = commit_entries(
        clone,
        [("100644", "blob", b"Huge.lean", huge), ("100644", "blob", b"Good.lean", b"def b := 1")],
    )
    listing = list_files(clone / ".git", commit, "", max_bytes=8_000_000)
    assert [file.path for file in listing.files] == ["Good.lean"]
    assert listing.rejected == {"too-large": 1}


@pytest.mark.parametrize("commit", ["main", "HEAD", "abc123", "A" * 40, "", "f" * 41, "f" * 64])
def test_only_full_ids(commit: str, clone: Path) -> None:
    with pytest.raises(UsageError) as caught:
        open_repository(str(clone), commit)
    assert caught.value.kind == "commit-id"


def test_missing_commit(clone: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_repository(str(clone), "0" * 40)
    assert (caught.value.kind, caught.value.details["shallow"]) == ("commit-missing", False)


def test_a_tree_is_no_commit(clone: Path) -> None:
    with pytest.raises(InputError, match="does not hold commit"):
        open_repository(str(clone), git(clone, "rev-parse", "HEAD^{tree}"))


def test_shallow_clone_without_the_commit(clone: Path, tmp_path: Path) -> None:
    first = git(clone, "rev-parse", "HEAD")
    git(clone, "commit", "--quiet", "--allow-empty", "-m", "second")
    git(tmp_path, "clone", "--quiet", "--depth", "1", clone.as_uri(), "shallow")
    with pytest.raises(InputError, match="shallow clone") as caught:
        open_repository(str(tmp_path / "shallow"), first)
    assert "fetch --depth 1 origin" in caught.value.fix


def test_bundle_without_the_commit(clone: Path, tmp_path: Path) -> None:
    git(clone, "bundle", "create", "--quiet", str(tmp_path / "x.bundle"), "--all")
    with pytest.raises(InputError) as caught:
        open_repository(str(tmp_path / "x.bundle"), "0" * 40)
    assert caught.value.kind == "commit-missing"
    assert "git bundle create" in caught.value.fix


@pytest.mark.parametrize("what", ["missing", "folder", "file"])
def test_not_a_repository(what: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if what == "folder":
        path.mkdir()
    elif what == "file":
        path.write_bytes(b"text")
    with pytest.raises(InputError) as caught:
        open_repository(str(path), "0" * 40)
    assert caught.value.kind == "not-a-repository"


def test_unreachable_url_keeps_passwords_out_of_the_message(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_repository(f"file://user:secret@{tmp_path}/none", "0" * 40)
    assert caught.value.kind == "fetch-failed"
    assert "secret" not in caught.value.message
    assert "does not appear to be a git repository" in caught.value.message


def test_no_lean_files(clone: Path) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    with pytest.raises(InputError) as caught:
        list_files(clone / ".git", commit, "Elsewhere/")
    assert caught.value.kind == "no-lean-files"


def test_damaged_blob(clone: Path) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    listing = list_files(clone / ".git", commit, "Lib/")
    wrong = File("Lib/A.lean", listing.files[1].blob[::-1], 3)
    with pytest.raises(CorruptionError) as caught:
        list(read_files(clone / ".git", [wrong]))
    assert caught.value.kind == "blob-damaged"


def test_a_blob_that_is_not_there(clone: Path) -> None:
    commit, blob = git(clone, "rev-parse", "HEAD"), git(clone, "rev-parse", "HEAD:Lib/A.lean")
    listing = list_files(clone / ".git", commit, "Lib/")
    (clone / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    for read in (
        lambda: list_files(clone / ".git", commit, "Lib/"),
        lambda: read_files(clone / ".git", listing.files),
    ):
        with pytest.raises(CorruptionError, match=r"Lib/A.lean: .* is missing"):
            read()


def test_object_ids_are_gits(clone: Path) -> None:
    blob = git(clone, "rev-parse", "HEAD:README")
    assert object_id(b"blob", FILES["README"]) == blob
