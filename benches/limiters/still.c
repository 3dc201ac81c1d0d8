/* Takes chance out of a server, preloaded into it where instructions are counted: the seeds of its hash tables, which it
 * reads from /dev/urandom, are those of /dev/zero, and what it seeds the C library's
 * generator with (skip lists draw their levels from it) is always the same. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *without_chance(const char *symbol, const char *path, const char *mode) {
    FILE *(*open_file)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, symbol);
    return open_file(strcmp(path, "/dev/urandom") == 0 ? "/dev/zero" : path, mode);
}

FILE *fopen(const char *path, const char *mode) { return without_chance("fopen", path, mode); }

FILE *fopen64(const char *path, const char *mode) { return without_chance("fopen64", path, mode); }

static void seed(void) {
    void (*seed_with)(unsigned) = (void (*)(unsigned))dlsym(RTLD_NEXT, "srandom");
    seed_with(1);
}

void srandom(unsigned ignored) {
    (void)ignored;
    seed();
}

void srand(unsigned ignored) {
    (void)ignored;
    seed();
}
