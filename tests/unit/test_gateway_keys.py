"""Keys and addresses of attempts."""

import pytest

from hpcjet.engine.gateway.keys import attempt_key, attempt_url, split_path, why_not

SECRET = "s" * 40
NOW = 1_700_000_000.0
NAMES = ["cpython-1~0~1", "a/b~1~2", "ä %2F ?#~0~1", "", "x" * 300, "..", "bad\udce9bytes~0~1"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_key_opens_its_own_attempt_until_it_expires(name: str) -> None:
    key = attempt_key(SECRET, name, NOW + 60)
    assert why_not(SECRET, name, key, now=NOW) == ""
    assert "expired" in why_not(SECRET, name, key, now=NOW + 60)
    assert key.isascii() and " " not in key and SECRET not in key


def test_it_opens_no_other_attempt_and_no_other_run() -> None:
    key = attempt_key(SECRET, "task~0~1", NOW + 60)
    assert "Incorrect" in why_not(SECRET, "task~0~2", key, now=NOW)
    assert "Incorrect" in why_not("t" * 40, "task~0~1", key, now=NOW)


def test_an_expiry_that_was_moved_is_forged() -> None:
    prefix, until, signature = attempt_key(SECRET, "task~0~1", NOW - 1).split("-", 2)
    later = f"{prefix}-{int(until) + 1000}-{signature}"
    assert "Incorrect" in why_not(SECRET, "task~0~1", later, now=NOW)


@pytest.mark.parametrize(
    "key",
    ["", "hpcjet-", "hpcjet--", "hpcjet-99999999999-", "hpcjet-x-y", "hpcjet-²-y", "sk-1", "hpcjet-1-ü", "\udcff"],
)
def test_what_is_no_key_is_refused(key: str) -> None:
    assert "Incorrect" in why_not(SECRET, "task~0~1", key, now=NOW)


@pytest.mark.parametrize("name", [name for name in NAMES if name and "\udce9" not in name])
def test_the_address_names_the_attempt(name: str) -> None:
    url = attempt_url("http://10.0.0.1:20000/", name)
    assert url.startswith("http://10.0.0.1:20000/attempt/") and url.endswith("/v1")
    path = url.removeprefix("http://10.0.0.1:20000") + "/chat/completions"
    assert split_path(path) == (name, "/v1/chat/completions")


@pytest.mark.parametrize("path", ["/", "/v1/chat/completions", "/attempt/", "/attempt/x", "/metrics", "/attempts/x/v1"])
def test_other_paths_name_none(path: str) -> None:
    assert split_path(path)[0] == ""
