#!/bin/busybox sh
# PID 1 of an emulated host's initial RAM disk: loads drivers, mounts the root disk, and starts /run/testbed/start.
say() { echo "vtax-testbed: $*"; }
fail() { say "FAILED: $*"; exec poweroff -f; }

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do
    insmod "$module" || fail "cannot load ${module##*/}"
done

wait_for() {
    tries=0
    until [ -e "$1" ]; do
        tries=$((tries + 1))
        [ $tries -gt 1000 ] && fail "$1 does not appear"
        usleep 10000
    done
}

# Three disks in memory. Under Xen the kernel command line has their addresses; elsewhere they are persistent memory,
# which the kernel does not number by address.
disks=
for word in $(cat /proc/cmdline); do
    case $word in
    testbed.memory=*)
        place=${word#*=}
        set -- $disks
        echo "disk$#,${place%:*},${place#*:}" >/sys/module/phram/parameters/phram || fail "no disk at $place"
        disks="$disks mtdblock$#"
        ;;
    esac
done
if [ -z "$disks" ]; then
    for number in 0 1 2; do
        wait_for "/sys/class/block/pmem$number/device/resource"
    done
    disks=$(for disk in /sys/class/block/pmem*; do
        echo "$(printf %016x "$(cat "$disk/device/resource")") ${disk##*/}"
    done | busybox sort | busybox cut -d" " -f2)
fi
set -- $disks
mkdir /dev/disk
for name in root guests payload; do
    wait_for "/dev/$1"
    ln -s "/dev/$1" "/dev/disk/$name"
    shift
done

mount -t ext4 -o noatime /dev/disk/root /newroot || fail "cannot mount the root disk"
mount -t tmpfs -o mode=755 run /newroot/run
mount -t tmpfs tmp /newroot/tmp
/bin/busybox mv /testbed /newroot/run/testbed || fail "cannot move the scripts to /run/testbed"
for system in proc sys dev; do
    mount --move /$system /newroot/$system
done
exec switch_root /newroot /run/testbed/start
