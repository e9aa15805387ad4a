#!/bin/bash
# Inside new namespaces (created by machine.py): run one command as somebody who has just installed this Debian.
#   enter.sh ROOT USER DIRECTORY COMMAND     without NETWORK=yes, only 127.0.0.1 is there: no other address, no IPv6
set -eu
root=$1 user=$2 directory=$3 command=$4
hostname elsewhere
if [ "$NETWORK" != yes ]; then
    for scope in all default lo; do
        [ ! -e "/proc/sys/net/ipv6/conf/$scope" ] || echo 1 >"/proc/sys/net/ipv6/conf/$scope/disable_ipv6"
    done
    ip link set lo up
fi
mount --make-rprivate /
mount --rbind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm run/before run/lock
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
chmod 1777 dev/shm run/lock
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${number%:*}" "dev/${number#*:}"; done
pivot_root . run/before  # chroot is not enough: tests that create a mount namespace need a real root
cd /
umount -l /run/before
rmdir /run/before
umask "$MASK"
ulimit -Sn 1024
home=$(getent passwd "$user" | cut -d: -f6)
PATH=/usr/local/bin:/usr/bin:/bin
[ "$user" != root ] || PATH=/usr/local/sbin:/usr/sbin:/sbin:$PATH
cd "$directory"
# No locale, another time zone. The shell stays process 1 and reaps what the tests leave behind.
setpriv --reuid "$user" --regid "$user" --init-groups \
  env -u NETWORK -u MASK -u OLDPWD HOME="$home" USER="$user" LOGNAME="$user" TZ=CHAST-12:45 bash -c "$command" </dev/null
exit $?
