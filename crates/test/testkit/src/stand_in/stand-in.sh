#!/bin/sh
# Stands in for Firecracker or Cloud Hypervisor, by its own name: it takes what these document and
# nothing else, and lets QEMU boot it by emulation. QEMU's vCPU threads are called as theirs where
# names.so lies beside it.
set -eu
fail() {
    echo "$*" >&2
    exit 2
}
disks='' tap='' mac=''

firecracker() {
    [ "$*" != --version ] || { echo 'Firecracker v1.13.1' && exit; }
    [ $# = 3 ] && [ "$1 $2" = '--no-api --config-file' ] || fail "unknown arguments: $*"
    config=$3
    number='[0-9]+' string='"[^"]+"'
    drive='\{"cache_type":"Writeback","drive_id":"[a-z0-9_]+","is_read_only":false,"is_root_device":false,"path_on_host":'$string'\}'
    interface='\{"guest_mac":"([0-9a-f]{2}:){5}[0-9a-f]{2}","host_dev_name":"[a-z0-9]{1,15}","iface_id":"[a-z0-9_]+"\}'
    grep -Eqx '\{"boot-source":\{"boot_args":'"$string"',"initrd_path":'"$string"',"kernel_image_path":'"$string"'\},'\
'"drives":\[('"$drive(,$drive)*"')?\],"logger":\{"level":"Error","log_path":'"$string"'\},'\
'"machine-config":\{"mem_size_mib":'$number',"vcpu_count":'$number'\},"network-interfaces":\[('"$interface"')?\]\}' "$config" ||
        fail "not as documented: $(cat "$config")"
    text() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" "$config"; }
    number() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" "$config"; }
    [ -f "$(text log_path)" ] || fail 'no log'
    kernel=$(text kernel_image_path) initrd=$(text initrd_path) arguments=$(text boot_args)
    memory=$(number mem_size_mib) vcpus=$(number vcpu_count) tap=$(text host_dev_name) mac=$(text guest_mac)
    case " $arguments " in *' pci=off '*) ;; *) fail "PCI is not off: $arguments" ;; esac
    # Where QEMU has the devices.
    arguments=${arguments% pci=off}
    disks=$(grep -o '"path_on_host":"[^"]*"' "$config" | cut -d '"' -f 4) || true
    serial=stdio direct=off VCPU_NAME='fc_vcpu %u'
}

cloud_hypervisor() {
    [ "$*" != --version ] || { echo 'cloud-hypervisor v51.1' && exit; }
    direct=off VCPU_NAME='vcpu%u'
    while [ $# -gt 0 ]; do
        [ $# -gt 1 ] || fail "no value: $1"
        option=$1 value=$2
        shift 2
        case $option in
        --kernel) kernel=$value ;;
        --initramfs) initrd=$value ;;
        --cmdline) arguments=$value ;;
        --cpus) vcpus=${value#boot=} ;;
        --memory) memory=${value#size=} memory=${memory%M} ;;
        --console) [ "$value" = off ] || fail "console: $value" ;;
        --serial) serial=unix:${value#socket=},server=on,wait=off ;;
        --net)
            case $value in tap=*,mac=*) ;; *) fail "network: $value" ;; esac
            tap=${value#tap=} tap=${tap%%,*} mac=${value#*,mac=}
            ;;
        --disk)
            while :; do
                case $value in
                path=*,image_type=raw,direct=o[nf]*) ;;
                *) fail "disk: $value" ;;
                esac
                path=${value#path=} path=${path%,image_type=raw,*} path=${path#\"}
                direct=${value##*,direct=}
                disks="$disks${path%\"}
"
                case ${1---} in --*) break ;; esac
                value=$1
                shift
            done
            ;;
        *) fail "unknown argument: $option" ;;
        esac
    done
}

case ${0##*/} in
firecracker) firecracker "$@" ;;
cloud-hypervisor) cloud_hypervisor "$@" ;;
esac
[ "$(head -c 4 "$kernel" | tail -c 3)" = ELF ] || fail "no ELF file: $kernel"
case $vcpus$memory in *[!0-9]*) fail "processors $vcpus, memory $memory" ;; esac

# An emulated timer that is late on a busy host makes the kernel doubt good clocks.
set -- -nodefaults -no-user-config -display none -no-reboot -machine pc -accel tcg,thread=multi -cpu max \
    -smp "$vcpus" -m "$memory" -kernel "$kernel" -initrd "$initrd" \
    -append "$arguments tsc=reliable no_timer_check" -serial "$serial"
number=0
while read -r path; do
    [ -n "$path" ] || continue
    path=$(printf %s "$path" | sed 's/,/,,/g')
    # The scratch disk is the second one, and the last that was read.
    [ $number = 1 ] && cache=$direct || cache=off
    set -- "$@" -drive "id=disk$number,if=none,format=raw,cache.direct=$cache,file=$path" \
        -device "virtio-blk-pci,drive=disk$number"
    number=$((number + 1))
done <<END
$disks
END
[ -z "$tap" ] || set -- "$@" -netdev "tap,id=nic,ifname=$tap,script=no,downscript=no" \
    -device "virtio-net-pci,netdev=nic,mac=$mac,romfile="
if [ -f "${0%/*}/names.so" ]; then
    export VCPU_NAME LD_PRELOAD="${0%/*}/names.so"
    set -- "$@" -name guest=stand-in,debug-threads=on
fi
exec qemu-system-x86_64 "$@"
