# The hypervisor is the kernel itself.
modprobe kvm_amd || fail "cannot load kvm_amd"
modprobe vhost_net || fail "cannot load vhost_net"
# Spares each run the boot of a guest that checks KVM.
export VTAX_KVM_BOOTS=1
