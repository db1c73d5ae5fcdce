/* A program that waits before its `main`, and does not begin once but as often as it is told.
 *
 * Loaded into a shell by LD_PRELOAD, this takes the place of `__libc_start_main`.  What the dynamic loader
 * does for each new process has then been done; orders of the guardian come in on a socket, and for each
 * a child is made which enters `main` with arguments, environment, directory and descriptors of its own.
 *
 * Nobody can tell such a child from one that was executed: it is a child of the guardian, not of ours
 * (CLONE_PARENT), leads its own process group, bears the mark of its job, has default signals, and
 * /proc shows its own command line and environment.  Where the kernel lets us not do one of these, we
 * say so at the beginning and are not used.  What it shares with its siblings is the address layout.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if !defined(__GLIBC__) || !(defined(__x86_64__) || defined(__aarch64__))
#error "only for the GNU C library on x86_64 and aarch64, where clone and main are as we expect"
#endif

#define VERSION 1 /* of orders; the same as in warm.py */
#define CONTROL 3
#define FIRST_FILE 64
#define MOST_DESCRIPTORS 40
#define ROOM (256 * 1024)

/* The same as ORDER in warm.py. */
struct order {
    uint32_t argv_size, env_size;  /* bytes, every text with its NUL */
    uint32_t argc, envc;
    uint64_t mark, hard_mark;      /* the limit by which a job is known */
    uint64_t files, hard_files;    /* descriptors that the child may have */
    uint32_t first;                /* the place of the first stream that comes with it */
    uint32_t unused;
};

typedef int (*main_function)(int, char **, char **);
typedef int (*start_function)(main_function, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

static struct prctl_mm_map memory;

static void say(int64_t number)
{
    while (send(CONTROL, &number, sizeof number, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

/* What /proc/self/stat says of our memory; a child says the same of its own, but for its arguments. */
static int know_memory(void)
{
    static const struct { int field; __u64 *value; } wanted[] = {
        {26, &memory.start_code}, {27, &memory.end_code}, {28, &memory.start_stack},
        {45, &memory.start_data}, {46, &memory.end_data}, {47, &memory.start_brk},
        {48, &memory.arg_start}, {49, &memory.arg_end}, {50, &memory.env_start}, {51, &memory.env_end},
    };
    char stat[2048];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t size = read(fd, stat, sizeof stat - 1);
    close(fd);
    if (size <= 0)
        return -1;
    stat[size] = 0;
    char *at = strrchr(stat, ')');
    int field = 2;
    for (size_t next = 0; next < sizeof wanted / sizeof *wanted; field++) {
        if (at == NULL || (at = strchr(at, ' ')) == NULL)
            return -1;
        at++;
        if (field + 1 == wanted[next].field)
            *wanted[next++].value = strtoull(at, NULL, 10);
    }
    memory.exe_fd = (__u32)-1;
    return 0;
}

static int show_memory(void)
{
    memory.brk = (__u64)syscall(SYS_brk, 0);
    return prctl(PR_SET_MM, PR_SET_MM_MAP, &memory, sizeof memory, 0);
}

/* Nothing but our socket ends us before the guardian does; a child hears everything again. */
static void hear_signals(int how)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(how, &all, NULL);
}

static char **listed(char **list, char *texts, uint32_t count)
{
    for (uint32_t n = 0; n < count; n++, texts += strlen(texts) + 1)
        *list++ = texts;
    *list++ = NULL;
    return list;
}

/* In the child: become the process that was ordered.  The guardian has looked at the order before. */
static void become(const struct order *order, char *texts, const int *given, int count, char ***argv)
{
    setpgid(0, 0);
    struct rlimit mark = {order->mark, order->hard_mark};
    setrlimit(RLIMIT_LOCKS, &mark);
    if (fchdir(given[0]) != 0)
        _exit(127);
    for (int n = 1; n < count; n++) {
        int stream = (int)order->first + n - 1;
        dup2(given[n], stream < 3 ? stream : FIRST_FILE + stream - 3);
    }
    for (int n = 0; n < count; n++)
        close(given[n]);
    close(CONTROL);
    struct rlimit files = {order->files, order->hard_files};
    setrlimit(RLIMIT_NOFILE, &files);
    char **lists = mmap(NULL, (order->argc + order->envc + 2) * sizeof(char *), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (lists == MAP_FAILED)
        _exit(127);
    *argv = lists;
    environ = listed(lists, texts, order->argc);
    listed(environ, texts + order->argv_size, order->envc);
    memory.arg_start = (__u64)(uintptr_t)texts;
    memory.arg_end = memory.env_start = memory.arg_start + order->argv_size;
    memory.env_end = memory.env_start + order->env_size;
    show_memory();
    program_invocation_name = (*argv)[0];
    char *slash = strrchr((*argv)[0], '/');
    program_invocation_short_name = slash == NULL ? (*argv)[0] : slash + 1;
    hear_signals(SIG_UNBLOCK);
}

/* Waits for orders; comes back in a child, with its arguments. */
static void wait_for_orders(char ***argv, int *argc)
{
    char *room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED || know_memory() != 0 || show_memory() != 0) {
        say(-1);
        _exit(1);
    }
    hear_signals(SIG_BLOCK);
    say(VERSION);
    for (;;) {
        union { char bytes[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))]; struct cmsghdr aligned; } control;
        struct iovec part = {room, ROOM};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1,
                                 .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        ssize_t size = recvmsg(CONTROL, &message, MSG_CMSG_CLOEXEC);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < (ssize_t)sizeof(struct order))
            _exit(0); /* the guardian is gone */
        int given[MOST_DESCRIPTORS], count = 0;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        if (head != NULL && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
            count = (int)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(given, CMSG_DATA(head), (size_t)count * sizeof(int));
        }
        struct order *order = (struct order *)room;
        long pid = -1;
        errno = EMFILE; /* why a descriptor may be missing */
        if (!(message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) && count > 0)
            pid = syscall(SYS_clone, CLONE_PARENT, NULL, NULL, NULL, NULL);
        if (pid == 0) {
            become(order, room + sizeof *order, given, count, argv);
            *argc = (int)order->argc;
            return;
        }
        say(pid < 0 ? -errno : pid);
        madvise(room, ROOM, MADV_DONTNEED); /* the next one shall not find what this one was told */
        for (int n = 0; n < count; n++)
            close(given[n]);
    }
}

__attribute__((visibility("default"))) int __libc_start_main(main_function run, int argc, char **argv,
                                                             void (*init)(void), void (*fini)(void),
                                                             void (*loader_fini)(void), void *stack)
{
    union { void *found; start_function call; } real = {dlsym(RTLD_NEXT, "__libc_start_main")};
    if (real.found == NULL)
        _exit(127);
    wait_for_orders(&argv, &argc);
    return real.call(run, argc, argv, init, fini, loader_fini, stack);
}
