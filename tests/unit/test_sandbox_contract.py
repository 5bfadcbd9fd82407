"""What every sandbox must do, with an overlay and with a copy of the tree."""
# ruff: noqa: F811 (fixtures are imported)

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_scenes import (  # noqa: F401 (fixtures)
    NAP,
    Opener,
    box,
    config,
    hand_over,
    has_fixed_paths,
    make_tree,
    napping,
    needs_namespaces,
    opened,
    output,
    place,
    processes_below,
    processes_showing,
    tree,
    wait_for,
)

from hpcjet.errors import SandboxError
from hpcjet.sandbox import Background, Limits, Mount, Sandbox, View
from hpcjet.sandbox.forkable import can_fork, environment_allows


def test_commands_run_as_an_unprivileged_user_with_a_name_and_a_home(box: Sandbox, place: Path) -> None:
    home = box.where("/home/agent")
    assert output(box, "echo ~; touch ~/x && echo $HOME") == f"{home}\n{home}\n"
    if has_fixed_paths(box):
        assert output(box, "id -un") == "agent\n"
    assert output(box, "id -u").strip() != "0"
    owners = {Path(f"/proc/{pid}").stat().st_uid for pid in processes_below(box)}
    assert owners and 0 not in owners


def test_a_view_shows_the_tree_and_keeps_changes_to_itself(opened: Opener, tree: Path) -> None:
    first, second = opened(), opened()
    output(first, "echo changed >a.txt; rm folder/b.txt; echo new >folder/new.txt")
    assert output(first, "cat a.txt; ls folder") == "changed\nc.txt\nnew.txt\n"
    assert output(second, "cat a.txt; ls folder") == "one\nb.txt\nc.txt\n"
    assert sorted(path.name for path in (tree / "folder").iterdir()) == ["b.txt", "c.txt"]
    assert first.upper is not None and (first.upper / "a.txt").read_text() == "changed\n"


def test_the_upper_layer_of_one_sandbox_can_be_a_lower_of_the_next(opened: Opener, tree: Path, place: Path) -> None:
    first = opened(keep_scratch=True)
    output(first, "rm a.txt; rm -r folder; mkdir folder; echo kept >folder/d.txt; ln -s d.txt folder/link; echo x >new")
    first.close()
    assert first.upper is not None
    second = opened(view=View(lowers=(tree, first.upper), at="/elsewhere"), cwd="/elsewhere")
    listing = output(second, "find . | sort; cat folder/link")
    if (first.upper / "folder/b.txt").exists() or not list(first.upper.glob("a.txt")):
        # Without overlays the upper is the whole tree, and what was removed from it cannot hide a lower file.
        assert "kept" in listing
    else:
        assert listing == ".\n./folder\n./folder/d.txt\n./folder/link\n./new\nkept\n"


def test_times_of_the_tree_are_kept(box: Sandbox, tree: Path) -> None:
    os.utime(tree / "a.txt", (1, 1_000_000_000))
    assert output(box, "stat -c %Y folder/b.txt").strip() == str(int((tree / "folder/b.txt").stat().st_mtime))


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 7", 7),
        ("false", 1),
        ("kill -KILL $$", 137),
        ("kill -SEGV $$", 139),
        ("kill -INT $$", 130),
        ("bash -c 'kill -TERM $$'", 143),
        ("no-such-program", 127),
        ("set -o pipefail; exit 3 | true", 3),
        ("exec 3>&1 4>&2; exit 255", 255),
        ("kill 0", 143),
    ],
)
def test_exit_codes_are_exact(box: Sandbox, command: str, code: int) -> None:
    assert box.run(command, timeout_s=300).returncode == code
    assert output(box, "echo usable") == "usable\n"


SCRIPTS = (
    "echo a; no-such-program\nno-such-program-2",
    "ls /no/such; false || exit 5",
    "cat <<EOF\nhere $HOME\nEOF",
    "cat < <(echo substituted) /dev/stdin; echo to >/dev/stderr; echo x | cat /dev/fd/0",
    "f() { no-such-program; return 3; }; f; echo $?",
    "for i in 1 2 3; do (echo $i; exit $i) & wait; done; echo last",
    "x=$(printf 'two\\nlines'); echo \"$x\"; pwd; cd /; pwd; umask; ulimit -n",
    "exit 300",
    "return 3; echo after",
    "break; continue 2; echo after",
    "false | true; echo ${PIPESTATUS[@]} $?",
    "export A=1; /usr/bin/python3 -c 'import os, sys; print(os.environ[\"A\"], sys.stdin.read())'; ls /dev/fd | wc -l",
    'read x; echo read $? "$x"; read -t 0; cat; wait; echo done',
    "true &&",
    "# a comment",
    "",
    "shopt -s nullglob; echo *.none; [[ abc =~ b(.) ]]; echo ${BASH_REMATCH[1]}",
    "bash -c 'exit 9'; sh -c 'echo from sh >&2; exit 4'",
    "echo $UID $OSTYPE ${#HOME} ${x-unset}; printf '%s\\n' ~ *.txt",
    "exec 3>&1; echo three >&3",
    "timeout 0.1 sleep 5; echo $?",
    "mapfile -t lines < <(seq 3); echo ${#lines[@]}; (( 1 / 0 )); echo $?",
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_command_in_a_fork_of_the_server_does_what_one_in_a_new_bash_does(
    overlay_box: Sandbox, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = overlay_box.run(script, timeout_s=300)
    monkeypatch.setattr("hpcjet.sandbox.living.can_fork", lambda _: False)
    second = overlay_box.run(script, timeout_s=300)
    assert (first.returncode, first.output.replace(b" eval: ", b" -c: ")) == (second.returncode, second.output)


@pytest.mark.parametrize(
    "script",
    [
        "echo $$",
        "echo ${$}",
        "kill -9 $BASHPID",
        "set",
        "echo $0",
        "echo $-",
        ". ./rc",
        "a;. rc",
        "if true; then . rc; fi",
        "cat /proc/self/stat",
    ],
)
def test_what_could_show_the_difference_gets_a_bash_of_its_own(script: str) -> None:
    assert not can_fork(script.encode())
    assert can_fork(b"cd src && grep -rn 'def main' . | head -20; python3 -m pytest -q ../tests/test_a.py")
    assert not environment_allows({"BASH_ENV": "rc"}) and environment_allows({"PATH": "/bin"})


@pytest.fixture
def overlay_box(place: Path, tree: Path) -> Iterator[Sandbox]:
    with Sandbox(tree) as box:
        yield box


def test_a_missing_cwd_is_told(box: Sandbox) -> None:
    done = box.run("true", timeout_s=300, cwd="/no/such")
    assert done.returncode == 126 and b"/no/such" in done.output
    assert output(box, "pwd", cwd="/tmp") == box.where("/tmp") + "\n"


def test_nothing_but_files_leaks_from_one_command_to_the_next(box: Sandbox) -> None:
    box.run(
        "cd /; export LEAK=1; alias ls=false; exec 5>&1; ulimit -n 64; umask 077; echo x >$TMPDIR/stays", timeout_s=300
    )
    found = output(box, "pwd; echo ${LEAK-none}; umask; ulimit -n; cat $TMPDIR/stays")
    assert found == f"{box.where('/testbed')}\nnone\n0022\n4096\nx\n"


def test_the_environment_is_a_small_fixed_one_and_the_given_variables(
    opened: Opener, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "of-the-host")
    make_tree(tree, {"rc": "export FROM_RC=1\n"})
    box = opened(env={"TOKEN": "given", "BASH_ENV": "rc", "_hj": "x", "odd": "a\nb 'c'"})
    names = output(box, "env -0 2>/dev/null | tr '\\0\\n' '\\n ' | cut -d= -f1 | sort | tr '\\n' ' '").split()
    assert set(names) == {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "TERM", "PWD", "SHLVL", "_"),
        *("TOKEN", "BASH_ENV", "FROM_RC", "_hj", "odd"),
    }
    assert output(box, 'printf %s "$odd"').endswith("a\nb 'c'")


def test_secrets_are_in_no_argument_list(opened: Opener, place: Path) -> None:
    box = opened(env={"TOKEN": "s3cret-value"})
    output(box, "true")
    pids = processes_showing(place)
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}
    for pid in parents | set(pids):
        assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert "TOKEN" in output(box, "env")
    assert box.run("grep -aq s3cret /proc/1/environ /proc/1/cmdline", timeout_s=300).returncode == 2


def test_stdin_is_empty_by_default_and_any_bytes_if_given(box: Sandbox) -> None:
    assert output(box, "cat; python3 </dev/stdin; echo done") == "done\n"
    data = bytes(range(256)) * 4096
    assert output(box, "sha256sum", stdin=data).split()[0] == hashlib.sha256(data).hexdigest()
    assert output(box, "wc -c").strip() == "0"


@pytest.mark.parametrize("size", [100, 2048, 2049, 140_000, 1_000_000])
def test_long_commands(box: Sandbox, size: int) -> None:
    command = f"cat >$TMPDIR/long <<'END'\n{'é' * (size // 2)}\nEND\nwc -c <$TMPDIR/long"
    assert output(box, command).strip() == str(size // 2 * 2 + 1)


def test_a_nul_byte_in_a_command_is_an_error(box: Sandbox) -> None:
    with pytest.raises(ValueError, match="NUL"):
        box.run("echo a\0b", timeout_s=300)
    assert output(box, "echo usable") == "usable\n"


def test_commands_and_output_are_bytes(box: Sandbox) -> None:
    command = os.fsdecode(b"printf '\\377\\000%s' '\xe9'; echo >\xe9; ls")
    done = box.run(command, timeout_s=300)
    assert done.output.startswith(b"\xff\x00\xe9") and b"\n\xe9\n" in b"\n" + done.output[3:]


def test_long_output_keeps_head_and_tail(box: Sandbox) -> None:
    done = box.run("seq 1 1000000; echo end >&2", timeout_s=300)
    size = len("".join(f"{i}\n" for i in range(1, 1_000_001))) + 4
    assert done.output.startswith(b"1\n2\n3\n") and done.output.endswith(b"\n999999\n1000000\nend\n")
    assert len(done.output) == 10_000 and done.dropped_bytes == size - 10_000


@pytest.mark.alone
def test_a_background_process_neither_blocks_nor_writes_into_the_next_answer(box: Sandbox) -> None:
    begin = time.monotonic()
    done = box.run(
        "(for i in $(seq 1000); do echo noise; echo x >>$TMPDIR/beats; sleep 0.01; done) & echo mine", timeout_s=300
    )
    assert time.monotonic() - begin < 5 and done.output.startswith(b"mine\n") and not done.timed_out
    time.sleep(0.1)
    assert output(box, "echo clean") == "clean\n"
    beats = output(box, "wc -l <$TMPDIR/beats")
    wait_for(lambda: output(box, "wc -l <$TMPDIR/beats") != beats)  # it got no SIGPIPE


def test_a_background_process_that_writes_much_is_not_stalled_for_ever(box: Sandbox) -> None:
    output(box, "(head -c 20000000 /dev/zero; echo done >$TMPDIR/done) & true")
    wait_for(lambda: box.run("cat $TMPDIR/done", timeout_s=300).returncode == 0)


@pytest.mark.alone
def test_at_the_time_limit_all_descendants_die_and_the_sandbox_lives(box: Sandbox, place: Path) -> None:
    output(box, f"sleep {NAP}1 & echo $! >$TMPDIR/before")
    begin = time.monotonic()
    done = box.run(
        f"sleep {NAP}2 & (setsid sleep {NAP}3 &) ; setsid nohup bash -c 'trap \"\" TERM; sleep {NAP}4' & "
        f"echo partial; echo $(( 1 + 1 )); sleep {NAP}5",
        timeout_s=1,
    )
    assert done.timed_out and done.output == b"partial\n2\n" and done.returncode == 137
    assert 1 <= done.seconds < 5 and time.monotonic() - begin < 5
    # The one of an earlier command stays.
    assert output(box, f"pgrep -af '[s]leep {NAP}'").split(maxsplit=1)[1] == f"sleep {NAP}1\n"


def test_a_command_that_forks_all_the_time_is_killed(box: Sandbox) -> None:
    done = box.run(f"f() {{ (f) & (f) & }}; while :; do (timeout 0.001 sleep {NAP} &) ; done", timeout_s=0.5)
    assert done.timed_out
    assert output(box, "echo usable") == "usable\n" and napping(box) == 0


def test_end_background(box: Sandbox) -> None:
    output(box, f"sleep {NAP} & (setsid sleep {NAP} &); true")
    wait_for(lambda: napping(box) == 2)
    box.end_background()
    assert napping(box) == 0


def test_background_processes_are_kept_or_killed_as_the_policy_says(opened: Opener) -> None:
    box = opened(background=Background.kill)
    output(box, f"sleep {NAP} & (setsid sleep {NAP} &); true", background=Background.keep)
    wait_for(lambda: napping(box) == 0)  # `pgrep` is a command too, and after it nothing is left
    output(box, f"(setsid sleep {NAP} &) ; sleep {NAP} & true")
    assert napping(box) == 0


def test_commands_cannot_reach_the_server(box: Sandbox) -> None:
    needs_namespaces(box)
    for attack in ("echo 0 >/proc/1/fd/1", "cat /proc/1/environ", "ls /proc/1/fd/", "echo >/run/hpcjet/x"):
        assert box.run(attack, timeout_s=300).returncode != 0, attack
    for attack in (
        "kill -9 -1",
        "kill -INT -1; kill -TERM -1; kill -HUP -1; kill -STOP -1",
        "kill -9 1",
        "kill -INT 1",
    ):
        box.run(attack, timeout_s=10)
        assert output(box, "echo usable") == "usable\n"


def test_there_is_no_network_but_a_loopback(box: Sandbox) -> None:
    needs_namespaces(box)
    assert output(box, "cat /proc/net/dev | grep -c :").strip() == "1"
    program = (
        "import socket, threading; s = socket.create_server(('127.0.0.1', 0));"
        "c = socket.create_connection(s.getsockname()); s.accept()[0].sendall(b'ok'); print(c.recv(2).decode());"
        "print(socket.gethostbyname(socket.gethostname()))"
    )
    assert output(box, f'/usr/bin/python3 -c "{program}"') == "ok\n127.0.0.1\n"


@pytest.mark.alone
def test_a_name_is_unknown_at_once_without_a_network(box: Sandbox) -> None:
    begin = time.monotonic()
    assert box.run("getent hosts pypi.org", timeout_s=300).returncode == 2
    lookup = "import socket; socket.getaddrinfo('pypi.org', 443)"
    assert b"gaierror" in box.run(f'/usr/bin/python3 -c "{lookup}"', timeout_s=300).output
    assert time.monotonic() - begin < 2


def test_the_host_is_out_of_sight(box: Sandbox) -> None:
    needs_namespaces(box)
    for path in ("/root", "/home/../etc/shadow", "/run/user", "/run/munge", "/var/lib", "/sys", "/etc/ssh", "/work"):
        assert box.run(f"test -e {path}", timeout_s=300).returncode == 1, path
    for path in ("/x", "/dev/x", "/etc/x", "/usr/x", "/var/x", "/run/hpcjet/x"):
        assert box.run(f"touch {path}", timeout_s=300).returncode == 1, path
    assert int(output(box, "ls -d /proc/[0-9]* | wc -l")) < 8
    assert output(
        box, "touch /tmp/x /dev/shm/x ~/x /var/tmp/y && ls /tmp; df --output=target /dev/shm | tail -1"
    ).split() == [
        *("x", "y", "/dev/shm"),
    ]


def test_no_user_namespace_can_be_made_inside(box: Sandbox) -> None:
    for options in ("-U", "-Ur", "-m", "-p --fork", "-n"):
        done = box.run(f"unshare {options} true", timeout_s=300)
        assert done.returncode == 1 and b"unshare failed" in done.output


def test_mounts(opened: Opener, place: Path) -> None:
    shared = make_tree(place / "shared", {"f": "seen\n"})
    box = opened(
        mounts=(
            Mount(source=shared, target="/data/ro"),
            Mount(source=shared / "f", target="/data/file"),
            Mount(source=shared, target="/rw", writable=True),
        ),
        view=None,
        cwd="/data",
    )
    assert box.upper is None
    ro, file, rw = (box.where(path) for path in ("/data/ro", "/data/file", "/rw"))
    assert output(box, f"cat {ro}/f {file}; echo w >{rw}/g", cwd="/data/ro") == "seen\nseen\n"
    assert (shared / "g").read_text() == "w\n"
    if has_fixed_paths(box):  # else the two are one folder, which may be written
        assert box.run("echo w >/data/ro/f", timeout_s=300).returncode != 0


def test_closing_leaves_nothing(opened: Opener, place: Path) -> None:
    box = opened()
    output(
        box,
        f"mkdir -p d/e; echo x >d/e/f; chmod 0 d/e; chmod 500 d; (setsid sleep {NAP} &); ln -s /etc/passwd l; rm a.txt",
    )
    pids = processes_below(box)
    assert len(pids) == 2
    box.close()
    box.close()
    assert not processes_showing(place) and not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert [path.name for path in place.iterdir()] == ["tree"]
    with pytest.raises(SandboxError, match="closed"):
        box.run("true", timeout_s=1)


def test_two_sandboxes_cannot_share_a_scratch_folder(opened: Opener, place: Path) -> None:
    first = opened(scratch=place / "same")
    with pytest.raises(SandboxError, match="in use"):
        opened(scratch=place / "same")
    assert output(first, "cat a.txt") == "one\n"


def test_a_sandbox_that_dies_is_an_error_and_can_be_closed(box: Sandbox, place: Path) -> None:
    for pid in processes_below(box):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="ended by itself"):
        box.run("true", timeout_s=5)
    with pytest.raises(SandboxError):
        box.end_background()
    box.close()


def test_closing_ends_a_command_of_another_thread(box: Sandbox) -> None:
    import threading

    errors: list[Exception] = []

    def run() -> None:
        try:
            box.run("sleep 1000", timeout_s=1000)
        except SandboxError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    box.close()
    thread.join(timeout=300)
    assert len(errors) == 1


def test_too_much_memory_ends_the_command(opened: Opener) -> None:
    box = opened(limits=Limits(memory_bytes=100 << 20))
    hungry = "x = []\nwhile True: x.append(bytearray(b'1' * (1 << 20))); time.sleep(0.002)"
    done = box.run(f'/usr/bin/python3 -c "import time\n{hungry}"', timeout_s=300)
    assert (done.limit, done.returncode, done.timed_out) == ("memory", 137, False)
    assert box.run("true", timeout_s=300).limit == ""


def test_large_processes_are_the_first_that_the_kernel_kills(opened: Opener) -> None:
    program = (
        "x, end = bytearray(b'1' * (100 << 20)), time.monotonic() + 200\n"
        "while (score := open('/proc/self/oom_score_adj').read()) != '1000\\n' and time.monotonic() < end:\n"
        "    time.sleep(0.1)\n"
        "print(score)"
    )
    assert output(opened(), "/usr/bin/python3 -", stdin=f"import time\n{program}".encode()).strip() == "1000"


def test_too_many_processes_end_the_command(opened: Opener) -> None:
    box = opened(limits=Limits(processes=40))
    done = box.run(f"for i in $(seq 200); do sleep {NAP} & done; wait", timeout_s=300)
    assert done.limit == "processes" and not done.timed_out
    assert napping(box) == 0


def test_a_fork_bomb_is_ended(opened: Opener) -> None:
    box = opened(limits=Limits(processes=60))
    done = box.run("bomb() { bomb | bomb & }; bomb; sleep 1000", timeout_s=20)
    assert done.limit == "processes" or done.timed_out
    assert output(box, "echo usable") == "usable\n"


def test_limits_of_files(opened: Opener) -> None:
    box = opened(limits=Limits(file_bytes=1 << 20, open_files=50))
    done = box.run("head -c 2000000 /dev/zero >$TMPDIR/big", timeout_s=300)
    assert (done.returncode, done.limit) == (153, "file")
    assert output(box, "ulimit -n; ulimit -Hn; ulimit -c").split() == ["50", "50", "0"]
