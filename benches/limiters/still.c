/* Removes randomness from a server; preloaded where instructions are counted.
 *
 * The seeds of its hash tables, which it reads from /dev/urandom, are those of /dev/zero, and so are those that a module asks
 * the system for. The C library's random numbers, from which skip lists draw their levels, are derived from the time, which is
 * frozen (tests/support/clock.c): at a given time they are the same, whatever was drawn before. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

static FILE *without_chance(const char *symbol, const char *path, const char *mode) {
    FILE *(*open_file)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, symbol);
    return open_file(strcmp(path, "/dev/urandom") == 0 ? "/dev/zero" : path, mode);
}

FILE *fopen(const char *path, const char *mode) { return without_chance("fopen", path, mode); }

FILE *fopen64(const char *path, const char *mode) { return without_chance("fopen64", path, mode); }

ssize_t getrandom(void *bytes, size_t length, unsigned flags) {
    (void)flags;
    memset(bytes, 0, length);
    return (ssize_t)length;
}

/* The finaliser of SplitMix64 over the time and the numbers drawn at that time. */
long random(void) {
    static uint64_t last, drawn;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t time = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    drawn = time == last ? drawn + 1 : 0;
    last = time;
    uint64_t mixed = time + drawn * 0x9e3779b97f4a7c15;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return (long)((mixed ^ (mixed >> 31)) & 0x7fffffff);
}
