// SPDX-License-Identifier: GPL-2.0
// Makes an emulated processor as fast as its frequency says.
//
// An emulator's processor knows no frequency: whatever it runs takes as long at each. So what ran for
// a time t owes the time that a processor at the present frequency f would have taken longer,
// t * (f_max / f - 1), and spins for it: a task when a timer interrupts it or else as soon as it is on
// a processor again, soft interrupts when the next one begins. There is no timer of its own,
// and idle time is nobody's.
//
// Nobody spins between the wake-up of a task and the switch to it: there the scheduler does not
// read its clock again, and would charge the wait to the task that comes.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

typedef __u32 u32;
typedef __u64 u64;

#define MOST_CPUS 64
#define MOST_SPINS (1 << 20)

#define RELOCATED __attribute__((preserve_access_index))

struct thread_info { unsigned long flags; } RELOCATED;
struct task_struct { struct thread_info thread_info; int pid; } RELOCATED;
#define TIF_NEED_RESCHED 3

// Of one processor. Mirrored in speed.rs.
struct cpu {
	u64 khz;     // now
	u64 most;    // kHz at its fastest
	u64 since;   // what ran before this moment has been counted
	u64 owed;    // by the task on it
	u64 softirq_owed;
	u64 softirq; // whether it is in a soft interrupt
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_CPUS);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

// What tasks owe that are on no processor.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u64);
} debts SEC(".maps");

// Nanoseconds at work by frequency in kHz, stalls included.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 64);
	__type(key, u64);
	__type(value, u64);
} busy SEC(".maps");

static __always_inline struct cpu *this_cpu(void)
{
	u32 number = bpf_get_smp_processor_id();
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);
	return cpu && cpu->khz ? cpu : 0;
}

static __always_inline int is_idle(void)
{
	return (u32)bpf_get_current_pid_tgid() == 0;
}

static __always_inline int is_about_to_switch(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	return task->thread_info.flags >> TIF_NEED_RESCHED & 1;
}

// What ran until now; what it owes for that.
static __always_inline u64 count(struct cpu *cpu, u64 now)
{
	u64 since = cpu->since, khz = cpu->khz;
	if (now <= since)
		return 0;
	cpu->since = now;
	// What was there before these programs is not counted.
	if (!since)
		return 0;
	u64 ran = now - since;
	u64 owed = khz < cpu->most ? ran * (cpu->most - khz) / khz : 0;
	u64 *sum = bpf_map_lookup_elem(&busy, &khz);
	if (sum)
		*sum += ran + owed;
	return owed;
}

static long is_over(u32 index, void *until)
{
	return bpf_ktime_get_ns() >= *(u64 *)until;
}

static __always_inline void spin(struct cpu *cpu, u64 now, u64 owed)
{
	u64 until = now + owed;
	// An interrupt meanwhile finds nothing to count.
	cpu->since = until;
	if (owed)
		bpf_loop(MOST_SPINS, is_over, &until, 0);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct cpu *cpu = this_cpu();
	if (!cpu)
		return 0;
	u64 now = bpf_ktime_get_ns(), owed = 0;
	u32 from = prev->pid, to = next->pid;
	if (from) {
		owed = cpu->owed + count(cpu, now);
		if (owed)
			bpf_map_update_elem(&debts, &from, &owed, BPF_ANY);
	}
	cpu->owed = 0;
	owed = 0;
	if (to) {
		u64 *debt = bpf_map_lookup_elem(&debts, &to);
		if (debt) {
			owed = *debt;
			*debt = 0;
		}
	}
	spin(cpu, now, owed);
	return 0;
}

SEC("tp_btf/local_timer_entry")
int BPF_PROG(local_timer_entry, int vector)
{
	struct cpu *cpu = this_cpu();
	if (!cpu || cpu->softirq || is_idle())
		return 0;
	u64 now = bpf_ktime_get_ns();
	cpu->owed += count(cpu, now);
	if (is_about_to_switch())
		return 0;
	u64 owed = cpu->owed;
	cpu->owed = 0;
	spin(cpu, now, owed);
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_entry, unsigned int vec)
{
	struct cpu *cpu = this_cpu();
	if (!cpu)
		return 0;
	u64 now = bpf_ktime_get_ns();
	if (is_idle())
		cpu->since = now;
	else
		cpu->owed += count(cpu, now);
	cpu->softirq = 1;
	if (is_about_to_switch())
		return 0;
	u64 owed = cpu->softirq_owed;
	cpu->softirq_owed = 0;
	spin(cpu, now, owed);
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_exit, unsigned int vec)
{
	struct cpu *cpu = this_cpu();
	if (!cpu || !cpu->softirq)
		return 0;
	cpu->softirq_owed += count(cpu, bpf_ktime_get_ns());
	cpu->softirq = 0;
	return 0;
}

SEC("tp_btf/cpu_frequency")
int BPF_PROG(cpu_frequency, unsigned int khz, unsigned int number)
{
	u32 key = number;
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &key);
	if (!cpu)
		return 0;
	// What ran so far ran at the old one.
	if (number == bpf_get_smp_processor_id() && (!is_idle() || cpu->softirq))
		cpu->owed += count(cpu, bpf_ktime_get_ns());
	cpu->khz = khz;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
