#!/bin/sh
# Install the Debian packages that the tests need; without root, name the line that does.
set -eu
packages=$(grep -v '^#' "$(dirname "$0")/packages.txt")
missing=
for package in $packages; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
line="apt-get install --yes --no-install-recommends$missing"
if [ "$(id -u)" != 0 ]; then
  echo "the tests need Debian packages: sudo $line" >&2
  exit 2
fi
export DEBIAN_FRONTEND=noninteractive
# A source of this machine that does not answer is no reason to stop: the lists that there are may do.
apt-get update --quiet --quiet || echo 'apt-get update failed; going on' >&2
# No daemon of a package may start: the lab brings up its own, and takes them down again.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' >$policy
  chmod +x $policy
  trap 'rm -f $policy' EXIT
fi
echo "installing$missing"
$line >/dev/null
