#!/bin/sh
# Builds QEMU for emulated hosts, in a Debian of its own: the source of Debian's package with four faults fixed and
# with the patches in /root, linked statically, so that it runs on any x86-64 Linux. The build is in /out.
set -e
step() { echo "I: $*"; }

step "fetching QEMU's source"
sed 's/^deb /deb-src /' /etc/apt/sources.list >/etc/apt/sources.list.d/source.list
apt-get -q update
cd /root
apt-get -q source qemu
cd qemu-*/

# A virtual interrupt that VMRUN has delivered stays noted as an exception that is still to be raised. Where
# the budget of instructions ends before the guest's next exit, it is delivered again.
file=target/i386/tcg/sysemu/svm_helper.c
line='            do_interrupt_x86_hardirq(env, vector, 1);'
[ "$(grep -cFx "$line" $file)" = 1 ] || { echo "$file is not as it was"; exit 1; }
sed -i "s/^$line\$/&\n            cs->exception_index = -1;/" $file

# CMPXCHG8B and CMPXCHG16B compute the flags that they leave as they are from the last operation, which the executing
# thread may not have noted yet. An interrupt then pushes flags that are none, and the kernel panics.
file=target/i386/tcg/translate.c
line='        case 1: \/\* CMPXCHG8, CMPXCHG16 \*\/'
[ "$(grep -cx "$line" $file)" = 1 ] || { echo "$file is not as it was"; exit 1; }
sed -i "s/^$line\$/&\n            gen_update_cc_op(s);/" $file

# The clock of an emulated processor is invariant, and its CPUID may say so.
file=target/i386/cpu.c
line='#define TCG_APM_FEATURES 0'
[ "$(grep -cFx "$line" $file)" = 1 ] || { echo "$file is not as it was"; exit 1; }
sed -i "s/^$line\$/#define TCG_APM_FEATURES CPUID_APM_INVTSC/" $file

# Where idle time is skipped, the clock jumps to the next timer once every processor has halted. Another thread
# than the executing one makes it jump, and may find the processor halted before its last instructions are
# counted: they came on top of the jump then, 1 to 9 ns, or not, as this machine's scheduler had it. The
# executing thread asks again once it has counted. Nor does the clock jump while a processor that has stopped the
# machine waits for all else to stop.
file=softmmu/icount.c
line='        if (!all_cpu_threads_idle()) {'
[ "$(grep -cFx "$line" $file)" = 1 ] || { echo "$file is not as it was"; exit 1; }
sed -i "s/^$line\$/        if (!all_cpu_threads_idle() || qatomic_read(\&first_cpu->icount_budget) || cpu_is_stopped(first_cpu)) {/" $file

# Several processors in one deterministic machine, and counts of a last-level cache.
for patch in smp llc; do
    patch -p1 --fuzz=0 --batch --input=/root/$patch.patch
done
cp /root/llc.c /root/llc.h plugins

# What the machine of a host has, and nothing else.
for device in Q35 HPET NVDIMM ISA_TESTDEV PVPANIC_PCI VIRTIO_NET VIRTIO_PCI VIRTIO_SERIAL; do
    echo "CONFIG_$device=y"
done >configs/devices/x86_64-softmmu/testbed.mak

step "compiling QEMU (two or three minutes)"
mkdir build
cd build
../configure --target-list=x86_64-softmmu --without-default-features --without-default-devices \
    --with-devices-x86_64=testbed --enable-tcg --enable-system --disable-user --disable-tools --disable-docs \
    --disable-werror --enable-trace-backends=nop --enable-fdt=system --meson=/usr/bin/meson --static \
    --enable-plugins
ninja qemu-system-x86_64

mkdir /out
strip -o /out/qemu-system-x86_64 qemu-system-x86_64
cp -L /usr/share/seabios/bios-256k.bin /usr/share/qemu/linuxboot_dma.bin /usr/share/qemu/multiboot_dma.bin \
    /usr/share/qemu/kvmvapic.bin /out
