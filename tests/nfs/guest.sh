#!/bin/bash
# Runs a command in a User Mode Linux guest that is an NFS 4.2 server and two NFS clients at once, so that two "nodes" with
# caches of their own share a folder: NODE_A and NODE_B in the command's environment. The guest's root file system is this
# machine's. Needs no KVM and no NFS in this machine's kernel, but Debian's user-mode-linux, nfs-kernel-server, nfs-common,
# kmod, e2fsprogs, iproute2 and gcc (see registers.c).
#   guest.sh WORKDIR COMMAND...    output in WORKDIR/output, exit status in WORKDIR/status; 3 if the guest did not come up
set -euo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

boot() {
  local work=$1; shift
  truncate -s 64M "$work/disk"
  mkfs.ext4 -q -F "$work/disk"
  { export -p; printf 'cd %q\nexec ' "$PWD"; printf '%q ' "$@"; echo; } > "$work/command"
  printf '#!/bin/bash\nexec bash %q --in-guest %q\n' "$(realpath "${BASH_SOURCE[0]}")" "$work" > "$work/init"
  chmod +x "$work/init"
  gcc -shared -fPIC -O2 -o "$work/registers.so" "$(dirname "${BASH_SOURCE[0]}")/registers.c" -ldl
  TMPDIR=$work LD_PRELOAD=$work/registers.so linux.uml mem=768M quiet rw root=/dev/root rootfstype=hostfs rootflags=/ ubd0="$work/disk" \
    con=null con0=null,fd:1 init="$work/init" < /dev/null > "$work/console" 2>&1 || true
  [ -e "$work/status" ] || { tail -n 40 "$work/console" "$work/output" >&2; exit 3; }
  exit "$(cat "$work/status")"
}

power_off() {
  echo "$status" > "$work/status.part"
  mv "$work/status.part" "$work/status"
  sync
  echo o > /proc/sysrq-trigger
  sleep 60
}

mount_fresh() {  # nothing of the guest's own state may land in this machine's folders
  mount -t proc proc /proc
  mount -t sysfs sys /sys
  local folder
  for folder in /run /mnt /var/lib/nfs; do mount -t tmpfs tmpfs "$folder"; done
  mkdir -p /dev/shm
  mount -t tmpfs tmpfs /dev/shm
}

serve() {
  mkdir -p /mnt/disk /mnt/modules/lib /var/lib/nfs/{v4recovery,rpc_pipefs,sm}
  touch /var/lib/nfs/{etab,rmtab}
  ln -s /usr/lib/uml/modules /mnt/modules/lib/modules
  modprobe -d /mnt/modules nfsd
  modprobe -d /mnt/modules nfsv4
  ip link set lo up
  mount -t ext4 /dev/ubda /mnt/disk
  mount -t nfsd nfsd /proc/fs/nfsd
  exportfs -o rw,fsid=0,no_root_squash,no_subtree_check,insecure '*:/mnt/disk'
  rpc.mountd --no-nfs-version 2 --no-nfs-version 3
  rpc.nfsd --no-nfs-version 3 --nfs-version 4 4
  echo Y > /proc/fs/nfsd/v4_end_grace  # nobody has locks to reclaim
}

connect() {  # the server tells clients apart by host name, a client tells servers apart by address
  local side
  for side in a b; do
    mkdir "/mnt/$side"
    hostname "node-$side"
    mount -t nfs4 -o vers=4.2,nosharecache "127.0.0.$((1 + $(printf '%d' "'$side") % 2)):/" "/mnt/$side"
  done
}

in_guest() {
  work=$1 status=3
  exec > "$work/output" 2>&1
  trap power_off EXIT
  mount_fresh
  serve
  connect
  status=0
  NODE_A=/mnt/a NODE_B=/mnt/b bash "$work/command" || status=$?
  umount /mnt/a /mnt/b || true
}

if [ "$1" = --in-guest ]; then in_guest "$2"; else boot "$@"; fi
