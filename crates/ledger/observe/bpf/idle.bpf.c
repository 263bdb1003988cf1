// SPDX-License-Identifier: GPL-2.0
// Counts the idle gaps of each processor by their length.
//
// A gap lasts from the entry of a processor into an idle state to its exit, which are two events of the tracepoint
// power:cpu_idle on that processor. Attached as a raw tracepoint, which needs neither BTF nor tracefs.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

typedef __u32 u32;
typedef __u64 u64;

#define PWR_EVENT_EXIT 0xffffffff
// Gaps below 1 us, then a bin for each power of two; the last one has no upper end.
#define BINS 22

// Of one processor. Mirrored in idle_gaps.rs.
struct bin { u64 ns; u64 count; };
struct gaps {
	u64 since; // when the gap began that has not ended, or 0
	struct bin bins[BINS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct gaps);
} gaps SEC(".maps");

// The bin of a length in us: 1 + log2, and 0 for 0.
static __always_inline u32 bin_of(u64 us)
{
	u32 bin = 0;
	for (u32 step = 16; step; step >>= 1) {
		if (us >> step) {
			us >>= step;
			bin += step;
		}
	}
	bin += us != 0;
	return bin < BINS ? bin : BINS - 1;
}

SEC("raw_tp/cpu_idle")
int cpu_idle(struct bpf_raw_tracepoint_args *ctx)
{
	u32 zero = 0;
	struct gaps *s = bpf_map_lookup_elem(&gaps, &zero);
	if (!s)
		return 0;
	u64 now = bpf_ktime_get_ns();
	if ((u32)ctx->args[0] != PWR_EVENT_EXIT) {
		s->since = now;
		return 0;
	}
	u64 since = s->since;
	if (!since)
		return 0;
	s->since = 0;
	u32 bin = bin_of((now - since) / 1000);
	if (bin < BINS) {
		s->bins[bin].ns += now - since;
		s->bins[bin].count += 1;
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
