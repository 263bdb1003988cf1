/*
 * The cache model that is compiled in: see llc.c.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef PLUGINS_LLC_H
#define PLUGINS_LLC_H

/*
 * CPUID's answer for the counts of the cache model, in the order EAX, EBX,
 * ECX, EDX. Leaf 0x4c4c4300, subleaf N: references (64 bit) and misses (64
 * bit) of vCPU N. Subleaf 0xffffffff: the number of vCPUs, then a signature.
 * Returns false for other leaves, and when nothing is counted.
 */
bool llc_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t registers[4]);

int llc_install(uint64_t id, const struct qemu_info_t *info,
                int argc, char **argv);

#endif
