# The hypervisor is the kernel itself.
modprobe kvm_amd || fail "cannot load kvm_amd"
modprobe vhost_net || fail "cannot load vhost_net"
