# Dom0: the interfaces to the hypervisor, the backends, and the daemons of the toolstack.
for module in xenfs xen-evtchn xen-gntdev xen-gntalloc xen-privcmd xen-netback xen-blkback; do
    modprobe $module || fail "cannot load $module"
done
mount -t xenfs xenfs /proc/xen
/etc/init.d/xen start || fail "the toolstack does not start"
