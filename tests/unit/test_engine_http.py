import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from engine_scripted import scripted

from hpcjet.engine.http import Late, Unanswered, proxy_of, request


def trickle(handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _ in range(100):
        try:
            handler.wfile.write(b"x")
        except OSError:
            return
        time.sleep(0.1)


def cut_off(handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"{}")
    handler.close_connection = True


def test_an_answer_comes_whole_with_status_and_retry_after() -> None:
    with scripted((429, {"error": {"message": "slow"}}, {"Retry-After": "7"})) as server:
        answer = request("POST", f"{server.endpoint.base_url}/x", timeout_s=300, api_key="k", body={"a": "\udc80"})
    assert (answer.status, answer.json(), answer.retry_after_s) == (429, {"error": {"message": "slow"}}, 7)
    assert server.headers[0]["Authorization"] == "Bearer k"
    assert server.requests[0]["a"] == "\udc80"


@pytest.mark.alone
def test_a_server_that_trickles_does_not_outlast_the_limit() -> None:
    with scripted(trickle) as server:
        began = time.monotonic()
        with pytest.raises(Late):
            request("GET", server.endpoint.base_url, timeout_s=0.5)
    assert time.monotonic() - began < 2


def test_a_silent_server_does_not_outlast_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(Late):
            request("GET", f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout_s=0.2)


def test_half_an_answer_is_none() -> None:
    with scripted(cut_off) as server, pytest.raises(Unanswered):
        request("GET", server.endpoint.base_url, timeout_s=300)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unanswered, match="refused"):
        request("GET", f"http://127.0.0.1:{port}/", timeout_s=300)


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(Unanswered):
        request("GET", "http://no-such-host.invalid/", timeout_s=300)


def test_plain_http_goes_through_no_proxy_and_https_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted((405, {})) as proxy, scripted((200, {"ok": 1})) as server:
        there = proxy.endpoint.base_url.removesuffix("/v1")
        for name in ("http_proxy", "https_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, there)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert request("GET", server.endpoint.base_url, timeout_s=300).json() == {"ok": 1}
        # The scripted server knows no CONNECT and says so: that it was asked is what matters.
        with pytest.raises(Unanswered, match="Tunnel"):
            request("GET", "https://api.example.invalid/v1", timeout_s=300)


@pytest.mark.parametrize(
    ("url", "proxy", "expected"),
    [
        ("https://api.example.invalid/v1", "http://p:3128", "http://p:3128"),
        ("https://api.example.invalid/v1", "p:3128", "http://p:3128"),
        ("https://inside.example.invalid/v1", "http://p:3128", None),
        ("http://api.example.invalid/v1", "http://p:3128", None),
        ("https://api.example.invalid/v1", "", None),
    ],
    ids=["https", "without a scheme", "no_proxy", "plain http", "none"],
)
def test_which_proxy_is_on_the_way(monkeypatch: pytest.MonkeyPatch, url: str, proxy: str, expected: str | None) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("no_proxy", "inside.example.invalid")
    assert proxy_of(urlsplit(url)) == expected
