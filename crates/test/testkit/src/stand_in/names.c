// Gives QEMU's vCPU threads the names that another VMM gives its own: loaded before QEMU, which names
// each thread from within.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

int pthread_setname_np(pthread_t thread, const char *name) {
  char called[16];
  unsigned number;
  const char *as = getenv("VCPU_NAME");
  (void)thread;
  if (as && sscanf(name, "CPU %u/TCG", &number) == 1)
    snprintf(called, sizeof called, as, number);
  else
    snprintf(called, sizeof called, "%s", name);
  return prctl(PR_SET_NAME, called);
}
