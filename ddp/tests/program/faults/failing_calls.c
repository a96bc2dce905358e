// failing_calls.c: loaded with LD_PRELOAD, makes calls that write into a folder fail.
//
//   FAIL_FOLDER  absolute path; calls about anything else are left alone
//   FAIL_AT      number of the call that fails, from 1 on; 0 for none
//   FAIL_WITH    errno of the failure
//   FAIL_STAYS   1 if all calls after it fail too
//   FAIL_RANK    only in the process of this rank of Open MPI
//   FAIL_CALL    name of a call that always fails, as the file system of some mount lacks it
//   FAIL_LOG     file to which the name and path of each call that counts is appended, and of the one that fails with " !"
//
// Opening for reading counts too: folders are opened to be synced. What is only read is not.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long n_calls;

static void append(const char *path, const char *line, size_t len) {
    static int (*real_open)(const char *, int, ...);
    static ssize_t (*real_write)(int, const void *, size_t);
    if (!real_open) *(void **)&real_open = dlsym(RTLD_NEXT, "open");
    if (!real_write) *(void **)&real_write = dlsym(RTLD_NEXT, "write");
    int fd = real_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return;
    if (real_write(fd, line, len) < 0) perror("FAIL_LOG");
    close(fd);
}

// Whether this call fails; sets errno.
static int fails(const char *name, const char *path) {
    const char *folder = getenv("FAIL_FOLDER"), *at = getenv("FAIL_AT"), *log = getenv("FAIL_LOG");
    const char *lacks = getenv("FAIL_CALL");
    const char *only = getenv("FAIL_RANK"), *rank = getenv("OMPI_COMM_WORLD_RANK"), *stays = getenv("FAIL_STAYS");
    if (!folder || !at || !path || (only && rank && strcmp(only, rank) != 0)) return 0;
    size_t len = strlen(folder);
    if (strncmp(path, folder, len) != 0 || (path[len] != '/' && path[len] != 0)) return 0;
    long number = atomic_fetch_add(&n_calls, 1) + 1, which = atol(at);
    int is_failing = which > 0 && (number == which || (stays && *stays == '1' && number > which));
    if (lacks && strcmp(lacks, name) == 0) is_failing = 1;
    if (log) {
        char line[PATH_MAX + 64];
        int n = snprintf(line, sizeof line, "%s %s%s\n", name, path, is_failing ? " !" : "");
        append(log, line, n > 0 && (size_t)n < sizeof line ? (size_t)n : 0);
    }
    if (is_failing) errno = atoi(getenv("FAIL_WITH") ? getenv("FAIL_WITH") : "5");
    return is_failing;
}

// Path of a file that is open; empty for what is none.
static const char *path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    path[n > 0 ? n : 0] = 0;
    return path;
}

// A path below a folder that is open, as absolute as that.
static const char *path_at(int fd, const char *name, char *path) {
    if (!name || name[0] == '/' || fd == AT_FDCWD) return name;
    path_of(fd, path);
    size_t len = strlen(path);
    snprintf(path + len, PATH_MAX - len, "/%s", name);
    return path;
}

#define REAL(type, name, args) \
    static type(*real) args; \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, name)

#define OPEN(symbol) \
    int symbol(const char *path, int flags, ...) { \
        REAL(int, #symbol, (const char *, int, ...)); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return fails("open", path) ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(symbol) \
    int symbol(int fd, const char *path, int flags, ...) { \
        REAL(int, #symbol, (int, const char *, int, ...)); \
        char whole[PATH_MAX]; \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return fails("open", path_at(fd, path, whole)) ? -1 : real(fd, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

// A call about an open file, of which the first argument is its descriptor.
#define ON_FILE(type, symbol, name, parameters, arguments) \
    type symbol parameters { \
        REAL(type, #symbol, parameters); \
        char path[PATH_MAX]; \
        return fails(name, path_of(fd, path)) ? -1 : real arguments; \
    }
ON_FILE(ssize_t, write, "write", (int fd, const void *bytes, size_t n), (fd, bytes, n))
ON_FILE(ssize_t, writev, "write", (int fd, const struct iovec *parts, int n), (fd, parts, n))
ON_FILE(ssize_t, pwrite, "write", (int fd, const void *bytes, size_t n, off_t at), (fd, bytes, n, at))
ON_FILE(ssize_t, pwrite64, "write", (int fd, const void *bytes, size_t n, off64_t at), (fd, bytes, n, at))
ON_FILE(int, flock, "flock", (int fd, int operation), (fd, operation))
ON_FILE(int, fsync, "fsync", (int fd), (fd))
ON_FILE(int, fdatasync, "fsync", (int fd), (fd))
ON_FILE(int, ftruncate, "ftruncate", (int fd, off_t len), (fd, len))
ON_FILE(int, ftruncate64, "ftruncate", (int fd, off64_t len), (fd, len))

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", (const char *, mode_t));
    return fails("mkdir", path) ? -1 : real(path, mode);
}

int mkdirat(int fd, const char *path, mode_t mode) {
    REAL(int, "mkdirat", (int, const char *, mode_t));
    char whole[PATH_MAX];
    return fails("mkdir", path_at(fd, path, whole)) ? -1 : real(fd, path, mode);
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", (const char *, const char *));
    struct stat status;
    int is_folder = stat(from, &status) == 0 && S_ISDIR(status.st_mode);
    return fails(is_folder ? "rename folder" : "rename", to) ? -1 : real(from, to);
}

int link(const char *from, const char *to) {
    REAL(int, "link", (const char *, const char *));
    return fails("link", to) ? -1 : real(from, to);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
    REAL(int, "linkat", (int, const char *, int, const char *, int));
    char whole[PATH_MAX];
    return fails("link", path_at(to_fd, to, whole)) ? -1 : real(from_fd, from, to_fd, to, flags);
}

int unlink(const char *path) {
    REAL(int, "unlink", (const char *));
    return fails("unlink", path) ? -1 : real(path);
}
