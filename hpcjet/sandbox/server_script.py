"""The command server that runs inside a sandbox, and the keeper above it: small bash programs."""

_SERVER = r"""
_hj_shell=$1 _hj_io=$2;
ulimit -c 0;
[ -z "$3" ] || ulimit -f "$3";
[ -z "$4" ] || ulimit -n "$4";
[ -z "$5" ] || ulimit -u "$5";
set --;
exec 2>/dev/null;
printf 'ready\n';
while IFS= read -r -d '' _hj_out && IFS= read -r -d '' _hj_in && IFS= read -r -d '' _hj_cwd &&
      IFS= read -r -d '' _hj_how && IFS= read -r -d '' _hj_cmd; do
  set -m;
  (
    set +m;
    cd -- "$_hj_cwd" || exit 126;
    unset OLDPWD;
    case $_hj_how in
      own) exec "$_hj_shell" -c "$_hj_cmd";;
      file) exec "$_hj_shell" "$_hj_io/$_hj_cmd";;
    esac;
    set +p;
    unset _hj_shell _hj_io _hj_out _hj_in _hj_cwd _hj_how;
    SECONDS=0;
    eval "$_hj_cmd"
  ) <"$_hj_in" >"$_hj_io/$_hj_out" 2>&1 &
  set +m;
  _hj_pid=$!;
  wait "$_hj_pid";
  _hj_code=$?;
  while kill -0 "$_hj_pid"; do
    wait "$_hj_pid";
    _hj_code=$?;
  done;
  printf '%d\n' "$_hj_code";
done
"""
SERVER = " ".join(line.strip() for line in _SERVER.splitlines()).strip()
"""Runs each command in its own process group, with the pipes it is told to use: in a new bash, or in a fork of itself.

Arguments: shell, folder of pipes, file size limit in KiB, open files, processes (empty: no limit). stdin carries five
NUL-ended fields per command: output pipe, stdin path, cwd, how ("own": a new bash; "file": a new bash that reads the
command from a file; "fork"), and the command or the name of the file. stdout carries "ready" and then one exit code
per line.

As process 1 it cannot be killed from inside, and it reaps what the commands leave behind. Commands can write to neither
of its pipes: it is started from a copy of bash that may be executed but not read, so the kernel keeps its /proc/1 from
other processes of the same user. It comes as one line by `-c`: from a file, a fork of it would share the place up to
which the file is read, and bash's messages would name that file and its lines instead of those of the command.

The second `wait`: a signal to this shell ends `wait` early; the command is still there then. All names start with _hj_,
so that no variable of the caller's is changed on the way to a command.
"""

KEEPER = r"""
# Stands above the command server of a sandbox that bubblewrap did not make, and ends with all below it when the
# process that opened the sandbox is gone: its end of the lifeline closes, or the kernel sends SIGHUP.
end() {
  trap '' HUP
  while _below $$; do :; done
  exit 0
}
_below() {
  local pid found=1 task children
  for task in /proc/$1/task/*; do
    read -r children <"$task/children"
    for pid in $children; do
      _below "$pid"
      kill -KILL "$pid" && found=0
    done
  done
  return $found
}
trap end HUP
while read -r -u "$1" _; do :; done
end
"""
"""Argument: the descriptor of the lifeline."""
