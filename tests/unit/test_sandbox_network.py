"""Network policies and the filter of system calls."""
# ruff: noqa: F811 (fixtures are imported)

import errno
import http.server
import os
import platform
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_scenes import Opener, config, opened, output, place, tree  # noqa: F401 (fixtures)

from hpcjet.config.sandbox import SandboxConfig, SandboxKind
from hpcjet.errors import SandboxError
from hpcjet.sandbox import Network, Sandbox
from hpcjet.sandbox.relay import split_address
from hpcjet.sandbox.seccomp import render_filter
from hpcjet.sandbox.syscalls import BASE, NUMBERS, SHARED_NETWORK, SHARED_PROCESSES, Rule


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[::-1])

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def engine() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


CALL = """
import sys, urllib.request
data = bytes(range(256)) * 4000
for _ in range(3):
    answer = urllib.request.urlopen(sys.argv[1], data=data, timeout=200).read()
    assert answer == data[::-1]
print("same")
"""


def call(box: Sandbox, url: str) -> str:
    return box.run(f"/usr/bin/python3 - {url}", stdin=CALL.encode(), timeout_s=300).output.decode()


@pytest.fixture(params=["bwrap", "userns"])
def namespaces(request: pytest.FixtureRequest) -> SandboxConfig:
    return SandboxConfig(kind=SandboxKind(request.param))


def test_the_engine_is_reached_and_nothing_else(namespaces: SandboxConfig, engine: int) -> None:
    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    with other, Sandbox(network=Network.engine, engine=f"127.0.0.1:{engine}", config=namespaces) as box:
        assert call(box, f"http://127.0.0.1:{engine}/v1") == "same\n"
        assert "ConnectionRefused" in call(box, f"http://127.0.0.1:{other.server_address[1]}/")
        assert output(box, "cat /proc/net/dev | grep -c :").strip() == "1"
        box.end_background()
        box.run("kill -9 -1", timeout_s=10)
        assert call(box, f"http://127.0.0.1:{engine}/v1") == "same\n"  # nothing inside carries it
        assert "engine" not in output(box, "ls /run/hpcjet")


def test_two_sandboxes_have_the_engine_at_the_same_port(namespaces: SandboxConfig, engine: int) -> None:
    address = f"127.0.0.1:{engine}"
    with (
        Sandbox(network=Network.engine, engine=address, config=namespaces) as first,
        Sandbox(network=Network.engine, engine=address, config=namespaces) as second,
    ):
        assert call(first, f"http://{address}/") == call(second, f"http://{address}/") == "same\n"


def test_an_engine_that_is_down_refuses_quickly(namespaces: SandboxConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    with Sandbox(network=Network.engine, engine=address, config=namespaces) as box:
        assert "Error" in call(box, f"http://{address}/")
    with pytest.raises(SandboxError, match="below 1024"):
        Sandbox(network=Network.engine, engine="127.0.0.1:80", config=namespaces)


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:x", "host:0", "host:70000"])
def test_a_wrong_address_of_the_engine_is_named(address: str) -> None:
    with pytest.raises(SandboxError, match="is not host:port"):
        split_address(address)


def test_addresses() -> None:
    assert split_address("node7:8000") == ("node7", 8000) and split_address("[::1]:80") == ("::1", 80)


def test_the_network_of_the_host(opened: Opener, engine: int) -> None:
    box = opened(network=Network.host)
    assert call(box, f"http://127.0.0.1:{engine}/") == "same\n"
    assert urllib.request.urlopen(f"http://127.0.0.1:{engine}/", data=b"ab").read() == b"ba"


def test_without_a_network_the_host_is_not_reached(opened: Opener, engine: int) -> None:
    assert "same" not in call(opened(), f"http://127.0.0.1:{engine}/")


# System calls

PROBE = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
for word in sys.argv[1:]:
    number, *arguments = map(int, word.split(","))
    result = libc.syscall(number, *arguments)
    print(errno.errorcode[ctypes.get_errno()] if result < 0 else "ok")
"""
COLUMN = 0 if platform.machine() == "x86_64" else 1


def ask(box: Sandbox, calls: "list[tuple[str, tuple[int, ...]]]") -> "list[str]":
    words = [",".join(map(str, (NUMBERS[name][COLUMN], *arguments))) for name, arguments in calls]
    return output(box, f"/usr/bin/python3 - {' '.join(words)}", stdin=PROBE.encode()).split()


def test_system_calls_that_nothing_needs_are_refused(opened: Opener) -> None:
    expected = {
        "clone3": "ENOSYS",
        "io_uring_setup": "ENOSYS",
        "open_tree": "ENOSYS",
        "fsopen": "ENOSYS",
        "mount_setattr": "ENOSYS",
        "mount": "EPERM",
        "unshare": "EPERM",
        "setns": "EPERM",
        "keyctl": "EPERM",
        "add_key": "EPERM",
        "request_key": "EPERM",
        "bpf": "EPERM",
        "perf_event_open": "EPERM",
        "userfaultfd": "EPERM",
        "kexec_load": "EPERM",
        "init_module": "EPERM",
        "open_by_handle_at": "EPERM",
        "pidfd_getfd": "EPERM",
    }
    box = opened()
    assert dict(zip(expected, ask(box, [(name, ()) for name in expected]), strict=True)) == expected
    new_user, tiocsti, tioclinux, vsock = 0x1000_0000, 0x5412, 0x541C, 40
    calls = [
        ("clone", (new_user, 0, 0)),
        ("ioctl", (0, tiocsti, 0)),
        ("ioctl", (0, tioclinux, 0)),
        ("socket", (vsock, 1, 0)),
    ]
    assert ask(box, calls) == ["EPERM", "EPERM", "EPERM", "EAFNOSUPPORT"]


def test_what_programs_need_still_works(opened: Opener) -> None:
    program = (
        "import threading, multiprocessing.pool as p, subprocess, asyncio, socket\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "print(subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout.strip())\n"
        "async def main():\n"
        "    q = await asyncio.create_subprocess_exec('true'); print('async', await q.wait())\n"
        "asyncio.run(main())\n"
        "a, b = socket.socketpair(); a.send(b'pair'); print(b.recv(4).decode())\n"
    )
    assert output(opened(), "/usr/bin/python3 -", stdin=program.encode()).split() == [
        "thread",
        "child",
        "async",
        "0",
        "pair",
    ]


def test_the_filter_can_be_left_out(place: Path) -> None:
    with Sandbox(config=SandboxConfig(seccomp=False)) as box:
        assert output(box, "grep Seccomp: /proc/self/status").split() == ["Seccomp:", "0"]
    with Sandbox(config=SandboxConfig()) as box:
        assert output(box, "grep Seccomp: /proc/self/status").split() == ["Seccomp:", "2"]


def run_filter(program: bytes, *, arch: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the kernel would do: a small machine for the instructions that the filter uses."""
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    data = struct.pack("=iIQ6Q", number, arch, 0, *(*arguments, *[0] * (6 - len(arguments))))
    at = loaded = 0
    while True:
        code, if_true, if_false, value = steps[at]
        if code == 0x06:
            return value
        if code == 0x20:
            loaded = struct.unpack_from("=I", data, value)[0]
            at += 1
            continue
        met = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
        at += 1 + (if_true if met else if_false)


ALLOW, ERROR = 0x7FFF_0000, 0x0005_0000
ARCHES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}


@pytest.mark.parametrize("machine", ARCHES)
@pytest.mark.parametrize("rules", [BASE, (*BASE, *SHARED_PROCESSES, *SHARED_NETWORK)], ids=["own", "shared"])
def test_the_filter_answers_as_the_rules_say(machine: str, rules: "tuple[Rule, ...]") -> None:
    program = render_filter(rules, machine=machine)
    column = 0 if machine == "x86_64" else 1
    by_number = {number: rule for rule in rules if (number := NUMBERS[rule.name][column]) is not None}
    for number in range(480):
        rule = by_number.get(number)
        found = run_filter(program, arch=ARCHES[machine], number=number)
        if rule is None:
            assert found == ALLOW, number
        elif rule.argument is None:
            assert found == ERROR | rule.error, rule
        else:
            refused = bool(rule.none_of) and 0 not in rule.none_of
            assert found == (ERROR | rule.error if refused else ALLOW), rule
            for value in (*rule.one_of, *([rule.any_bit & -rule.any_bit] if rule.any_bit else []), *rule.none_of):
                arguments = (*[0] * rule.argument, value)
                found = run_filter(program, arch=ARCHES[machine], number=number, arguments=arguments)
                assert found == (ALLOW if value in rule.none_of else ERROR | rule.error), (rule, value)
    assert run_filter(program, arch=0x4000_0003, number=1) == ERROR | errno.ENOSYS  # 32 bit
    if machine == "x86_64":
        assert run_filter(program, arch=ARCHES[machine], number=0x4000_0000 | 1) == ERROR | errno.ENOSYS  # x32


def test_there_is_no_filter_for_other_machines() -> None:
    assert render_filter(BASE, machine="riscv64") == b""


def test_this_machine_has_the_numbers() -> None:
    header = Path(f"/usr/include/{os.uname().machine}-linux-gnu/asm/unistd_64.h")
    if not header.exists() or platform.machine() != "x86_64":
        pytest.skip("no headers of the kernel here to compare with")
    words = [line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR_")]
    there = {name.removeprefix("__NR_"): int(number) for _, name, number in words}
    assert {name: numbers[0] for name, numbers in NUMBERS.items() if name in there} == {
        name: there[name] for name in NUMBERS if name in there
    }
    assert len(set(NUMBERS) & set(there)) > 40
