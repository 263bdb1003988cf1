// SPDX-License-Identifier: GPL-2.0
// Keys soft interrupt time by the network device, and so by the guest, that it worked for.
//
// A soft interrupt is cut into segments at every packet boundary. A segment belongs to the first
// guest's device that its packet meets: what the kernel did with a packet before it reached that
// device (the driver's poll, the bridge) was for this packet too. A packet that goes on to a second
// guest's device starts a segment of that guest. What meets no guest's device stays with the
// device that it met, or with the kind of soft interrupt.
//
// Ports with GRO hand packets up in lists: all of a list come up before the first goes on. So it is
// remembered when each came up; when one goes on to a guest's device, the time since then is divided among
// it and those after it, and each takes its part where it goes on.
//
// What BPF programs of others hand into a namespace past the tracepoints (bpf_redirect_peer, netkit) is seen
// where the kernel does it; in a list it is delivered after the last came up, so that what follows is divided. What
// XDP redirects has no packet yet: what was done since the last event was for that frame.
//
// Where soft interrupts for the network come by the thousand a second, one in up to 16 is looked into, drawn by
// lot, and counts for all of them: the rest cost a few instructions.
//
// Attached to BTF tracepoints, which need no tracefs. Only the fields below are read, relocated to
// the running kernel when the object is loaded: directly where the kernel vouches for the pointer's
// type, which costs no call.

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

typedef __u32 u32;
typedef __u64 u64;

#define RELOCATED __attribute__((preserve_access_index))

struct ns_common { unsigned int inum; } RELOCATED;
struct net { struct ns_common ns; u64 net_cookie; } RELOCATED;
typedef struct { struct net *net; } RELOCATED possible_net_t;
struct rtnl_link_ops { const char *kind; } RELOCATED;
struct net_device {
	int ifindex;
	possible_net_t nd_net;
	const struct rtnl_link_ops *rtnl_link_ops;
} RELOCATED;
struct sk_buff { struct net_device *dev; } RELOCATED;
struct bpf_dtab_netdev { struct net_device *dev; } RELOCATED;
struct napi_struct { struct net_device *dev; } RELOCATED;

struct kernfs_node { u64 id; } RELOCATED;
struct cgroup { struct kernfs_node *kn; } RELOCATED;
struct cgroup_subsys_state { struct cgroup *cgroup; } RELOCATED;
struct css_set { struct cgroup_subsys_state *subsys[16]; } RELOCATED;
struct task_struct { unsigned int flags; char comm[16]; struct css_set *cgroups; } RELOCATED;
#define PF_KTHREAD 0x00200000
#define EAGAIN 11
#define NETDEV_ALIGN 32ULL
enum cgroup_subsys_id { cpuacct_cgrp_id = 2, io_cgrp_id = 3 };

struct blkcg { struct cgroup_subsys_state css; } RELOCATED;
struct blkcg_gq { struct blkcg *blkcg; } RELOCATED;
struct bio { struct blkcg_gq *bi_blkg; } RELOCATED;
struct gendisk { int major; int first_minor; } RELOCATED;
struct request_queue { struct gendisk *disk; } RELOCATED;
struct request { struct request_queue *q; struct bio *bio; } RELOCATED;

// Whose a segment is. Mirrored in traced.rs.
#define BLOCK_VEC 4 // BLOCK_SOFTIRQ
enum kind {
	SOFTIRQ = 0, // a: kind of soft interrupt
	GUEST = 1,   // a: the guest's number
	DEVICE = 2,  // a: network namespace, b: the low half of its cookie << 32 | interface index
	BLOCK = 3,   // a: disk (major << 20 | minor), b: control group of the request
};

struct owner { u32 kind; u32 a; u64 b; };
struct charge { u64 ns; u64 events; };
struct device { u32 netns; u32 ifindex; };
struct registration { u32 generation; u32 vmms; };
// Whose a device is, and the cookie of the namespace that was registered with it, if known: numbers of namespaces are given
// away again.
struct holder { u64 cookie; u32 guest; u32 padding; };

// A device that was looked up, and the guest that was found, or 0.
struct known { u64 dev; u64 cookie; u32 ifindex; u32 generation; u32 guest; u32 padding; };
#define KNOWN 256

// A packet that came up and has not gone on: net.core.gro_normal_batch of them are a list.
struct mark {
	u64 skb;
	u64 at;
	u32 guest; // into whose namespace it was handed
	u32 padding;
};
#define MARKS 8

struct cpu_state {
	u64 entered;
	u64 since;
	struct owner owner;
	u64 events;
	struct mark marks[MARKS];
	u32 first_mark;
	u32 marked;       // how many marks there are, while the segment is a device's
	u64 share;        // the part of each packet of a list that goes on
	u64 claimed;      // the packet that took the last part
	u32 shares;       // how many parts are left
	u32 handed;       // how many of the marked were handed into a guest's namespace
	struct owner port; // whose list it is
	u64 skb;          // the packet of the present segment
	u64 packet_dev;   // and the device where it was last seen
	u64 packet_net;   // and that device's network namespace
	u64 lot;          // a linear congruential generator
	u64 drawn_since;  // when the count of those that were looked into began
	u32 drawn;        // and how many they are
	u32 others;       // for each that is looked into, so many are not: a power of two less one
	u64 weight;       // what a nanosecond of this soft interrupt counts for
	u32 active;
	u32 vec;
	u32 generation;   // what `known` is of
	u32 padding;
	struct known known[KNOWN];
};

// Set by user space before loading.
const volatile u32 accounted_by_cpuacct = 0;
const volatile u32 most_others = 15;

// Soft interrupts that are drawn from.
#define NET_TX_VEC 2
#define NET_RX_VEC 3
// MANY looks within a period halve the share that is looked into, and a period with less than FEW doubles it. A burst of
// less than MANY is looked into as a whole: the cost depends on the mean rate, and the error on the few long soft
// interrupts of a burst.
#define PERIOD 256000000ULL
#define MANY 1024
#define FEW 256

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_state);
} states SEC(".maps");

// The generation of the registrations by user space, and the number of registered thread groups of VMs.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct registration);
} registration SEC(".maps");

// Guests' devices; interface 0 stands for every device of a namespace that one guest owns.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct device);
	__type(value, struct holder);
} devices SEC(".maps");

// Thread groups of VMs; the time in others' context is kept by control group.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u32);
} vmms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct owner);
	__type(value, struct charge);
} charges SEC(".maps");

// Soft interrupt time by whose task it interrupted: 0 the idle task, bit 63 a VM's thread
// group, bit 62 the kernel's threads for soft interrupts, anything else a control group.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u64);
} contexts SEC(".maps");

// Time that found no room: 0 in charges, 1 in contexts.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

static __always_inline struct cpu_state *state(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&states, &zero);
}

static __always_inline void lose(u32 which, u64 ns)
{
	u64 *sum = bpf_map_lookup_elem(&lost, &which);
	if (sum)
		*sum += ns;
}

static __always_inline void give(struct cpu_state *s, struct owner *owner, u64 ns, u64 events)
{
	ns *= s->weight;
	events *= s->weight;
	struct charge *sum = bpf_map_lookup_elem(&charges, owner);
	if (sum) {
		sum->ns += ns;
		sum->events += events;
	} else {
		struct charge first = { .ns = ns, .events = events };
		if (bpf_map_update_elem(&charges, owner, &first, BPF_NOEXIST))
			lose(0, ns);
	}
}

// Ends the present segment at a time.
static __always_inline void end_segment(struct cpu_state *s, u64 at)
{
	give(s, &s->owner, at - s->since, s->events);
	s->since = at;
	s->events = 0;
}

// Ends the segments of the first `count` marked packets, of which some were handed into guests' namespaces. Each has
// its own way up; what followed the last is where a list is delivered, and divided among those.
static __noinline int divide(struct cpu_state *s, u32 count, u64 now)
{
	u64 handed = 0, last = s->since;
	for (u32 i = 0; i < MARKS; i++) {
		if (i >= count)
			break;
		struct mark *mark = &s->marks[(s->first_mark + i) % MARKS];
		handed += mark->guest != 0;
		last = mark->at;
	}
	u64 rest = now - last, part = handed ? rest / handed : 0;
	u64 from = s->since;
	for (u32 i = 0; i < MARKS; i++) {
		if (i >= count)
			break;
		struct mark *mark = &s->marks[(s->first_mark + i) % MARKS];
		u64 to = last;
		if (i + 1 < count)
			to = s->marks[(s->first_mark + i + 1) % MARKS].at;
		struct owner owner = { .kind = GUEST, .a = mark->guest };
		u64 ns = to - from;
		if (mark->guest)
			ns += part;
		else
			owner = s->owner;
		give(s, &owner, ns, 1);
		from = to;
	}
	if (!handed)
		give(s, &s->owner, rest, 0);
	s->since = now;
	s->events = 0;
	s->handed = 0;
	return 0;
}

// Ends the present segment, and the list that it may be of: what is left of it met no guest's device.
static __always_inline void settle(struct cpu_state *s, u64 now)
{
	if (s->handed)
		divide(s, s->marked, now);
	else
		end_segment(s, now);
	s->marked = 0;
	if (s->shares) {
		give(s, &s->port, s->share * s->shares, 0);
		s->shares = 0;
	}
}

static __always_inline void own(struct cpu_state *s, u32 kind, u32 a, u64 b)
{
	s->owner.kind = kind;
	s->owner.a = a;
	s->owner.b = b;
}

static __always_inline u64 cookie_of(const struct net *net)
{
	return bpf_core_field_exists(net->net_cookie) ? BPF_CORE_READ(net, net_cookie) : 0;
}

// A device that is no guest's, as it is charged.
static __always_inline struct owner port_of(const struct net_device *dev)
{
	const struct net *net = dev->nd_net.net;
	u64 cookie = 0;
	if (bpf_core_field_exists(net->net_cookie))
		cookie = net->net_cookie;
	struct owner port = { .kind = DEVICE, .a = net->ns.inum, .b = cookie << 32 | (u32)dev->ifindex };
	return port;
}

static __always_inline u32 is_of_kind(const char *kind, const char *wanted, u32 len)
{
	for (u32 i = 0; i < len; i++)
		if (kind[i] != wanted[i])
			return 0;
	return 1;
}

static __always_inline u32 find(struct device key, u64 cookie)
{
	struct holder *holder = bpf_map_lookup_elem(&devices, &key);
	if (!holder) {
		key.ifindex = 0;
		holder = bpf_map_lookup_elem(&devices, &key);
	}
	if (!holder || (holder->cookie && cookie && holder->cookie != cookie))
		return 0;
	return holder->guest;
}

// Whose the other end of a pair is: 0 where there is none. What veth and netkit keep of a device follows
// the device, and begins with the pointer to its peer, whose type nobody vouches for.
static __always_inline u32 guest_of_peer(const struct net_device *dev)
{
	struct device key = {};
	char kind[8] = {};
	const char *name = BPF_CORE_READ(dev, rtnl_link_ops, kind);
	bpf_probe_read_kernel(kind, sizeof(kind) - 1, name);
	if (!is_of_kind(kind, "veth", 5) && !is_of_kind(kind, "netkit", 7))
		return 0;
	u64 size = (bpf_core_type_size(struct net_device) + NETDEV_ALIGN - 1) & ~(NETDEV_ALIGN - 1);
	const struct net_device *peer = 0;
	bpf_probe_read_kernel(&peer, sizeof(peer), (const void *)dev + size);
	if (!peer)
		return 0;
	const struct net *net = BPF_CORE_READ(peer, nd_net.net);
	key.netns = BPF_CORE_READ(net, ns.inum);
	key.ifindex = (u32)BPF_CORE_READ(peer, ifindex);
	return find(key, cookie_of(net));
}

// Looks a device up, and remembers it. Both ends of a pair are the guest's that
// has one of them, in whichever namespace the other is.
static __noinline u32 look_up(struct cpu_state *s, u64 pointer, u64 cookie, u32 ifindex)
{
	const struct net_device *dev = (const void *)pointer;
	struct device key = { .netns = BPF_CORE_READ(dev, nd_net.net, ns.inum), .ifindex = ifindex };
	u32 guest = find(key, cookie);
	if (!guest)
		guest = guest_of_peer(dev);
	struct known *known = &s->known[(ifindex ^ (u32)cookie) % KNOWN];
	known->dev = pointer;
	known->cookie = cookie;
	known->ifindex = ifindex;
	known->generation = s->generation;
	known->guest = guest;
	return guest;
}

// The number of the guest that a device belongs to, or 0.
static __always_inline u32 guest_by(struct cpu_state *s, u64 dev, u64 cookie, u32 ifindex)
{
	struct known *known = &s->known[(ifindex ^ (u32)cookie) % KNOWN];
	if (known->dev == dev && known->generation == s->generation &&
	    known->ifindex == ifindex && known->cookie == cookie)
		return known->guest;
	return look_up(s, dev, cookie, ifindex);
}

static __always_inline u32 guest_of(struct cpu_state *s, const struct net_device *dev)
{
	const struct net *net = dev->nd_net.net;
	u64 cookie = 0;
	if (bpf_core_field_exists(net->net_cookie))
		cookie = net->net_cookie;
	return guest_by(s, (u64)dev, cookie, (u32)dev->ifindex);
}

// A packet came up at a device that is no guest's.
static __always_inline void mark(struct cpu_state *s, u64 skb, const struct net_device *dev)
{
	u64 now = bpf_ktime_get_ns();
	struct owner port = port_of(dev);
	u32 is_same = s->owner.kind == DEVICE && s->owner.a == port.a && s->owner.b == port.b;
	if (!is_same) {
		if (s->owner.kind != SOFTIRQ)
			settle(s, now);
		s->owner = port;
		s->marked = 0;
	} else if (s->marked == MARKS) {
		// The oldest was in no list with one that goes on.
		u64 at = s->marks[(s->first_mark + 1) % MARKS].at;
		struct owner oldest = port;
		u32 guest = s->marks[s->first_mark % MARKS].guest;
		if (guest) {
			oldest.kind = GUEST;
			oldest.a = guest;
			oldest.b = 0;
			s->handed--;
		}
		give(s, &oldest, at - s->since, 1);
		s->since = at;
		s->events = 0;
		s->first_mark++;
		s->marked--;
	}
	struct mark *mark = &s->marks[(s->first_mark + s->marked) % MARKS];
	mark->skb = skb;
	mark->guest = 0;
	// The poll before the first was for it too.
	mark->at = s->marked ? now : s->since;
	s->marked++;
	s->events += 1;
}

// A packet is at a guest's device.
static __always_inline void at_guest(struct cpu_state *s, u64 skb, u32 guest)
{
	if (s->owner.kind == DEVICE && s->marked) {
		// A packet that did not come up here is taken for the last that did.
		u32 before = s->marked - 1;
		for (u32 i = 0; i < MARKS; i++)
			if (i < before && s->marks[(s->first_mark + i) % MARKS].skb == skb)
				before = i;
		u32 after = s->marked - 1 - before;
		u64 at = s->marks[(s->first_mark + before) % MARKS].at;
		if (s->handed)
			divide(s, before, at);
		else if (at > s->since)
			end_segment(s, at);
		s->port = s->owner;
		own(s, GUEST, guest, 0);
		s->marked = 0;
		if (after) {
			u64 now = bpf_ktime_get_ns();
			s->share = (now - at) / (after + 1);
			s->shares = after;
			s->claimed = skb;
			end_segment(s, now - s->share * after);
			s->since = now;
		}
	} else {
		if (s->owner.kind == GUEST && s->owner.a != guest)
			end_segment(s, bpf_ktime_get_ns());
		own(s, GUEST, guest, 0);
		if (s->shares && s->claimed != skb) {
			give(s, &s->owner, s->share, 0);
			s->shares--;
			s->claimed = skb;
		}
	}
	s->events += 1;
}

static __always_inline int is_ksoftirqd(struct task_struct *task)
{
	const char wanted[] = "ksoftirqd/";
	char name[16] = {};
	if (!(BPF_CORE_READ(task, flags) & PF_KTHREAD))
		return 0;
	bpf_core_read(name, sizeof(name), &task->comm);
	for (int i = 0; i < sizeof(wanted) - 1; i++)
		if (name[i] != wanted[i])
			return 0;
	return 1;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_entry, unsigned int vec)
{
	struct cpu_state *s = state();
	if (!s)
		return 0;
	u32 is_network = vec == NET_RX_VEC || vec == NET_TX_VEC;
	if (is_network && s->others) {
		s->lot = s->lot * 6364136223846793005ULL + 1442695040888963407ULL;
		if (s->lot >> 40 & s->others) {
			s->active = 0;
			return 0;
		}
	}
	u32 zero = 0;
	struct registration *current = bpf_map_lookup_elem(&registration, &zero);
	if (!current)
		return 0;
	s->generation = current->generation;
	u64 now = bpf_ktime_get_ns();
	s->weight = 1;
	if (is_network) {
		s->weight += s->others;
		u32 is_over = now - s->drawn_since >= PERIOD, are_many = ++s->drawn >= MANY;
		if (is_over && s->drawn < FEW)
			s->others >>= 1;
		else if (!is_over && are_many && s->others < most_others)
			s->others = s->others * 2 + 1;
		if (is_over || are_many) {
			s->drawn = 0;
			s->drawn_since = now;
		}
	}
	s->entered = now;
	s->since = now;
	s->events = 0;
	s->skb = 0;
	s->packet_dev = 0;
	s->packet_net = 0;
	s->marked = 0;
	s->handed = 0;
	s->shares = 0;
	s->active = 1;
	s->vec = vec;
	own(s, SOFTIRQ, vec, 0);
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_exit, unsigned int vec)
{
	struct cpu_state *s = state();
	if (!s || !s->active)
		return 0;
	u64 now = bpf_ktime_get_ns();
	settle(s, now);
	s->active = 0;

	u64 ns = (now - s->entered) * s->weight;
	u64 context = 0;
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	u64 ids = bpf_get_current_pid_tgid();
	if ((u32)ids != 0) {
		u32 tgid = ids >> 32, zero = 0;
		struct registration *current = bpf_map_lookup_elem(&registration, &zero);
		if (current && current->vmms && bpf_map_lookup_elem(&vmms, &tgid)) {
			context = (1ULL << 63) | tgid;
		} else if (is_ksoftirqd(task)) {
			context = 1ULL << 62;
		} else if (accounted_by_cpuacct) {
			u32 index = bpf_core_enum_value(enum cgroup_subsys_id, cpuacct_cgrp_id);
			struct css_set *set = BPF_CORE_READ(task, cgroups);
			struct cgroup_subsys_state *css = 0;
			u32 offset = __builtin_preserve_field_info(set->subsys, 0);
			bpf_probe_read_kernel(&css, sizeof(css), (void *)set + offset + index * sizeof(css));
			context = BPF_CORE_READ(css, cgroup, kn, id);
		} else {
			context = bpf_get_current_cgroup_id();
		}
	}
	u64 *sum = bpf_map_lookup_elem(&contexts, &context);
	if (sum)
		*sum += ns;
	else if (bpf_map_update_elem(&contexts, &context, &ns, BPF_NOEXIST))
		lose(1, ns);
	return 0;
}

SEC("tp_btf/napi_poll")
int BPF_PROG(napi_poll, struct napi_struct *napi, int work, int budget)
{
	struct cpu_state *s = state();
	if (!s || !s->active)
		return 0;
	// What follows is the next device's poll.
	settle(s, bpf_ktime_get_ns());
	own(s, SOFTIRQ, s->vec, 0);
	s->skb = 0;
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(netif_receive_skb, struct sk_buff *skb)
{
	struct cpu_state *s = state();
	if (!s || !s->active)
		return 0;
	struct net_device *dev = skb->dev;
	u64 packet = (u64)skb;
	u32 guest = guest_of(s, dev);
	u64 net = (u64)dev->nd_net.net;
	// The same buffer at another device is the same packet on its way up; at the same device it
	// is the next packet in a buffer that was freed. In another namespace it has arrived at
	// somebody else.
	u32 is_next = packet != s->skb || (u64)dev == s->packet_dev || net != s->packet_net;
	s->skb = packet;
	s->packet_dev = (u64)dev;
	s->packet_net = net;
	if (guest)
		at_guest(s, packet, guest);
	else if (is_next)
		mark(s, packet, dev);
	return 0;
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(net_dev_start_xmit, struct sk_buff *skb, struct net_device *dev)
{
	struct cpu_state *s = state();
	if (!s || !s->active)
		return 0;
	u32 guest = guest_of(s, dev);
	if (guest)
		at_guest(s, (u64)skb, guest);
	return 0;
}

// A program of somebody's redirected a packet. Where it handed it to a device of another namespace, the packet goes on
// there with no other event.
SEC("fexit/skb_do_redirect")
int BPF_PROG(skb_do_redirect, struct sk_buff *skb, int result)
{
	struct cpu_state *s = state();
	if (!s || !s->active || result != -EAGAIN)
		return 0;
	u64 packet = (u64)skb;
	const struct net_device *dev = skb->dev;
	u32 guest = guest_of(s, dev);
	s->skb = packet;
	s->packet_dev = (u64)dev;
	s->packet_net = (u64)dev->nd_net.net;
	if (!guest)
		return 0;
	if (s->owner.kind != DEVICE || !s->marked) {
		at_guest(s, packet, guest);
		return 0;
	}
	// It is the last that came up.
	struct mark *mark = &s->marks[(s->first_mark + s->marked - 1) % MARKS];
	if (!mark->guest)
		s->handed++;
	mark->guest = guest;
	return 0;
}

// A frame that is no packet yet goes to another device: by its pointer, by an entry of a map, or by its index.
SEC("tp_btf/xdp_redirect")
int BPF_PROG(xdp_redirect, const struct net_device *from, const void *xdp, const void *target, int err, int type,
	     u32 map, u32 index)
{
	struct cpu_state *s = state();
	if (!s || !s->active)
		return 0;
	const struct net_device *dev = 0;
	u32 guest = 0;
	if (target && type == BPF_MAP_TYPE_UNSPEC)
		dev = target;
	else if (target && (type == BPF_MAP_TYPE_DEVMAP || type == BPF_MAP_TYPE_DEVMAP_HASH))
		dev = BPF_CORE_READ((const struct bpf_dtab_netdev *)target, dev);
	if (dev) {
		u64 cookie = cookie_of(BPF_CORE_READ(dev, nd_net.net));
		guest = guest_by(s, (u64)dev, cookie, (u32)BPF_CORE_READ(dev, ifindex));
	} else if (!target && type == BPF_MAP_TYPE_UNSPEC) {
		struct device key = { .netns = from->nd_net.net->ns.inum, .ifindex = index };
		guest = find(key, cookie_of(from->nd_net.net));
	}
	if (s->owner.kind == DEVICE && s->marked) {
		if (guest)
			at_guest(s, 0, guest);
		return 0;
	}
	// What was done since the last event was for this frame, whosever it is.
	if (guest && s->owner.kind == SOFTIRQ)
		own(s, GUEST, guest, 0);
	s->events += 1;
	settle(s, bpf_ktime_get_ns());
	own(s, SOFTIRQ, s->vec, 0);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(block_rq_complete, struct request *rq)
{
	struct cpu_state *s = state();
	// In any other it is a hard interrupt's, which may have come in the middle of `settle`.
	if (!s || !s->active || s->vec != BLOCK_VEC)
		return 0;
	if (s->owner.kind != SOFTIRQ)
		settle(s, bpf_ktime_get_ns());
	struct gendisk *disk = rq->q->disk;
	u32 major = (u32)disk->major, minor = (u32)disk->first_minor;
	u64 group = 0;
	struct bio *bio = rq->bio;
	if (bio && bpf_core_field_exists(bio->bi_blkg))
		group = bio->bi_blkg->blkcg->css.cgroup->kn->id;
	own(s, BLOCK, major << 20 | minor, group);
	s->events += 1;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
