#!/bin/sh
# PID 1 of an emulated host after the initial RAM disk: starts the hypervisor, runs the plan or a shell, and writes the
# results to the ports. There is no service manager and no network but the lab's; a bare `wait` would wait for daemons.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
say() { echo "vtax-testbed: $*"; }
leave() {
    sync
    exec busybox poweroff -f
}
fail() {
    say "FAILED: $*"
    leave
}

# Drops the kernel's copy of a disk, which may be that of the machine of the snapshot: see stop_for_snapshot.
forget() {
    busybox blockdev --flushbufs "$1"
}

# Unpacks vtax, outside of /run, which cells hide, and the plan.
unpack_payload() {
    forget /dev/disk/payload
    (cd / && busybox cpio -i </dev/disk/payload 2>/run/said) || fail "cannot unpack the payload: $(cat /run/said)"
    # The kernel would write it back seconds later, in the middle of a trial.
    sync
}

# The images that guests run.
mount_guests() {
    forget /dev/disk/guests
    mkdir /run/guests
    mount -t ext4 -o ro,noatime /dev/disk/guests /run/guests || fail "cannot mount the guests' images"
    for recipe in /run/guests/*/recipe.toml; do
        image=${recipe%/*}
        kept=/var/cache/vtax/images/${image##*/}
        mkdir -p "$kept"
        mount -o bind "$image" "$kept" || fail "cannot mount ${image##*/}"
    done
}

# Stops the machine of a snapshot at this instruction, by a write to its pvpanic device. The machines of trials go on
# from here with their own payload and guests' images. Without snapshots there is no such device.
stop_for_snapshot() {
    for device in /sys/bus/pci/devices/*; do
        [ "$(cat "$device/vendor") $(cat "$device/device")" = "0x1b36 0x0011" ] || continue
        read -r address _ <"$device/resource"
        echo 1 >"$device/enable"
        busybox devmem "$address" 8 1 || fail "cannot stop for the snapshot"
    done
}

mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
hostname testbed
ip link set lo up
for module in tun bridge veth overlay loop sch_netem sch_tbf; do
    modprobe $module || fail "cannot load $module"
done

cd /run/testbed || fail "/run/testbed is missing"
. ./hypervisor

# A link to a second host without other hosts on it, so root logs in without a password.
if [ -e link ]; then
    read -r bridge address client name <link
    modprobe virtio_net || fail "cannot load virtio_net"
    ip link add "$bridge" type bridge
    ip link set eth0 master "$bridge" up || fail "no device for the link"
    ip address add "$address" dev "$bridge"
    ip link set "$bridge" up
    if [ -e client ]; then
        passwd -q -d root
        mkdir -p /run/sshd
        ssh-keygen -q -A
        /usr/sbin/sshd -D -e -o PermitRootLogin=yes -o PermitEmptyPasswords=yes -o UsePAM=no
        fail "sshd has ended"
    fi
    echo "$client $name" >>/etc/hosts
    printf 'StrictHostKeyChecking no\nLogLevel ERROR\n' >/etc/ssh/ssh_config.d/link.conf
    tries=0
    until ssh -o BatchMode=yes -o ConnectTimeout=5 "$name" true </dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 30 ] || fail "$name does not answer"
        sleep 1
    done
fi

# Without udev the kernel names the ports under /sys.
events= results=
for port in /sys/class/virtio-ports/*; do
    [ -e "$port/name" ] || continue
    case $(cat "$port/name") in
    vtax.events) events=/dev/${port##*/} ;;
    vtax.results) results=/dev/${port##*/} ;;
    esac
done

if [ -e shell ]; then
    unpack_payload
    mount_guests
    say "$(uname -sr); poweroff ends it"
    # A session of its own, so that the console is its terminal.
    ln -sf /bin/busybox /usr/local/sbin/poweroff
    setsid -c sh -l
    leave
fi

[ -n "$events" ] && [ -n "$results" ] || fail "the ports do not appear"
mkdir results
# Work of the kernel after its boot does not belong to a trial.
sleep "$(cat rest)"
stop_for_snapshot
unpack_payload
mount_guests
modprobe qemu_fw_cfg || fail "cannot load qemu_fw_cfg"
# From here on all randomness of the kernel and the processor follows from the seed.
read -r seed arguments </sys/firmware/qemu_fw_cfg/by_name/opt/vtax/trial/raw
[ -n "$arguments" ] || fail "the firmware names no trial"
echo "$seed" >/dev/urandom
/usr/local/bin/vtax $(cat command) plan.toml --results results --json --emulated \
    --place-name "$(cat place)" $arguments >"$events" 2>said
code=$?
cat said >"$events"
if [ -n "$(ls results)" ]; then
    tar --format=ustar --sort=name --owner=0 --group=0 --numeric-owner -C results -cf out.tar . ||
        fail "cannot pack the results"
else
    : >out.tar
fi
cat out.tar >"$results"
printf '\n{"testbed":"ended","code":%d,"bytes":%d,"sha256":"%s"}\n' \
    $code "$(stat -c %s out.tar)" "$(sha256sum out.tar | cut -d' ' -f1)" >"$events"
leave
