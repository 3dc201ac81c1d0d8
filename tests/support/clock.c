/* A wall clock under the test's hand, preloaded into a server.
 *
 * The file named by RL_CLOCK holds eight bytes: microseconds since the epoch, or 0 for the real clock. Writing to
 * the file sets the time. The monotonic clock is left alone, so timers and time-outs run on.
 *
 * The background thread of jemalloc waits by the wall clock, and not at all on one that stands in the past: it would take
 * half of a processor. So these servers are started with --jemalloc-bg-thread no. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shared;

__attribute__((constructor)) static void map_clock(void) {
    const char *path = getenv("RL_CLOCK");
    if (path == NULL) return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) abort();
    void *map = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) abort();
    close(file);
    shared = map;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int64_t micros = shared != NULL ? *shared : 0;
    if (micros == 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return (int)syscall(SYS_clock_gettime, clock, now);
    now->tv_sec = micros / 1000000;
    now->tv_nsec = micros % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec time;
    int answer = clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return answer;
}

time_t time(time_t *now) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    if (now != NULL) *now = time.tv_sec;
    return time.tv_sec;
}
