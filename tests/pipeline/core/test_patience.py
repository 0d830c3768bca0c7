"""What is waited for, for how long, and what is not: errors as the clients raise them."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import aiohttp
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from huggingface_hub.utils import HfHubHTTPError
from huggingface_hub.utils import _http as hub_client
from s3fs.errors import translate_boto_error

from tangobench.errors import InputError, ResourceError
from tangobench.pipeline.core import remote
from tangobench.pipeline.core.remote import Patience, PatientFile

httpx = hub_client.httpx2


def of_hub(status, **headers):
    request = httpx.Request("GET", "https://hub.test/x")
    answer = httpx.Response(status, headers=headers, request=request)
    return HfHubHTTPError("no", response=answer)


def of_s3(status, code, **headers):
    answer = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    found = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": answer}
    return translate_boto_error(ClientError(found, "GetObject"))


def of_web(status, **headers):
    request = SimpleNamespace(real_url="https://web.test/x")
    return aiohttp.ClientResponseError(request, (), status=status, headers=headers)


def behind(cause):
    error = FileNotFoundError("https://web.test/x")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("client", [of_hub, of_web, lambda n: of_s3(n, str(n))])
def test_statuses_that_pass_are_waited_for_whichever_client_saw_them(client, status):
    assert remote._pause_asked(client(status)) == 0.0
    assert remote._pause_asked(behind(client(status))) == 0.0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 416])
@pytest.mark.parametrize("client", [of_hub, of_web, lambda n: of_s3(n, str(n))])
def test_statuses_that_last_are_not(client, status):
    assert remote._pause_asked(client(status)) is None
    assert remote._pause_asked(behind(client(status))) is None


@pytest.mark.parametrize(
    ("error", "pause"),
    [
        (of_hub(429, **{"Retry-After": "7"}), 7.0),
        (of_hub(429, RateLimit='"resolvers";r=0;t=55'), 55.0),
        (of_web(503, **{"Retry-After": "7"}), 7.0),
        (of_s3(503, "SlowDown", **{"retry-after": "7"}), 7.0),
        (of_s3(503, "SlowDown"), 0.0),
        (of_s3(500, "InternalError"), 0.0),
        (of_s3(400, "RequestTimeout"), 0.0),
        (of_hub(429, **{"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), 0.0),
        (httpx.ReadTimeout("late"), 0.0),
        (httpx.RemoteProtocolError("cut"), 0.0),
        (ReadTimeoutError(endpoint_url="s3"), 0.0),
        (aiohttp.ClientPayloadError("cut"), 0.0),
        (ConnectionResetError(errno.ECONNRESET, "reset"), 0.0),
        (EOFError("short"), 0.0),
        (PermissionError("no"), None),
        (OSError(errno.EIO, "disk"), None),
        (ValueError("bug"), None),
    ],
    ids=str,
)
def test_the_pause_that_an_error_asks_for(error, pause):
    assert remote._pause_asked(error) == pause


def test_pauses_grow_with_jitter_and_obey_the_server():
    slept = []
    patience = Patience(100.0, "x", slept.append)
    for _ in range(4):
        patience.wait(TimeoutError("late"))
    for n, pause in enumerate(slept):
        assert 0.25 * 2**n <= pause <= 0.75 * 2**n
    patience.progressed()
    patience.wait(of_hub(429, **{"Retry-After": "1"}))
    assert slept[-1] == 1.0
    first = []
    for _ in range(20):
        Patience(100.0, "x", first.append).wait(TimeoutError("late"))
    assert len(set(first)) > 10
    with pytest.raises(ResourceError, match="x cannot be reached") as caught:
        patience.wait(of_hub(429, **{"Retry-After": "101"}))
    assert "--patience 200" in caught.value.fix


def test_a_remote_file_is_opened_anew_after_an_error_and_names_what_lasts(monkeypatch):
    monkeypatch.setattr(remote.time, "sleep", lambda _: None)
    failing = [of_web(503), EOFError("short")]
    opened = []

    class Handle:
        size = 4

        def __init__(self):
            opened.append(self)

        def seek(self, place):
            self.place = place

        def read(self, count):
            if failing:
                raise failing.pop()
            return b"abcd"[self.place : self.place + count]

        def close(self):
            pass

    file = PatientFile(Handle, 10.0, "x")
    assert file.read(3) == b"abc" and file.read(3) == b"d" and len(opened) == 3
    failing.append(of_web(403))
    file.seek(0)
    with pytest.raises(InputError, match="x cannot be read: ClientResponseError: 403") as caught:
        file.read(1)
    assert caught.value.kind == "source-unreadable"
