// SPDX-License-Identifier: GPL-2.0
// Counts the pages that back ends in this domain exchange with each other domain.
//
// A page that is copied or mapped is an element of a grant operation, whichever back end asks for it. One that
// blkback holds mapped (a persistent grant) is used again without any: those are the pages of its requests less
// those that it takes a fresh page for, each of which is mapped next. Giving a page back is no exchange.
//
// Attached to the kernel's functions by name, where BTF of modules is not needed; so arguments are read from
// registers, of x86-64 only. Structures are those of Xen's public interface, which stays.

#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

struct end { u64 page; u16 domain; u16 offset; };
#define COPY_DEST_GREF 2
struct gnttab_copy {
	struct end source, dest;
	u16 len, flags;
	__s16 status;
};
struct gnttab_map_grant_ref {
	u64 host_addr;
	u32 flags, ref;
	u16 domain;
	__s16 status;
	u32 handle;
	u64 dev_bus_addr;
};

// Mirrored in grants.rs.
struct counts {
	u64 copied;
	u64 mapped;
	u64 used;  // by requests of blkback
	u64 fresh; // those of them that are among the mapped
};

// Xen's DOMID_FIRST_RESERVED: no domain has that number or a higher one. It counts for all.
#define DOMAINS 0x7ff0

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DOMAINS + 1);
	__type(key, u32);
	__type(value, struct counts);
} domains SEC(".maps");

#define ADD(domain, field, count) do { \
	u32 key = (domain), all = DOMAINS; \
	struct counts *of = bpf_map_lookup_elem(&domains, &key), *of_all = bpf_map_lookup_elem(&domains, &all); \
	if (of && of_all && key < DOMAINS) { \
		__sync_fetch_and_add(&of->field, (count)); \
		__sync_fetch_and_add(&of_all->field, (count)); \
	} \
} while (0)

// A back end hands over one domain's pages at a time.
SEC("kprobe/gnttab_batch_copy")
int BPF_KPROBE(gnttab_batch_copy, const void *batch, u32 count)
{
	struct gnttab_copy first;
	if (!count || bpf_probe_read_kernel(&first, sizeof(first), batch))
		return 0;
	// From one domain to another it is the receiver's.
	u32 domain = first.flags & COPY_DEST_GREF ? first.dest.domain : first.source.domain;
	ADD(domain, copied, count);
	return 0;
}

SEC("kprobe/gnttab_map_refs")
int BPF_KPROBE(gnttab_map_refs, const void *map, const void *kernel_map, const void *pages, u32 count)
{
	struct gnttab_map_grant_ref first;
	if (!count || bpf_probe_read_kernel(&first, sizeof(first), map))
		return 0;
	ADD(first.domain, mapped, count);
	return 0;
}

// The domain that a thread of blkback works for: it is called 3.xvdb-0. Else DOMAINS.
static __always_inline u32 blkback_domain(void)
{
	char name[16] = {};
	u32 domain = 0;
	if (bpf_get_current_comm(name, sizeof(name)))
		return DOMAINS;
	for (u32 i = 0; i < 6; i++) {
		if (name[i] == '.' && i)
			return domain;
		if (name[i] < '0' || name[i] > '9')
			return DOMAINS;
		domain = domain * 10 + (name[i] - '0');
	}
	return DOMAINS;
}

SEC("kprobe/xen_blkbk_map")
int BPF_KPROBE(xen_blkbk_map, const void *ring, const void *pages, u32 count)
{
	ADD(blkback_domain(), used, count);
	return 0;
}

SEC("kprobe/gnttab_page_cache_get")
int BPF_KPROBE(gnttab_page_cache_get)
{
	ADD(blkback_domain(), fresh, 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
