#!/bin/busybox sh
# PID 1 of the initial RAM disk: drivers, root file system, network, then the agent's init.
# One static binary does it all, because under emulation each dynamically linked program costs
# some 50 ms.
say() { echo "vtax-init: $*"; }
fail() { say "FAILED: $*"; exec poweroff -f; }

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# Front ends of Xen refuse to load elsewhere, and its guests have no PCI devices.
xen=
[ ! -e /sys/hypervisor/type ] || read -r xen </sys/hypervisor/type
for module in /modules/*; do
    case $module in
    *xen*) [ "$xen" = xen ] || continue ;;
    *) [ "$xen" != xen ] || continue ;;
    esac
    insmod "$module" || fail "cannot load ${module##*/}"
done

root= address= address6= gateway= scratch= mtu= agent=
for word in $(cat /proc/cmdline); do
    case $word in
    vtax.root=*) root=${word#*=} ;;
    vtax.ip=*) address=${word#*=} ;;
    vtax.ip6=*) address6=${word#*=} ;;
    vtax.gateway=*) gateway=${word#*=} ;;
    vtax.mtu=*) mtu=${word#*=} ;;
    vtax.scratch=*) scratch=${word#*=} ;;
    vtax.agent=*) agent=${word#*=} ;;
    esac
done

# The drivers probe asynchronously: wait for what the command line promised.
wait_for() {
    tries=0
    until [ -e "$1" ]; do
        tries=$((tries + 1))
        [ $tries -gt 1000 ] && fail "$1 does not appear"
        usleep 10000
    done
}

wait_for "/dev/$root"
mount -t ext4 -o noatime "/dev/$root" /newroot || fail "cannot mount $root"
mount -t tmpfs -o mode=755 run /newroot/run
mount -t tmpfs tmp /newroot/tmp
mkdir -p /newroot/run/vtax /newroot/run/lock
if [ -n "$scratch" ]; then
    device=/dev/${scratch%%:*} directory=/newroot${scratch#*:}
    wait_for "$device"
    mkdir -p "$directory"
    mount -t ext4 -o noatime "$device" "$directory" || fail "cannot mount $device"
fi

ip link set lo up
if [ -n "$address" ]; then
    wait_for /sys/class/net/eth0
    [ -z "$mtu" ] || ip link set eth0 mtu "$mtu" || fail "cannot set the MTU $mtu"
    # As on the other platforms: no address but the given ones, and none probed for.
    echo 1 >/proc/sys/net/ipv6/conf/eth0/addr_gen_mode
    echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
    ip address add "$address" dev eth0 && ip link set eth0 up || fail "cannot configure eth0"
    [ -z "$address6" ] || ip address add "$address6" dev eth0 || fail "cannot add $address6"
    [ -z "$gateway" ] || ip route add default via "$gateway" || fail "cannot route over $gateway"
fi

# The agent's port: a named console of Xen or serial port, or one of virtio. Without udev there is no
# /dev/virtio-ports: the kernel names these under /sys.
port=
if [ -n "$agent" ]; then
    port=/dev/$agent
    wait_for "$port"
fi
tries=0
while [ -z "$port" ]; do
    for candidate in /sys/class/virtio-ports/*; do
        [ -e "$candidate/name" ] || continue
        read -r name <"$candidate/name"
        [ "$name" = org.qemu.guest_agent.0 ] && port=/dev/${candidate##*/}
    done
    tries=$((tries + 1))
    [ $tries -gt 1000 ] && fail "the guest agent's port does not appear"
    [ -n "$port" ] || usleep 10000
done

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
exec switch_root /newroot /usr/lib/vtax/init "$port"
