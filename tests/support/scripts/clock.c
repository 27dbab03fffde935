/* A time of day that a test can set: loaded before libc, it adds to it the seconds in the file CLOCK_SHIFT.
 *
 * The file is mapped, so that they may change at any moment. As where somebody sets the time, clocks that only go on
 * are left alone; the kernel, whose own time is not touched, is asked to wait until what that will be. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *shift;
static int (*real_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_lock)(pthread_mutex_t *, const struct timespec *);
static int (*real_semaphore)(sem_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_SHIFT");
    int file = path ? open(path, O_RDONLY) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) abort();
    close(file);
    real_wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"); /* dlsym may find an older one */
    if (!real_wait) real_wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    real_lock = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    real_semaphore = dlsym(RTLD_NEXT, "sem_timedwait");
    shift = page;
}

static long long shifted(void) { return shift ? *shift : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (syscall(SYS_clock_gettime, clock, now)) return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += shifted();
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}

/* Returns a time to wait until as the kernel knows it; one of a clock that only goes on is far below any time of day. */
static struct timespec of_kernel(const struct timespec *until) {
    struct timespec found = *until;
    if (found.tv_sec > 1000000000) found.tv_sec -= shifted();
    return found;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    struct timespec found = of_kernel(until);
    return real_wait(condition, mutex, &found);
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until) {
    struct timespec found = of_kernel(until);
    return real_lock(mutex, &found);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    struct timespec found = of_kernel(until);
    return real_semaphore(semaphore, &found);
}
