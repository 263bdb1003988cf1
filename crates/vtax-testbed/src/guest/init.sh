#!/bin/busybox sh
# PID 1 of an emulated host's initial RAM disk, in the place of the guests' own: drivers, the
# root disk, then the payload that came along.
say() { echo "vtax-testbed: $*"; }
fail() { say "FAILED: $*"; exec poweroff -f; }

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do
    insmod "$module" || fail "cannot load ${module##*/}"
done

root= guests=
disk=0
for word in $(cat /proc/cmdline); do
    case $word in
    testbed.memory=*)
        start=${word#*=}
        echo "disk$disk,${start%:*},${start#*:}" >/sys/module/phram/parameters/phram ||
            fail "no disk at $start"
        disk=$((disk + 1))
        ;;
    testbed.root=*) root=${word#*=} ;;
    testbed.guests=*) guests=${word#*=} ;;
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

wait_for "/dev/$root"
mount -t ext4 -o noatime "/dev/$root" /newroot || fail "cannot mount $root"
mount -t tmpfs -o mode=755 run /newroot/run
mount -t tmpfs tmp /newroot/tmp
[ -z "$guests" ] || wait_for "/dev/$guests"
/bin/busybox mv /payload /newroot/run/testbed || fail "cannot keep the payload"
for system in proc sys dev; do
    mount --move /$system /newroot/$system
done
exec switch_root /newroot /run/testbed/start
