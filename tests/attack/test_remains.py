"""What an attempt leaves behind: the clean-up removes it, and reading back is not led astray."""

import base64
import itertools
import time
from collections.abc import Callable

import pytest
from estate import MARK
from field import Field, gone, showing

_number = itertools.count()
CLEANED_S = 20.0

REMAINS = {
    "deep-folders": 'python3 -c \'import os\nfor _ in range(400): os.mkdir("d" * 20); os.chdir("d" * 20)\'; true',
    "long-names": 'for i in $(seq 30); do : >$(printf "%0250d" $i); mkdir $(printf "%0249dd" $i); done',
    "odd-names": r"""touch -- -rf $'a\nb' $'\xff\xfe' '*' '$(reboot)' ' ' $'\e]0;x\a'; mkdir -- -p $'\r'""",
    "closed-folders": "mkdir -p a/b/c; touch a/b/c/f; chmod 0 a/b/c/f a/b/c a/b; chmod 111 a; chmod 0 .",
    "own-root-closed": "chmod 0 /testbed /tmp ~ 2>/dev/null; true",
    "immutable": "touch i; chattr +i i 2>/dev/null; chattr +a . 2>/dev/null; chmod 0444 i; chmod 0555 .",
    "links-outwards": 'ln -s "$OPEN" a; ln -s "$ESTATE" b; ln -s / c; ln -s . d; ln -s ../../../../.. e; ln -s e e2',
    "links-for-folders": 'rm -rf folder; ln -s "$OPEN" folder; rm -f a.txt; ln -s "$OPEN/canary" a.txt',
    "pipes-and-sockets": "mkfifo p; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'",
    "deletions": "rm -rf a.txt folder; mkdir folder a.txt; rm -rf /testbed/* /tmp/* ~/*",
    "many-files": "mkdir m; cd m; seq 1500 | xargs touch",
    "hard-links": "echo x >h; mkdir hl; for i in $(seq 200); do ln h hl/$i; done; ln a.txt folder/again",
    "attributes": """python3 -c '
import os
open("x", "w"); os.setxattr("x", "user.big", b"x" * 3000)
acl = "02000000" + "".join(f"{k:02x}000000ffffffff" for k in (1, 4, 16, 32))
os.setxattr("x", "system.posix_acl_access", bytes.fromhex(acl))
'; true""",
    "held-open": "(cd /testbed/folder; exec 3>held; flock 3; rm -f held; exec sleep 1000) >/dev/null 2>&1 & sleep 0.2",
    "holes": "truncate -s 2000000000 hole; fallocate -l 1M hole; true",
    "sticky": "mkdir st; chmod 1777 st; touch st/f; chmod 7000 st/f; chmod 7000 st",
}


@pytest.mark.parametrize("script", REMAINS.values(), ids=REMAINS)
@pytest.mark.parametrize("name", ["ordinary-overlay", "root-overlay"])
def test_it_is_removed_and_nothing_else(script: str, name: str, fields: Callable[[str], Field]) -> None:
    field = fields(name)
    field.estate.touched()
    box = f"remains{next(_number)}"
    field.open(box, cwd="/testbed")
    field.run(box, script, timeout_s=60)
    field.run(box, f"cd ~; {script}", timeout_s=60)
    pids = showing(field.scratch / box)
    begin = time.monotonic()
    field.ask("close", box=box).result(60)
    assert time.monotonic() - begin < CLEANED_S
    assert gone(pids, timeout_s=1)
    assert not (field.scratch / box).exists()
    assert not field.estate.touched()


READ_BACK = {
    "link": 'ln -s "$FILE" report',
    "link-to-own-file": "echo x >/tmp/real; ln -s /tmp/real report",
    "folder-link": 'ln -s "$ESTATE" sub; ln -s secret report',
    "pipe": "mkfifo report",
    "pipe-held-open": "mkfifo report; (exec sleep 1000 <>report) & sleep 0.1",
    "socket": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"report\")'",
    "folder": "mkdir report",
    "too-large": "truncate -s 1G report",
    "terminal": "ln -s /dev/tty report",
    "proc": "ln -s /proc/self/environ report",
    "absent": "true",
}


@pytest.mark.parametrize("script", READ_BACK.values(), ids=READ_BACK)
def test_a_result_that_is_none_is_refused_at_once(script: str, usual: Field) -> None:
    box = f"back{next(_number)}"
    upper = usual.open(box, cwd="/testbed")
    try:
        usual.run(box, script)
        begin = time.monotonic()
        for name in ("report", "sub/secret"):
            with pytest.raises(RuntimeError, match=r"not a plain file|larger than|FileNotFoundError"):
                usual.ask("read_back", folder=upper, name=name).result(20)
        assert time.monotonic() - begin < 10
    finally:
        usual.ask("close", box=box).result(30)


SWAPS = {
    "file": 'echo good >a; ln -s "$FILE" b',
    "folder": 'mkdir a; echo good >a/secret; ln -s "$ESTATE" b',
}


@pytest.mark.parametrize("kind", SWAPS)
def test_a_swap_while_it_is_read_back_shows_nothing_else(kind: str, field: Field) -> None:
    """Names change places 100,000 times a second while the host reads."""
    box = f"swap{next(_number)}"
    upper = field.open(box, cwd="/testbed")
    # renameat2 with RENAME_EXCHANGE: one of the two is there at any time.
    race = "import ctypes; l = ctypes.CDLL(None)\nwhile True: l.renameat2(-100, b'a', -100, b'b', 2)"
    try:
        field.run(box, f'{SWAPS[kind]}; (/usr/bin/python3 -c "{race}" &)')
        name = "a" if kind == "file" else "a/secret"
        seen = {"good": 0, "refused": 0}
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            try:
                data = base64.b64decode(field.ask("read_back", folder=upper, name=name).result(20))
            except RuntimeError:
                seen["refused"] += 1
                continue
            assert MARK.encode() not in data and data == b"good\n", data
            seen["good"] += 1
        assert seen["good"] and seen["refused"], seen
    finally:
        field.ask("close", box=box).result(30)


PLANTED = {
    "link-in-the-view": ("/testbed", "/testbed/data/new"),
    "link-in-tmp": ("/tmp", "/tmp/data/new"),
    "link-in-the-home": ("/home/agent", "/home/agent/data/new"),
}


@pytest.mark.parametrize("case", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("root", ["", "/oldroot", "/newroot"], ids=["plain", "oldroot", "newroot"])
def test_a_mount_point_planted_by_the_sandbox_before(case: tuple[str, str], root: str, field: Field) -> None:
    """bubblewrap makes mount points while the host's root is still there, below /oldroot."""
    folder, target = case
    field.estate.touched()
    box, scratch = f"planted{next(_number)}", str(field.scratch / f"planted{next(_number)}")
    field.open(box, scratch=scratch, keep_scratch=True)
    field.run(box, f'ln -sfn "{root}$OPEN" {folder}/data')
    field.ask("close", box=box).result(30)
    mounts = [[str(field.estate.root / "public"), target, False]]
    with pytest.raises(RuntimeError, match="link"):
        field.open(box, scratch=scratch, mounts=mounts)
    assert not field.estate.touched()
