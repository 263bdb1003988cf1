// SPDX-License-Identifier: GPL-2.0
// Makes an emulated processor as fast as its frequency says.
//
// An emulator's processor knows no frequency. Here a timer interrupts it in short steps, and where it
// interrupts work and not idling, the handler spins for the share of the step that a processor at
// the present frequency would have lacked: 1 - f / f_max. That is in the context of whatever was
// interrupted, so a task, a soft interrupt, a vhost worker and a guest lose time in proportion to
// what they run, and the kernel charges it to them as it would on a slow processor.

#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

typedef __u32 u32;
typedef __u64 u64;

#define MOST_CPUS 64
#define MOST_SPINS (1 << 20)

// Set by user space before loading: where the kernel's code for idling lies.
const volatile u64 idle_start = 0;
const volatile u64 idle_end = 0;

// Of one processor. Mirrored in speed.rs.
struct cpu {
	u64 khz;     // now
	u64 most;    // kHz at its fastest
	u64 stepped; // when the last step ended
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_CPUS);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

// Nanoseconds of work by frequency, in kHz, stalls included.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 64);
	__type(key, u64);
	__type(value, u64);
} busy SEC(".maps");

SEC("tp_btf/cpu_frequency")
int BPF_PROG(frequency, unsigned int khz, unsigned int number)
{
	u32 key = number;
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &key);
	if (cpu)
		cpu->khz = khz;
	return 0;
}

static long spin(u32 index, void *until)
{
	return bpf_ktime_get_ns() >= *(u64 *)until;
}

SEC("perf_event")
int stall(struct bpf_perf_event_data *interrupted)
{
	u64 now = bpf_ktime_get_ns();
	u32 number = bpf_get_smp_processor_id();
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);
	if (!cpu)
		return 0;
	u64 step = now - cpu->stepped;
	u64 is_first = !cpu->stepped;
	cpu->stepped = now;
	u64 at = PT_REGS_IP(&interrupted->regs);
	if (is_first || !cpu->khz || (at >= idle_start && at < idle_end))
		return 0;

	u64 khz = cpu->khz, most = cpu->most;
	u64 *sum = bpf_map_lookup_elem(&busy, &khz);
	if (sum)
		*sum += step;
	else
		bpf_map_update_elem(&busy, &khz, &step, BPF_NOEXIST);
	if (khz < most) {
		u64 until = now + step * (most - khz) / most;
		bpf_loop(MOST_SPINS, spin, &until, 0);
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
