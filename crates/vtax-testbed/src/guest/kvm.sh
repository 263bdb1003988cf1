# The hypervisor is the kernel itself.
modprobe kvm_amd || fail "cannot load kvm_amd"
modprobe vhost_net || fail "cannot load vhost_net"
# What each run would find out by booting a guest.
export VTAX_KVM_BOOTS=1
