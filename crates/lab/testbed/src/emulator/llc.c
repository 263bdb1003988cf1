/*
 * Counts of the last-level cache: a model of the caches, compiled into the
 * emulator because a static one cannot load a plugin.
 *
 * Each vCPU has an L1 for instructions and one for data (32 KiB, 8 ways) and
 * an L2 (256 KiB, 8 ways). All share the last-level cache (16 ways). Each
 * cache replaces its least recently used line. A reference is a miss of an
 * L2. There is no prefetcher, no page walk and no write of a device, and an
 * access that crosses a line counts for its first line.
 *
 * All caches are tagged by the memory of the machine, so that address spaces
 * do not mix, and a line that is both code and data is one line. The address
 * in the emulator's own memory varies from run to run, except within a page:
 * it selects the set of an L1 only, and RAM addresses select the others.
 *
 * A program in the machine reads the counts with CPUID: see llc_cpuid().
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "qemu/cutils.h"
#include "qemu/error-report.h"
#include "qemu/host-utils.h"
#include "qemu/plugin.h"
#include "qemu/qemu-plugin.h"
#include "exec/exec-all.h"
#include "exec/ram_addr.h"
#include "qemu/plugin-memory.h"
#include "llc.h"

#define LINE_BITS 6
#define VCPUS 4
#define L1_SETS 64
#define L1_WAYS 8
#define L2_SETS 512
#define L2_WAYS 8
#define LLC_WAYS 16

/* The leaf, and the subleaf that answers with the number of vCPUs. */
#define LEAF 0x4c4c4300
#define SIGNATURE 0xffffffff

typedef struct Core {
    uint64_t code[L1_SETS][L1_WAYS];
    uint64_t data[L1_SETS][L1_WAYS];
    uint64_t l2[L2_SETS][L2_WAYS];
    uint64_t references;
    uint64_t misses;
} Core;

static Core cores[VCPUS];
static uint64_t (*llc)[LLC_WAYS];
static uint64_t llc_sets;

/* Whether the set holds the tag, which becomes its most recent one. */
static inline bool touch(uint64_t *set, int ways, uint64_t tag)
{
    for (int i = 0; i < ways; i++) {
        if (set[i] == tag) {
            memmove(set + 1, set, i * sizeof(*set));
            set[0] = tag;
            return true;
        }
    }
    memmove(set + 1, set, (ways - 1) * sizeof(*set));
    set[0] = tag;
    return false;
}

static inline void access_line(Core *core, uint64_t (*l1)[L1_WAYS],
                               uintptr_t host)
{
    /* 0 is an empty way, and no line of memory. */
    uint64_t line = host >> LINE_BITS;
    uint64_t *set = l1[line % L1_SETS];
    ram_addr_t ram;

    if (set[0] == line || touch(set, L1_WAYS, line)) {
        return;
    }
    ram = qemu_ram_addr_from_host((void *)host);
    if (ram == RAM_ADDR_INVALID) {
        return;
    }
    line = ram >> LINE_BITS;
    if (touch(core->l2[line % L2_SETS], L2_WAYS, line + 1)) {
        return;
    }
    core->references++;
    core->misses += !touch(llc[line % llc_sets], LLC_WAYS, line + 1);
}

static void on_data(unsigned int vcpu, qemu_plugin_meminfo_t info,
                    uint64_t address, void *unused)
{
    struct qemu_plugin_hwaddr *found = qemu_plugin_get_hwaddr(info, address);
    Core *core = &cores[vcpu % VCPUS];

    if (found && !found->is_io) {
        access_line(core, core->data, (uintptr_t)found->v.ram.hostaddr);
    }
}

static void on_code(unsigned int vcpu, void *host)
{
    Core *core = &cores[vcpu % VCPUS];

    access_line(core, core->code, (uintptr_t)host);
}

static void on_block(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    uintptr_t last = 0;

    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, i);
        void *host = qemu_plugin_insn_haddr(insn);
        uintptr_t line = (uintptr_t)host >> LINE_BITS;

        if (host && line != last) {
            last = line;
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_code,
                                                   QEMU_PLUGIN_CB_NO_REGS,
                                                   host);
        }
        qemu_plugin_register_vcpu_mem_cb(insn, on_data, QEMU_PLUGIN_CB_NO_REGS,
                                         QEMU_PLUGIN_MEM_RW, NULL);
    }
}

bool llc_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t registers[4])
{
    if (!llc || leaf != LEAF) {
        return false;
    }
    if (subleaf == SIGNATURE) {
        registers[0] = VCPUS;
        memcpy(registers + 1, "vtaxLLCcount", 12);
    } else {
        Core *core = &cores[subleaf % VCPUS];

        registers[0] = core->references;
        registers[1] = core->references >> 32;
        registers[2] = core->misses;
        registers[3] = core->misses >> 32;
    }
    return true;
}

int llc_install(qemu_plugin_id_t id, const qemu_info_t *info,
                int argc, char **argv)
{
    const char *mib = NULL;
    unsigned long size = 8;

    if (argc > 1 || (argc == 1 && !strstart(argv[0], "mib=", &mib)) ||
        (mib && qemu_strtoul(mib, NULL, 10, &size)) ||
        !is_power_of_2(size) || size > 1024) {
        error_report("llc: mib=N with a power of two is the only argument");
        return 1;
    }
    llc_sets = (size << 20 >> LINE_BITS) / LLC_WAYS;
    llc = g_malloc0_n(llc_sets, sizeof(*llc));
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
    return 0;
}
