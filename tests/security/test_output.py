"""What reaches a terminal or a log: no control characters of input, no secrets, no tracebacks."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import time

import forge
import pytest

from tangobench.errors import Clean, InputError, printable, without_secrets
from tangobench.flows._run import _lock_table
from tangobench.flows.local import recording, server
from tangobench.flows.local.place import Place, State
from tangobench.pipeline.core.lock import read_lock
from tangobench.pipeline.core.progress import Reporter

ESCAPE = "\x1b[2J\x1b]0;owned\x07"
SECRETS = {
    "Azure": ("https://a.blob.core.windows.net/c/x?sv=2024&sig=AbC%2Fd", "AbC"),
    "Azure alone": ("403 for sv=2024-01-01&sig=AbCdEf%2Fg", "AbCdEf"),
    "password with @": ("https://me:p@ss@w0rd@host/x", "w0rd"),
    "password with a slash": ("s3://AKIA:se/cr3t@bucket/x", "cr3t"),
    "bucket": ("s3://key:s3cret@bucket/x", "s3cret"),
    "GitHub": ("ghp_0123456789abcdefghij0123456789abcdef", "0123456789abcdef"),
    "GitHub, fine": ("github_pat_0123456789abcdef_xyz", "0123456789abcdef"),
    "Prefect": ("pnu_0123456789abcdef", "0123456789abcdef"),
    "AccountKey": ("DefaultEndpointsProtocol=https;AccountKey=a/b+c==;X=1", "a/b+c"),
    "query": ("https://host/x?anything=s3cretvalue&b=2", "s3cretvalue"),
    "header": ("Authorization: Basic bWU6czNjcmV0", "bWU6czNjcmV0"),
    "mapping": ("{'password': 'hunter22'}", "hunter22"),
    "JSON": ('{"AWS_SECRET_ACCESS_KEY": "wJalrXUtn"}', "wJalrXUtn"),
    "command line": ("--hub-token zzzzzzzz", "zzzzzzzz"),
    "our server": ("PREFECT_API_AUTH_STRING=tangobench:abcdefgh", "abcdefgh"),
    "TOML": ('auth_string = "tangobench:abcdefgh"', "abcdefgh"),
    "YAML": ("password: hunter22", "hunter22"),
    "API key": ("x-api-key: 0123456789abcdef", "0123456789abcdef"),
    "quoted quote": ('{"password": "a\\"hunter22"}', "hunter22"),
    "PyPI": ("pypi-AgEIcHlwaS5vcmc", "AgEIcHlwaS5vcmc"),
    "quote in a password": ("https://me:p'hunter22@host/x", "hunter22"),
    "bracket in a password": ('"s3://key:a<b|hunter22@bucket/x"', "hunter22"),
    "quoted value": ("password='my hunter22'", "hunter22"),
    "quoted option": ("--password 'my hunter22'", "hunter22"),
    "other scheme": ("Authorization: ApiKey hunter22", "hunter22"),
    "headers": ("{'Authorization': 'Token hunter22'}", "hunter22"),
    "YAML, AWS": ("AWS_SECRET_ACCESS_KEY: hunter22", "hunter22"),
    "YAML, Hugging Face": ("HF_TOKEN: hunter22", "hunter22"),
    "Docker": ("dckr_pat_0123456789abcdef", "0123456789abcdef"),
    "our server's string alone": ("tangobench:" + "x" * 35 + "hunter22", "hunter22"),
    "key file": (
        "-----BEGIN RSA PRIVATE KEY-----\nhunter22\n-----END RSA PRIVATE KEY-----",
        "hunter22",
    ),
    "cut key file": ("-----BEGIN PRIVATE KEY-----\nhunter22", "hunter22"),
    "passphrase": ("passphrase: hunter22", "hunter22"),
    "account_key": ("account_key=hunter22", "hunter22"),
    "connection string": ("connection_string='x;hunter22'", "hunter22"),
    "session": ("https://host/a;jsessionid=hunter22", "hunter22"),
    "JWT": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmN", "dozjgNryP4J3jVmN"),
}


@pytest.mark.parametrize("name", SECRETS)
def test_no_error_and_no_traceback_shows_a_secret(name):
    text, secret = SECRETS[name]
    assert secret not in without_secrets(text)
    assert secret not in str(InputError(f"cannot read {text}", kind="x").as_json())


def test_details_of_any_shape_show_no_secret():
    url = SECRETS["bucket"][0]
    error = InputError("x", kind="x", urls=[url], table={url: (url,)}, count=7)
    assert "s3cret" not in str(error.as_json()) and error.details["count"] == 7


@pytest.mark.parametrize(
    "url", ["https://me:p@ss@host.test/x.git", "https://host.test/x.git?private_token=hunter22"]
)
def test_a_plan_shows_an_address_without_its_secrets(attacked, url):
    said = attacked("plan", "lean", "--source", url, code=0)
    assert "host.test/x.git" in said and "ss@" not in said and "hunter22" not in said


def test_cells_of_an_artifact_are_no_links(math):
    """Prefect's UI makes links of table cells, and keeps the server's password in the browser."""
    link = "[root](javascript:alert(localStorage['prefect-password']))"
    forge.lock(math, lambda data: data["drops"].update({link: 1}))
    rows = _lock_table(read_lock(math / forge.LOCK))
    assert "javascript" in str(rows) and "](" not in str(rows)


@pytest.mark.parametrize(
    "text",
    [
        "nothing to hide: a@b.c, rows=7, 7 tokens = 9",
        "https://host:8080/a/@scope/pkg",
        "tcp://127.0.0.1:8786",
        '["http://127.0.0.1:80/x", "me@host", "unknown token: x"]',
        "file:///a/b",
        '"tokenizer": {"name": "gpt2"}, "tokens": 7',
        'tangobench build mine.toml --set tokenizer=t.json, or tokenizer = "gpt2"',
        "tangobench eval RUN --tokens-at-once 4096",
    ],
)
def test_what_is_no_secret_stays(text):
    assert without_secrets(text) == text


PEM = "-----BEGIN PRIVATE KEY-----"


@pytest.mark.parametrize(
    "piece", ["a", "a.", "-", "token", "--token", "basic ", "hf_", "a:/", " ", PEM]
)
def test_the_filter_takes_linear_time(piece):
    """A key or value of a user's file can be of any length; a quadratic filter took seconds."""
    began = time.process_time()
    without_secrets(piece * (200_000 // len(piece)))
    assert time.process_time() - began < 2


def test_a_traceback_of_the_program_passes_the_filter():
    """A bug in a command, with secrets in the error: the last resort of the program."""
    texts = "\n".join(text for text, _ in SECRETS.values())
    script = (
        "import sys; from tangobench import cli\n"
        "def bug(*_): raise RuntimeError('the bug \\x1b[2J\\n' + sys.argv[1])\n"
        "cli._run = bug; sys.exit(cli.main(['doctor']))"
    )
    done = subprocess.run([sys.executable, "-c", script, texts], capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 1 and "Traceback" in said and "RuntimeError: the bug" in said
    assert "\x1b" not in said
    assert [name for name, (_, secret) in SECRETS.items() if secret in said] == []


@pytest.mark.parametrize(
    "odd", ["\x1b[2J", "\x07", "\x9b31m", "\r", "\u202e", "\u061c", "\u2028", "\x00"]
)
def test_printable_leaves_nothing_that_a_terminal_obeys(odd):
    shown = printable(f"a{odd}b")
    assert odd not in shown and shown.startswith("a") and shown.isprintable()
    stream = io.StringIO()
    Clean(stream).write(f"{odd}\t\n")
    assert odd not in stream.getvalue() and stream.getvalue().endswith("\t\n")


def test_progress_shows_no_control_characters_of_input():
    stream = io.StringIO()
    reporter = Reporter(stream=stream)
    reporter.say(f"file {ESCAPE}")
    reporter.start(ESCAPE, 1, 1.0)
    reporter.finish()
    assert "\x1b" not in stream.getvalue() and "\x07" not in stream.getvalue()


def test_ids_and_paths_from_input_are_escaped(attacked, lean, tmp_path):
    place = tmp_path / f"x{ESCAPE}"
    lean.rename(place)
    for words, code in (
        (("why", place, ESCAPE), 5),
        (("inspect", place), 0),
        (("verify", place), 0),
        (("verify", tmp_path / ESCAPE), 2),
        (("build", ESCAPE), 2),
        (("eval", ESCAPE), 2),
    ):
        said = attacked(*words, code=code)
        assert "\x1b" not in said and "\x07" not in said


def test_a_checkpoints_root_is_escaped(attacked, checkpoint, run_folder):
    forge.document(checkpoint, lambda data: data["loader"].update(root=ESCAPE))
    assert "\x1b" not in attacked("eval", run_folder, code=3)


def test_inspect_is_linear_in_splits(attacked, math):
    """20,000 splits: quadratic work took minutes."""

    def many(lock: dict) -> None:
        first = lock["shards"][0]
        lock["shards"] = [
            {**first, "path": f"s{n}.arrow", "split": f"s{n}", "sha256": _name(n)}
            for n in range(20_000)
        ]

    forge.lock(math, many)
    began = time.process_time()
    attacked("inspect", math, code=0, seconds=300)
    assert time.process_time() - began < 20


def _name(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def test_the_program_still_writes_to_a_closed_pipe_in_peace():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "tangobench", "train", "--list"],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert done.returncode == 0 and done.stderr == b""


def test_the_address_of_a_prefect_api_is_shown_without_its_password(monkeypatch, capsys, tmp_path):
    state = State(url="http://me:hunter22@host:4200/api")
    monkeypatch.setattr(recording, "known", lambda place: state)
    said = []
    with recording.recorded(Place(tmp_path), said.append):
        server._say_up(Place(tmp_path), state)
    said.append(capsys.readouterr().out)
    assert "host:4200" in said[0] and "host:4200" in said[1]
    assert "hunter22" not in "".join(said)


def test_an_unexpected_error_of_deploy_passes_the_filters(monkeypatch, capsys):
    def fail(place, port):
        raise RuntimeError(f"GET https://me:hunter22@host/x failed{ESCAPE}")

    monkeypatch.setattr(server, "up", fail)
    assert server.main(["up"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said and "hunter22" not in said and "\x1b" not in said
