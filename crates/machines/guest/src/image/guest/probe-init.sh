#!/bin/busybox sh
# PID 1 of the kernel probe: says that a stock kernel reached user space, and powers off.
mount -t proc proc /proc
echo "vtax-probe: user space reached"
exec poweroff -f
