// SPDX-License-Identifier: GPL-2.0
// Programs as a network of containers has them: packets for 10.9.N.2 go to its device past the host's stack.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// The host's ends of the pairs of 10.9.0.2 and 10.9.1.2; set before loading.
const volatile __u32 first = 0;
const volatile __u32 second = 0;

static __always_inline __u32 device_for(void *data, void *end)
{
	struct ethhdr *ethernet = data;
	struct iphdr *ip = data + sizeof(*ethernet);
	if ((void *)(ip + 1) > end || ethernet->h_proto != bpf_htons(ETH_P_IP))
		return 0;
	switch (bpf_ntohl(ip->daddr)) {
	case 0x0a090002:
		return first;
	case 0x0a090102:
		return second;
	}
	return 0;
}

SEC("classifier")
int hand_over(struct __sk_buff *skb)
{
	__u32 device = device_for((void *)(long)skb->data, (void *)(long)skb->data_end);
	return device ? bpf_redirect_peer(device, 0) : TC_ACT_OK;
}

SEC("classifier")
int redirect(struct __sk_buff *skb)
{
	__u32 device = device_for((void *)(long)skb->data, (void *)(long)skb->data_end);
	return device ? bpf_redirect(device, 0) : TC_ACT_OK;
}

SEC("xdp")
int redirect_frame(struct xdp_md *frame)
{
	__u32 device = device_for((void *)(long)frame->data, (void *)(long)frame->data_end);
	return device ? bpf_redirect(device, 0) : XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
