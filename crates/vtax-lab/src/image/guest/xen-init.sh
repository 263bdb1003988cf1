#!/bin/busybox sh
# PID 1 of the initial RAM disk of a paravirtual Xen guest: front ends, root file system, network,
# then the agent's init. As the VM's, but for its devices: the disks are xvda and xvdb, and the
# agent's channel is the second console.
say() { echo "vtax-init: $*"; }
fail() { say "FAILED: $*"; exec poweroff -f; }

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do
    insmod "$module" || fail "cannot load ${module##*/}"
done

address= address6= scratch= mtu=
for word in $(cat /proc/cmdline); do
    case $word in
    vtax.ip=*) address=${word#*=} ;;
    vtax.ip6=*) address6=${word#*=} ;;
    vtax.mtu=*) mtu=${word#*=} ;;
    vtax.scratch=*) scratch=${word#*=} ;;
    esac
done

wait_for() {
    tries=0
    until [ -e "$1" ]; do
        tries=$((tries + 1))
        [ $tries -gt 1000 ] && fail "$1 does not appear"
        usleep 10000
    done
}

# Dom0 has no copy-on-write disk to offer: the image is read-only, with a layer in memory above.
wait_for /dev/xvda
mkdir /lower /layer
mount -t ext4 -o ro,noatime /dev/xvda /lower || fail "cannot mount xvda"
mount -t tmpfs layer /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work root /newroot ||
    fail "cannot put a layer above the root"
mount -t tmpfs -o mode=755 run /newroot/run
mount -t tmpfs tmp /newroot/tmp
mkdir -p /newroot/run/vtax /newroot/run/lock
if [ -n "$scratch" ]; then
    wait_for /dev/xvdb
    mkdir -p "/newroot$scratch"
    mount -t ext4 -o noatime /dev/xvdb "/newroot$scratch" || fail "cannot mount xvdb"
fi

ip link set lo up
wait_for /sys/class/net/eth0
[ -z "$mtu" ] || ip link set eth0 mtu "$mtu" || fail "cannot set the MTU $mtu"
echo 1 >/proc/sys/net/ipv6/conf/eth0/addr_gen_mode
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
ip address add "$address" dev eth0 && ip link set eth0 up || fail "cannot configure eth0"
[ -z "$address6" ] || ip address add "$address6" dev eth0 || fail "cannot add $address6"

# A console is a terminal; the agent wants plain bytes. The settings last while it is open.
wait_for /dev/hvc1
/bin/busybox stty -F /dev/hvc1 raw -echo || fail "cannot set up the agent's channel"
exec 3<>/dev/hvc1

mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
for system in proc sys dev; do
    mount --move /$system /newroot/$system
done
exec switch_root /newroot /usr/lib/vtax/init /dev/hvc1
