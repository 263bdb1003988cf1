// SPDX-License-Identifier: GPL-2.0
// Times how long tasks that could run wait for a processor, and keys it by the owner of the task and by the owner of
// what ran on that processor meanwhile.
//
// Each processor has a count of its waiting tasks for each of their owners. Between two events nothing changes, so that
// each owner is owed the time between them for each of its tasks. When the processor changes to another task, what is
// owed is paid: it was waited for the task that ran until then. The cost of an event is bounded by SLOTS, whatever the
// number of tasks and the length of their waits.
//
// A task waits from its wakeup, or from being preempted, until the processor changes to it, as the kernel's own
// run_delay does (sched_info of a task). What interrupts and a hypervisor below took in between is told by the clocks
// of the kernel's run queue, where it keeps them.
//
// Times are those of the run queue's clock, which the kernel has read before each of these events.
//
// The events of a processor's tasks come with its run queue's lock held, but for the arrival of a task that is moved
// to it: so the counts have a lock of their own.

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;
typedef _Bool bool;

// A loop that is unrolled fills the cache of instructions.
#define ROLLED _Pragma("clang loop unroll(disable)")
#define RELOCATED __attribute__((preserve_access_index))

struct kernfs_node { u64 id; } RELOCATED;
struct cgroup { struct kernfs_node *kn; } RELOCATED;
struct cgroup_subsys_state { struct cgroup *cgroup; } RELOCATED;
struct css_set { struct cgroup_subsys_state *subsys[16]; struct cgroup *dfl_cgrp; } RELOCATED;
struct rq { int cpu; u64 clock; u64 prev_irq_time; u64 prev_steal_time_rq; } RELOCATED;
struct cfs_rq { struct rq *rq; } RELOCATED;
struct sched_entity { struct cfs_rq *cfs_rq; } RELOCATED;
struct task_struct {
	unsigned int __state;
	int on_cpu;
	int pid;
	int tgid;
	struct sched_entity se;
	struct css_set *cgroups;
} RELOCATED;
// Before Linux 5.14.
struct task_struct___before { long state; } RELOCATED;
enum cgroup_subsys_id { cpuacct_cgrp_id = 2 };

// Owners: a control group, or one of these. Mirrored in waits.rs.
#define IDLE 0ULL
#define PROCESS (1ULL << 63) // | thread group of a VM or a service
#define INTERRUPTS (1ULL << 62 | 1)
#define STOLEN (1ULL << 62 | 2)
#define OTHERS (1ULL << 62 | 3)

// Owners whose tasks wait for one processor at the same time. The tasks of further owners wait for OTHERS.
#define SLOTS 16
// Tasks that wait for one processor at the same time: a task has one of PROBES places. The waits of tasks that find none
// are not followed.
#define PLACES 512
#define PROBES 8

struct slot {
	u64 owner;
	u64 owed;
	u64 tasks;
};

// A task that waits. Where SLOTS were taken, `slot` is SLOTS.
struct waiter {
	u64 owner;
	u64 since;
	u32 pid; // of the thread, or 0
	u32 slot;
};

struct processor {
	struct bpf_spin_lock lock;
	u16 tasks;   // that wait, in slots
	u16 top;     // slots from this on have no tasks
	u64 since;   // until when time is owed
	u64 owner;   // of what runs
	u64 began;   // when it began
	u64 irq;     // the run queue's clock of interrupts then
	u64 steal;   // and of stolen time
	struct slot slots[SLOTS];
	struct waiter waiters[PLACES];
};

struct pair { u64 waiter; u64 runner; };

// Set by user space before loading.
const volatile u32 accounted_by_cpuacct = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); // user space sets it to the number of processors
	__type(key, u32);
	__type(value, struct processor);
} processors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct pair);
	__type(value, u64);
} waits SEC(".maps");

// 0: nanoseconds that found no room in `waits`. 1: waits of tasks that found no place.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

// Thread groups of VMs and services, and how many there are.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u32);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} registered SEC(".maps");

static __always_inline void lose(u32 which, u64 amount)
{
	u64 *sum = bpf_map_lookup_elem(&lost, &which);
	if (sum)
		*sum += amount;
}

static __always_inline int add(struct pair *pair, u64 ns)
{
	u64 *sum = bpf_map_lookup_elem(&waits, pair);
	if (sum) {
		*sum += ns;
		return 0;
	}
	return bpf_map_update_elem(&waits, pair, &ns, BPF_NOEXIST);
}

static __always_inline int pay(u64 waiter, u64 runner, u64 ns)
{
	struct pair pair = { .waiter = waiter, .runner = runner };
	if (!add(&pair, ns))
		return 0;
	pair.runner = OTHERS;
	if (add(&pair, ns))
		lose(0, ns);
	return 0;
}

// An owner waited for what ran; parts of 65536 of the time were taken by interrupts, and by a hypervisor below.
// Functions that are not static are verified once, and not for each path to a call.
__noinline int pay_parts(u64 waiter, u64 runner, u64 ns, u64 in_irq, u64 stolen)
{
	in_irq = ns * in_irq >> 16;
	stolen = ns * stolen >> 16;
	if (in_irq)
		pay(waiter, INTERRUPTS, in_irq);
	if (stolen)
		pay(waiter, STOLEN, stolen);
	return pay(waiter, runner, ns - in_irq - stolen);
}

static __always_inline u64 owner_of(struct task_struct *task)
{
	u32 tgid = (u32)task->tgid, zero = 0;
	u32 *are_registered = bpf_map_lookup_elem(&registered, &zero);
	if (are_registered && *are_registered && bpf_map_lookup_elem(&processes, &tgid))
		return PROCESS | tgid;
	if (!accounted_by_cpuacct)
		return task->cgroups->dfl_cgrp->kn->id;
	u64 index = bpf_core_enum_value(enum cgroup_subsys_id, cpuacct_cgrp_id);
	struct css_set *set = task->cgroups;
	u64 offset = __builtin_preserve_field_info(set->subsys, 0) + index * sizeof(void *);
	struct cgroup_subsys_state *css = *(struct cgroup_subsys_state **)((void *)set + offset);
	return css->cgroup->kn->id;
}

static __always_inline u32 can_run(struct task_struct *task)
{
	if (bpf_core_field_exists(task->__state))
		return !task->__state;
	return !BPF_CORE_READ((struct task_struct___before *)task, state);
}

// Adds what is owed up to now. This and the next two: with the lock held.
static __always_inline void settle(struct processor *p, u64 now)
{
	s64 ns = now - p->since;
	// The clock of another processor may be a little behind.
	if (ns <= 0)
		return;
	p->since = now;
	u32 top = p->top;
	ROLLED
	for (u32 i = 0; i < SLOTS && i < top; i++)
		p->slots[i].owed += p->slots[i].tasks * (u64)ns;
}

// The place of a task, or the first that is free; PLACES where there is none.
static __always_inline u32 place_of(struct processor *p, u32 pid)
{
	u32 found = PLACES;
	ROLLED
	for (u32 i = 0; i < PROBES; i++) {
		u32 at = (pid + i) % PLACES, there = p->waiters[at].pid;
		if (there == pid)
			return at;
		if (!there && found == PLACES)
			found = at;
	}
	return found;
}

// A task waits no longer. Returns whether it did, and as what.
static __always_inline u32 leave(struct processor *p, u32 pid, struct waiter *left)
{
	u32 at = place_of(p, pid);
	if (at >= PLACES || !p->waiters[at].pid)
		return 0;
	struct waiter *waiter = &p->waiters[at];
	u32 slot = waiter->slot;
	left->owner = waiter->owner;
	left->since = waiter->since;
	left->slot = slot;
	waiter->pid = 0;
	if (slot < SLOTS) {
		p->slots[slot].tasks--;
		p->tasks--;
	}
	return 1;
}

// A task begins to wait for a processor.
__noinline int enter(u32 cpu, u32 pid, u64 owner, u64 now)
{
	u32 slot = SLOTS;
	struct processor *p = bpf_map_lookup_elem(&processors, &cpu);
	if (!p)
		return 0;
	bpf_spin_lock(&p->lock);
	u32 at = place_of(p, pid);
	if (at >= PLACES) {
		bpf_spin_unlock(&p->lock);
		lose(1, 1);
		return 0;
	}
	struct waiter *waiter = &p->waiters[at];
	if (!waiter->pid) {
		settle(p, now);
		ROLLED
		for (u32 i = 0; i < SLOTS; i++) {
			if (!p->slots[i].tasks && !p->slots[i].owed) {
				if (slot == SLOTS)
					slot = i;
			} else if (p->slots[i].owner == owner) {
				slot = i;
				break;
			}
		}
		if (slot < SLOTS) {
			p->slots[slot].owner = owner;
			p->slots[slot].tasks++;
			p->tasks++;
			if (p->top <= slot)
				p->top = slot + 1;
		}
		waiter->owner = owner;
		waiter->since = now;
		waiter->pid = pid;
		waiter->slot = slot;
	}
	bpf_spin_unlock(&p->lock);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempted, struct task_struct *prev, struct task_struct *next)
{
	u32 cpu = bpf_get_smp_processor_id();
	u32 pid = (u32)next->pid, before = (u32)prev->pid;
	struct rq *rq = next->se.cfs_rq->rq;
	u64 now = rq->clock;
	u64 irq = bpf_core_field_exists(rq->prev_irq_time) ? rq->prev_irq_time : 0;
	u64 steal = bpf_core_field_exists(rq->prev_steal_time_rq) ? rq->prev_steal_time_rq : 0;
	struct processor *p = bpf_map_lookup_elem(&processors, &cpu);
	if (!p)
		return 0;

	struct waiter left = {};
	u32 waited = 0;
	bpf_spin_lock(&p->lock);
	settle(p, now);
	if (pid)
		waited = leave(p, pid, &left);
	u32 top = p->top;
	if (!p->tasks)
		p->top = 0;
	// Most often there is one.
	u64 owner = p->slots[0].owner, owed = p->slots[0].owed;
	p->slots[0].owed = 0;
	bpf_spin_unlock(&p->lock);

	// Only this processor uses the following.
	u64 runner = p->owner, ran = now - p->began, in_irq = irq - p->irq, stolen = steal - p->steal;
	if (!p->began) {
		// The first event of this processor.
		runner = OTHERS;
		in_irq = stolen = 0;
	}
	p->owner = waited ? left.owner : pid ? owner_of(next) : IDLE;
	p->began = now;
	p->irq = irq;
	p->steal = steal;

	if (in_irq > ran)
		in_irq = ran;
	if (stolen > ran - in_irq)
		stolen = ran - in_irq;
	if (in_irq)
		in_irq = (in_irq << 16) / ran;
	if (stolen)
		stolen = (stolen << 16) / ran;
	if (owed)
		pay_parts(owner, runner, owed, in_irq, stolen);
	ROLLED
	for (u32 i = 1; i < SLOTS && i < top; i++) {
		bpf_spin_lock(&p->lock);
		owner = p->slots[i].owner;
		owed = p->slots[i].owed;
		p->slots[i].owed = 0;
		bpf_spin_unlock(&p->lock);
		if (owed)
			pay_parts(owner, runner, owed, in_irq, stolen);
	}
	if (waited && left.slot >= SLOTS)
		pay_parts(left.owner, OTHERS, now - left.since, 0, 0);
	if (before && (preempted || can_run(prev)))
		enter(cpu, before, owner_of(prev), now);
	return 0;
}

static __always_inline int wakes(struct task_struct *task)
{
	// It had not stopped to run.
	if (bpf_core_field_exists(task->on_cpu) && task->on_cpu)
		return 0;
	struct rq *rq = task->se.cfs_rq->rq;
	return enter((u32)rq->cpu, (u32)task->pid, owner_of(task), rq->clock);
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(sched_wakeup, struct task_struct *task)
{
	return wakes(task);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(sched_wakeup_new, struct task_struct *task)
{
	return wakes(task);
}

// A task goes to another processor, whether it waits or not.
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(sched_migrate_task, struct task_struct *task, int to)
{
	struct rq *rq = task->se.cfs_rq->rq;
	u32 pid = (u32)task->pid, cpu = (u32)rq->cpu;
	struct processor *p = bpf_map_lookup_elem(&processors, &cpu);
	if (!p)
		return 0;
	struct waiter left = {};
	u64 now = rq->clock;
	bpf_spin_lock(&p->lock);
	settle(p, now);
	u32 waited = leave(p, pid, &left);
	bpf_spin_unlock(&p->lock);
	if (!waited)
		return 0;
	if (left.slot >= SLOTS)
		pay_parts(left.owner, OTHERS, now - left.since, 0, 0);
	return enter((u32)to, pid, left.owner, now);
}

char LICENSE[] SEC("license") = "GPL";
