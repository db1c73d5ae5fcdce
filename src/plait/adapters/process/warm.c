/* Prestarted shells: a program waits before its `main`, and each order forks a child that enters it.
 *
 * Loaded into a shell by LD_PRELOAD, this replaces `__libc_start_main`. The dynamic loader has then done
 * its work. Orders of the guardian come on a socket. For each order we make a child, which enters `main`
 * with its own arguments, environment, directory and descriptors.
 *
 * Such a child cannot be told from one that was executed. It is a child of the guardian, not of ours
 * (CLONE_PARENT). It leads its process group, has the mark of its job and default signals, and /proc
 * shows its command line and environment. If the kernel forbids one of these, we report that at the
 * beginning and are not used. A child shares only the address layout with its siblings.
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

#define VERSION 1 /* of orders; the same as in guardian.c */
#define CONTROL 3
#define FIRST_FILE 64
#define MOST_DESCRIPTORS 40
#define ROOM (256 * 1024)

/* The same as struct warm_order in guardian.c. */
struct order {
    uint32_t argv_size, env_size;  /* bytes, every text with its NUL */
    uint32_t argc, envc;
    uint64_t mark, hard_mark;      /* the resource limit that marks a job */
    uint64_t files, hard_files;    /* limit of descriptors */
    uint32_t first;                /* number of the first stream among the descriptors */
    uint32_t unused;
};

typedef int (*main_function)(int, char **, char **);
typedef int (*start_function)(main_function, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

static struct prctl_mm_map memory;

static void reply(int64_t number)
{
    while (send(CONTROL, &number, sizeof number, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

/* Our memory map, from /proc/self/stat. A child has the same, apart from its arguments. */
static int read_memory_map(void)
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

static int set_memory_map(void)
{
    memory.brk = (__u64)syscall(SYS_brk, 0);
    return prctl(PR_SET_MM, PR_SET_MM_MAP, &memory, sizeof memory, 0);
}

/* We block all signals: only the end of our socket ends us. A child unblocks them. */
static void mask_signals(int how)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(how, &all, NULL);
}

static char **fill_list(char **list, char *texts, uint32_t count)
{
    for (uint32_t n = 0; n < count; n++, texts += strlen(texts) + 1)
        *list++ = texts;
    *list++ = NULL;
    return list;
}

/* In the child: become the ordered process. The guardian has checked the order. */
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
    environ = fill_list(lists, texts, order->argc);
    fill_list(environ, texts + order->argv_size, order->envc);
    memory.arg_start = (__u64)(uintptr_t)texts;
    memory.arg_end = memory.env_start = memory.arg_start + order->argv_size;
    memory.env_end = memory.env_start + order->env_size;
    set_memory_map();
    program_invocation_name = (*argv)[0];
    char *slash = strrchr((*argv)[0], '/');
    program_invocation_short_name = slash == NULL ? (*argv)[0] : slash + 1;
    mask_signals(SIG_UNBLOCK);
}

/* Wait for orders. Returns in a child, with its arguments. */
static void wait_for_orders(char ***argv, int *argc)
{
    char *room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED || read_memory_map() != 0 || set_memory_map() != 0) {
        reply(-1);
        _exit(1);
    }
    mask_signals(SIG_BLOCK);
    reply(VERSION);
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
        errno = EMFILE; /* a descriptor may be missing */
        if (!(message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) && count > 0)
            pid = syscall(SYS_clone, CLONE_PARENT, NULL, NULL, NULL, NULL);
        if (pid == 0) {
            become(order, room + sizeof *order, given, count, argv);
            *argc = (int)order->argc;
            return;
        }
        reply(pid < 0 ? -errno : pid);
        madvise(room, ROOM, MADV_DONTNEED); /* the next child must not see the data of this one */
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
