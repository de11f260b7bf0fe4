/* Preloaded into a process and its descendants, this shifts their time of day by the seconds that the
 * file $STEPPED_CLOCK holds, a 64-bit integer that may change at any time. Clocks that a step of the
 * system's time leaves alone, such as CLOCK_MONOTONIC, are not touched.
 *
 * Why not libfaketime: told to leave CLOCK_MONOTONIC alone, 0.9.10 makes Python's time.sleep fail with
 * EINVAL. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
  const char *path = getenv("STEPPED_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) offset = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int status = (int)syscall(SYS_clock_gettime, clock, now);
  if (!status && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += *offset;
  return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  int status = (int)syscall(SYS_gettimeofday, now, zone);
  if (!status && offset) now->tv_sec += *offset;
  return status;
}

time_t time(time_t *now) {
  struct timespec there;
  clock_gettime(CLOCK_REALTIME, &there);
  if (now) *now = there.tv_sec;
  return there.tv_sec;
}
