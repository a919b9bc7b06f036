#!/usr/bin/env bash
# PID 1 of a host: own files, own address, an ssh server. Runs in new net, mount, pid, uts and ipc namespaces.
# All of the machine is read-only here, except for the folders of this host.
set -euo pipefail
folder=$1 name=$2 address=$3 gateway=$4 packages=$5 python=$6
shift 6 # what remains: folders of the machine that the host must not see

hostname "$name"
mount --make-rprivate /
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$folder/cpus" /sys/devices/system/cpu/online

# Read-only: the packages, and the Python that the virtual environment rests on.
mount --bind "$packages" "$folder/home/.packages"
mount -o remount,bind,ro "$folder/home/.packages"
case $python in
/root/*)
  mkdir -p "$folder/home/${python#/root/}"
  mount --bind "$python" "$folder/home/${python#/root/}"
  mount -o remount,bind,ro "$folder/home/${python#/root/}"
  ;;
esac
for hidden in "$@"; do
  mount -t tmpfs -o ro,size=4k none "$hidden"
done
mount --rbind "$folder/home" /root
for own in /run /dev/shm /var/tmp /sys/fs/cgroup; do
  mount -t tmpfs none "$own"
done
mount --bind "$folder/tmp" /tmp # with it, the folders of the other hosts are out of sight
mount -o remount,bind,ro /

ip link set lo up
for _ in {1..100}; do
  ip link show eth0 > /dev/null 2>&1 && break
  sleep 0.05
done
ip address add "$address/24" dev eth0
ip link set eth0 up
ip route add default via "$gateway" # it forwards nothing, but with a route Ray asks the network for the host's address

export HOME=/root
cd /root
if [ -e /root/.ssh/host_key ]; then
  mkdir -p /run/sshd
  "$(command -v sshd)" -f /dev/null -h /root/.ssh/host_key -o UsePAM=no -o PasswordAuthentication=no \
    -o PidFile=none -o UseDNS=no -E /root/.ssh/sshd.log
fi
touch /run/booted
while :; do sleep 1000 & wait; done # bash also reaps what has lost its parent
