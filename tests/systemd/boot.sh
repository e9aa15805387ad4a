#!/bin/bash
# Inside new namespaces (created by machine.py): set up the root's view of the kernel, then become its systemd.
#   boot.sh ROOT RESULTS LAYOUT     LAYOUT is "unified" or the version 1 controllers, comma separated
set -eu
root=$1 results=$2 layout=$3
mount --make-rprivate /
mount --rbind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
if [ "$layout" = unified ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    for controller in ${layout//,/ }; do
        mkdir "sys/fs/cgroup/$controller"
        mount -t cgroup -o "$controller" cgroup "sys/fs/cgroup/$controller"
    done
    mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
fi
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount --bind "$results" opt/trial/results
ip link set lo up
hostname machine
mkdir run/before
pivot_root . run/before  # chroot is not enough: units with their own mount namespaces need a real root
cd /
umount -l /run/before
mount --make-rshared /   # as systemd does on a real machine; without it credentials do not reach their service
exec env -i container=trial PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --show-status=no
