/* The guardian: a small process that starts all others, and ends them when Plait is gone.
 *
 * It does what guardian.py does, faster: that module describes the guarantees and the protocol, and
 * serves where this program was not compiled.  Both pass the same tests.  Only this one uses
 * prestarted shells (warm.c).
 *
 *   request socket (fd 3)   CHANNEL and the descriptor of one; END_ALL; closing it ends all jobs; READY
 *                           goes out once
 *   channel                 orders and commands come in, reports go out; a channel has many jobs
 *
 * One thread, one epoll loop.  Reports of one turn of the loop are sent together.  The guardian reads
 * the output of a captured job; in its first milliseconds only when it ends, since most jobs print
 * less than a pipe holds and end soon.
 *
 * Every number that comes in is checked.  A channel that breaks the protocol is closed, which ends its
 * jobs.  Without memory the guardian ends: Plait notices that, and the next guardian kills what is left.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ── the protocol: the same numbers are in guardian.py ─────────────────────────────────────────── */

enum { VERSION = 3 };
enum { REQUEST_FD = 3, FIRST_FILE = 64, MAX_DESCRIPTORS = 253, MARK_BITS = 32, MOST_STOPS = 100 };
enum { NO_INPUT = 1, CAPTURE = 2 };                      /* flags of an order */
enum { NO_DIRECTORY = 4 };                               /* flag of REFUSED */
#define CHANNEL 'L'
#define END_ALL 'A'
#define READY 'R'
#define JOB 'J'
#define END 'E'
#define SIGNAL 'S'
#define REFUSED 'F'
#define OUTPUT 'P'
#define CLOSED 'C'
#define EXITED 'X'
#define OVER 'O'

struct __attribute__((packed)) head {
    char kind;
    uint8_t flags, descriptors, unused;
    uint32_t id, argv_size, env_size, more_size, directory_size;
    int32_t group;                                       /* process group; 0: a new one */
};
struct __attribute__((packed)) command {
    char kind;
    uint8_t unused[3];
    uint32_t id;
    int32_t number;
    double grace;
};
struct __attribute__((packed)) report {
    char kind;
    uint8_t flags, unused[2];                            /* 1, 2: this stream of a captured job is open */
    uint32_t id;
    int32_t number, pid;
    int64_t peak;
    double user, system;
    uint32_t out_size, err_size;
};
_Static_assert(sizeof(struct head) == 28 && sizeof(struct command) == 20 && sizeof(struct report) == 48, "sizes");

enum { MOST_BYTES = 64 << 20 };                          /* of an order: more than Linux executes */
enum { MOST_TEXTS = 1 << 20, MOST_CHANGES = 1 << 10 };   /* of an order: likewise; Plait changes 16 variables */
enum { PIECE = 1 << 16, LAST_READS = 17 };
enum { MOST_UNSENT = 1 << 20 };                          /* bytes for a channel; beyond that, output is not read */
/* Reports for a channel; beyond that, orders are not read.  Thousands of jobs that end while Plait still
 * writes their orders make fewer: Plait does not read meanwhile, and must not wait for us. */
enum { MOST_REPORTS = 1 << 18 };
static const int64_t MILLISECOND = 1000000, SECOND = 1000000000;
#define GIVE_UP (5 * SECOND)
#define FIRST_PAUSE (2 * MILLISECOND)
#define LAST_PAUSE (50 * MILLISECOND)
#define UNWATCHED (4 * MILLISECOND)

/* ── memory ────────────────────────────────────────────────────────────────────────────────────── */

struct buffer { char *at; size_t size, room; };

static void *require_memory(void *memory)
{
    if (memory == NULL)
        _exit(71);
    return memory;
}

static char *make_room(struct buffer *buffer, size_t more)
{
    if (buffer->room - buffer->size < more) {
        size_t room = buffer->room ? buffer->room : 1024;
        while (room - buffer->size < more)
            room *= 2;
        buffer->at = require_memory(realloc(buffer->at, room));
        buffer->room = room;
    }
    return buffer->at + buffer->size;
}

static void append(struct buffer *buffer, const void *data, size_t size)
{
    if (size) {
        memcpy(make_room(buffer, size), data, size);
        buffer->size += size;
    }
}

static void drop_front(struct buffer *buffer, size_t size)
{
    if (size && size < buffer->size)
        memmove(buffer->at, buffer->at + size, buffer->size - size);
    buffer->size -= size;
    if (buffer->size == 0 && buffer->room > (1 << 20)) {
        free(buffer->at);
        *buffer = (struct buffer){0};
    }
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static int64_t seconds(double number)
{
    return number > 0 ? (number < 1e8 ? (int64_t)(number * 1e9) : (int64_t)1e17) : 0;
}

/* ── what there is ─────────────────────────────────────────────────────────────────────────────── */

enum what { IS_REQUEST, IS_CHILD, IS_CHANNEL, IS_STREAM };

struct watched { enum what what; int fd; };              /* epoll knows one by its address */

struct stream { struct watched watched; struct job *job; bool is_polled; };

struct channel {
    struct watched watched;
    struct channel *next, *previous, *next_unsent, *next_closed;
    struct job *jobs;
    struct buffer in, out;
    int *descriptors;                                    /* came, and are not used yet */
    size_t descriptor_count;
    size_t report_count;                                 /* in `out`, about */
    uint32_t events;                                     /* for which it is watched */
    bool has_lost_descriptors, is_unsent, is_blocked, is_closed;
};

struct job {
    struct channel *channel;                             /* NULL: closed */
    struct job *next_of_channel, **link_of_channel;
    struct job *next_by_pid;
    struct job *next_unwatched, **link_unwatched;
    struct job *next_ending, **link_ending;
    uint64_t mark;
    uint32_t id;
    pid_t pid;                                           /* 0: reaped, or never there */
    pid_t number;                                        /* its pid, also after that */
    bool is_grouped, is_captured, wants_over, is_ending, is_unasked, is_alive, is_due;
    bool is_asked;                                       /* its group, by the end of all jobs */
    int64_t began, deadline;                             /* deadline 0: it was not asked to end */
    int64_t give_up_at;                                  /* 0: nobody was killed yet */
    struct stream streams[2];
};

static int poller = -1, child_signals = -1;
static struct watched request = {IS_REQUEST, REQUEST_FD}, children = {IS_CHILD, -1};
static struct channel *channels, *unsent, *closed;
enum { LEADER_LISTS = 4096 };
static struct job *by_pid[LEADER_LISTS];
static struct job *unwatched, *ending, *finished;
static size_t unasked;
static int64_t grace, all_by, give_up_all_at, check_at, check_pause; /* 0: not set */
static uint64_t next_mark;
static struct rlimit own_locks, own_files, child_files;
static pid_t self;
static const char *library = "";                         /* of prestarted shells; empty: none */

static void end_job(struct job *job, int64_t after);
static void release(struct job *job);

#define LINK(list, item, next, link)         \
    do {                                     \
        (item)->next = (list);               \
        (item)->link = &(list);              \
        if ((list) != NULL)                  \
            (list)->link = &(item)->next;    \
        (list) = (item);                     \
    } while (0)
#define UNLINK(item, next, link)                 \
    do {                                         \
        if ((item)->link != NULL) {              \
            *(item)->link = (item)->next;        \
            if ((item)->next != NULL)            \
                (item)->next->link = (item)->link; \
            (item)->link = NULL;                 \
        }                                        \
    } while (0)

/* Returns false if the kernel refuses: a limit is reached, or it is no pipe or socket. */
static bool watch(struct watched *watched, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watched};
    return epoll_ctl(poller, EPOLL_CTL_ADD, watched->fd, &event) == 0 ||
           (errno == EEXIST && epoll_ctl(poller, EPOLL_CTL_MOD, watched->fd, &event) == 0);
}

static void check_in(int64_t pause)
{
    check_pause = pause;
    check_at = now() + pause;
}

/* ── reports ───────────────────────────────────────────────────────────────────────────────────── */

static void send_later(struct channel *channel)
{
    if (!channel->is_unsent && !channel->is_blocked) {
        channel->is_unsent = true;
        channel->next_unsent = unsent;
        unsent = channel;
    }
}

static struct report *add_report(struct job *job, char kind, int number, size_t output)
{
    static struct report nowhere;
    struct channel *channel = job->channel;
    if (channel == NULL || channel->is_closed)
        return memset(&nowhere, 0, sizeof nowhere);
    struct report *report = (struct report *)make_room(&channel->out, sizeof *report + output);
    channel->out.size += sizeof *report;
    channel->report_count++;
    *report = (struct report){.kind = kind, .id = job->id, .number = number, .pid = job->number};
    for (int n = 0; n < 2; n++)
        report->flags |= (uint8_t)(job->streams[n].watched.fd >= 0 ? 1 << n : 0);
    send_later(channel);
    return report;
}

static void close_channel(struct channel *channel);

static void resume_streams(struct channel *channel);

/* Plait that does not read what it is told has to wait with further orders. */
static void watch_channel(struct channel *channel)
{
    uint32_t events = (channel->report_count < MOST_REPORTS ? EPOLLIN : 0) | (channel->is_blocked ? EPOLLOUT : 0);
    if (events != channel->events && watch(&channel->watched, events))
        channel->events = events;
}

static void send_reports(struct channel *channel)
{
    size_t sent = 0;
    channel->is_blocked = false;
    while (sent < channel->out.size) {
        ssize_t size = send(channel->watched.fd, channel->out.at + sent, channel->out.size - sent,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            channel->is_blocked = true;
            break;
        }
        if (size < 0) { /* Plait has closed it */
            channel->out.size = 0;
            close_channel(channel);
            return;
        }
        sent += (size_t)size;
    }
    if (sent)
        channel->report_count = channel->report_count * (channel->out.size - sent) / channel->out.size;
    drop_front(&channel->out, sent);
    watch_channel(channel);
    if (channel->out.size < MOST_UNSENT)
        resume_streams(channel);
}

static void send_all_reports(void)
{
    while (unsent != NULL) {
        struct channel *channel = unsent;
        unsent = channel->next_unsent;
        channel->is_unsent = false;
        if (!channel->is_closed)
            send_reports(channel);
    }
}

/* ── the output of captured jobs ───────────────────────────────────────────────────────────────── */

static void close_stream(struct stream *stream)
{
    if (stream->watched.fd >= 0) {
        /* Closing is not enough: a process that is being executed may have a copy for a moment. */
        if (stream->is_polled)
            epoll_ctl(poller, EPOLL_CTL_DEL, stream->watched.fd, NULL);
        close(stream->watched.fd);
        stream->watched.fd = -1;
        stream->is_polled = false;
    }
}

/* Read once into the reports.  Returns false if there is nothing to read now. */
static bool read_stream(struct stream *stream)
{
    static char piece[PIECE];
    struct job *job = stream->job;
    ssize_t size = read(stream->watched.fd, piece, sizeof piece);
    if (size < 0)
        return errno == EINTR;
    if (size == 0) {
        close_stream(stream);
        return false;
    }
    struct report *report = add_report(job, OUTPUT, 0, (size_t)size);
    if (stream == &job->streams[1])
        report->err_size = (uint32_t)size;
    else
        report->out_size = (uint32_t)size;
    if (job->channel != NULL && !job->channel->is_closed)
        append(&job->channel->out, piece, (size_t)size);
    return true;
}

/* Read what is in the pipes; no more, because another process may print for ever. */
static void read_available(struct job *job)
{
    for (int n = 0; n < 2; n++)
        for (int reads = 0; reads < LAST_READS && job->streams[n].watched.fd >= 0; reads++)
            if (!read_stream(&job->streams[n]))
                break;
}

static void poll_streams(struct job *job)
{
    for (int n = 0; n < 2; n++) {
        struct stream *stream = &job->streams[n];
        if (stream->watched.fd >= 0 && !stream->is_polled) {
            stream->is_polled = watch(&stream->watched, EPOLLIN);
            if (!stream->is_polled && job->link_unwatched == NULL)
                LINK(unwatched, job, next_unwatched, link_unwatched); /* `watch_old_jobs` reads it */
        }
    }
}

static void resume_streams(struct channel *channel)
{
    for (struct job *job = channel->jobs; job != NULL; job = job->next_of_channel)
        if (job->is_captured && job->link_unwatched == NULL)
            poll_streams(job);
}

static void receive_output(struct stream *stream)
{
    struct job *job = stream->job;
    if (stream->watched.fd < 0)
        return;
    if (job->channel != NULL && job->channel->out.size >= MOST_UNSENT) {
        /* Plait reads slowly, and so does the guardian. */
        if (stream->is_polled)
            epoll_ctl(poller, EPOLL_CTL_DEL, stream->watched.fd, NULL);
        stream->is_polled = false;
        return;
    }
    read_stream(stream);
    if (stream->watched.fd < 0 && job->pid == 0) {
        add_report(job, CLOSED, 0, 0);
        release(job);
    }
}

/* ── jobs ──────────────────────────────────────────────────────────────────────────────────────── */

static struct job *find_leader(pid_t pid)
{
    struct job *job = by_pid[(unsigned)pid % LEADER_LISTS];
    while (job != NULL && job->pid != pid)
        job = job->next_by_pid;
    return job;
}

static void forget_leader(struct job *job)
{
    struct job **at = &by_pid[(unsigned)job->pid % LEADER_LISTS];
    while (*at != NULL && *at != job)
        at = &(*at)->next_by_pid;
    if (*at != NULL)
        *at = job->next_by_pid;
    job->pid = 0;
}

static bool is_output_open(const struct job *job)
{
    return job->streams[0].watched.fd >= 0 || job->streams[1].watched.fd >= 0;
}

/* Free a job that is over: no process, no open output, nothing to report.  One that is not captured
 * stays as long as its channel: Plait may still end what it left in the background. */
static void release(struct job *job)
{
    bool is_needed = job->channel != NULL && job->number != 0 && (!job->is_captured || is_output_open(job));
    if (job->pid != 0 || job->is_ending || job->is_unasked || is_needed)
        return;
    UNLINK(job, next_of_channel, link_of_channel);
    UNLINK(job, next_unwatched, link_unwatched);
    for (int n = 0; n < 2; n++)
        close_stream(&job->streams[n]);
    job->next_by_pid = finished; /* freed after this turn: epoll may still name its streams */
    finished = job;
}

static void free_finished(void)
{
    while (finished != NULL) {
        struct job *job = finished;
        finished = job->next_by_pid;
        free(job);
    }
    while (closed != NULL) {
        struct channel *channel = closed;
        closed = channel->next_closed;
        free(channel->in.at);
        free(channel->out.at);
        free(channel->descriptors);
        free(channel);
    }
}

/* Collect every child that has ended: leaders of jobs, and orphans. */
static void reap(void)
{
    struct signalfd_siginfo infos[8];
    while (child_signals >= 0 && read(child_signals, infos, sizeof infos) == sizeof infos)
        ;
    for (;;) {
        int status;
        struct rusage usage;
        pid_t pid = wait4(-1, &status, WNOHANG, &usage);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid <= 0)
            return;
        struct job *job = find_leader(pid);
        if (job == NULL)
            continue;
        forget_leader(job);
        UNLINK(job, next_unwatched, link_unwatched);
        read_available(job);
        struct report *report = add_report(job, EXITED, status, 0);
        report->peak = usage.ru_maxrss;
        report->user = (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6;
        report->system = (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6;
        poll_streams(job); /* of a process that it left in the background */
        release(job);
    }
}

/* ── /proc ─────────────────────────────────────────────────────────────────────────────────────── */

struct process {
    pid_t pid, parent, group;
    unsigned long long start;
    bool is_alive;
    pid_t root;                                          /* its ancestor that is our child; 0: none */
    struct job *job;
};

struct census { struct process *all; size_t size, room; };

static ssize_t read_file(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1; /* it has just ended */
    ssize_t size = read(fd, text, room - 1);
    close(fd);
    if (size >= 0)
        text[size] = 0;
    return size;
}

static bool read_process(pid_t pid, struct process *process)
{
    char path[64], stat[2048], state;
    int parent, group;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (read_file(path, stat, sizeof stat) <= 0)
        return false;
    char *at = strrchr(stat, ')');
    unsigned long long start;
    if (at == NULL || sscanf(at + 1, " %c %d %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                             &state, &parent, &group, &start) != 4)
        return false;
    *process = (struct process){pid, parent, group, start, state != 'Z' && state != 'X' && state != 'x', 0, NULL};
    return true;
}

/* The mark of a process; 0 if it has none. */
static uint64_t read_mark(pid_t pid)
{
    char path[64], limits[4096];
    snprintf(path, sizeof path, "/proc/%d/limits", (int)pid);
    if (read_file(path, limits, sizeof limits) <= 0)
        return 0;
    char *line = strstr(limits, "Max file locks");
    if (line == NULL)
        return 0;
    line += strlen("Max file locks");
    while (*line == ' ')
        line++;
    return *line >= '0' && *line <= '9' ? strtoull(line, NULL, 10) : 0;
}

static int compare_pids(const void *one, const void *other)
{
    pid_t a = ((const struct process *)one)->pid, b = ((const struct process *)other)->pid;
    return (a > b) - (a < b);
}

static struct process *find_process(const struct census *census, pid_t pid)
{
    struct process wanted = {.pid = pid};
    return bsearch(&wanted, census->all, census->size, sizeof wanted, compare_pids);
}

/* All processes that we can see, with their ancestor among our children. */
static struct census take_census(void)
{
    static struct census census;
    census.size = 0;
    DIR *folder = opendir("/proc");
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        pid_t pid = atoi(entry->d_name);
        struct process process;
        if (pid <= 0 || !read_process(pid, &process))
            continue;
        if (census.size == census.room) {
            census.room = census.room ? census.room * 2 : 256;
            census.all = require_memory(realloc(census.all, census.room * sizeof *census.all));
        }
        census.all[census.size++] = process;
    }
    if (folder != NULL)
        closedir(folder);
    if (census.size)
        qsort(census.all, census.size, sizeof *census.all, compare_pids);
    for (size_t n = 0; n < census.size; n++) {
        struct process *at = &census.all[n];
        for (size_t steps = 0; at != NULL && steps <= census.size; steps++) {
            if (at->root != 0 || at->parent == self) {
                census.all[n].root = at->root ? at->root : at->pid;
                break;
            }
            at = at->parent > 0 ? find_process(&census, at->parent) : NULL;
        }
    }
    return census;
}

/* Say of each of our descendants to which ending job it belongs, by its leader or by its mark. */
static struct census take_census_of_jobs(void)
{
    struct census census = take_census();
    for (struct job *job = ending; job != NULL; job = job->next_ending)
        job->is_alive = false;
    for (size_t n = 0; n < census.size; n++) {
        struct process *process = &census.all[n];
        if (process->root == 0)
            continue;
        struct process *root = process->root == process->pid ? process : find_process(&census, process->root);
        if (root != process && root != NULL && root < process) {
            process->job = root->job; /* asked already: pids are in order */
        } else {
            struct job *leader = find_leader(process->root);
            uint64_t mark = leader != NULL ? leader->mark : read_mark(process->root);
            for (struct job *job = ending; job != NULL; job = job->next_ending)
                if (job->mark == mark)
                    process->job = job;
        }
        if (process->job != NULL && process->is_alive)
            process->job->is_alive = true;
    }
    return census;
}

/* Signal this process, never another one that got its pid since. */
static void signal_process(const struct process *process, int number)
{
    int fd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    if (fd < 0) {
        if (errno == ENOSYS)
            kill(process->pid, number);
        return;
    }
    struct process present;
    if (read_process(process->pid, &present) && present.start == process->start)
        syscall(SYS_pidfd_send_signal, fd, number, NULL, 0);
    close(fd);
}

/* ── ending ────────────────────────────────────────────────────────────────────────────────────── */

/* Descriptors for reading /proc and for pidfds, also when jobs use all others: without them nobody
 * could be found and killed. */
static int spares[2] = {-1, -1};

static void free_spares(void)
{
    for (int n = 0; n < 2; n++)
        if (spares[n] >= 0)
            close(spares[n]);
    spares[0] = spares[1] = -1;
}

static void keep_spares(void)
{
    for (int n = 0; n < 2; n++)
        spares[n] = fcntl(0, F_DUPFD_CLOEXEC, REQUEST_FD + 1);
}

static void close_shells(void);

static void end_job(struct job *job, int64_t after)
{
    int64_t deadline = now() + after;
    if (job->deadline == 0) {
        job->is_unasked = true;
        unasked++;
        if (job->link_ending == NULL)
            LINK(ending, job, next_ending, link_ending);
        job->deadline = deadline;
    }
    if (deadline < job->deadline)
        job->deadline = deadline;
}

/* Whom the end of all jobs has asked, as long as it lasts. */
static struct buffer asked;

static bool is_among(const struct buffer *processes, const struct process *process)
{
    const struct process *all = (const struct process *)processes->at;
    for (size_t n = 0; n < processes->size / sizeof *all; n++)
        if (all[n].pid == process->pid && all[n].start == process->start)
            return true;
    return false;
}

static bool is_group_to_ask(const struct job *job, bool is_all)
{
    return job->is_grouped && job->pid != 0 && !job->is_asked && (is_all ? !job->is_ending : job->is_unasked);
}

/* SIGTERM, to each process once: a second one means "at once" to some programs.  SIGCONT, because a
 * stopped process does not receive SIGTERM. */
static void ask(const struct census *census, bool is_all)
{
    static const int numbers[] = {SIGTERM, SIGCONT};
    for (int which = 0; which < 2; which++) {
        for (size_t n = 0; is_all && n < LEADER_LISTS; n++)
            for (struct job *job = by_pid[n]; job != NULL; job = job->next_by_pid)
                if (is_group_to_ask(job, true))
                    killpg(job->number, numbers[which]);
        for (struct job *job = ending; !is_all && job != NULL; job = job->next_ending)
            if (is_group_to_ask(job, false))
                killpg(job->number, numbers[which]);
        for (size_t n = 0; n < census->size; n++) {
            const struct process *process = &census->all[n];
            struct job *job = process->job;
            if (process->root == 0 || !process->is_alive)
                continue;
            if (is_all ? job != NULL && job->is_ending : job == NULL || !job->is_unasked)
                continue; /* asked before, or not to be asked */
            struct job *leader = find_leader(process->group);
            if (leader != NULL && (is_group_to_ask(leader, is_all) || (leader->is_grouped && leader->is_asked)))
                continue; /* its group was signalled */
            if (!is_among(&asked, process))
                signal_process(process, numbers[which]);
        }
    }
}

static void set_leaders_asked(bool is_asked)
{
    for (size_t n = 0; n < LEADER_LISTS; n++)
        for (struct job *job = by_pid[n]; job != NULL; job = job->next_by_pid)
            job->is_asked = is_asked;
}

static void count_as_asked(void)
{
    for (struct job *job = ending; job != NULL; job = job->next_ending) {
        job->is_unasked = false;
        job->is_ending = true;
    }
    unasked = 0;
}

static void ask_jobs(void)
{
    free_spares();
    struct census census = take_census_of_jobs();
    check_in(FIRST_PAUSE);
    ask(&census, false);
    count_as_asked();
    keep_spares();
}

/* Ask all processes to end; those that are left after the grace, old or new, are killed.  Ordered
 * again, it asks those that are new. */
static void end_all(void)
{
    if (all_by == 0)
        all_by = now() + grace;
    check_in(FIRST_PAUSE);
    close_shells();
    free_spares();
    struct census census = take_census_of_jobs();
    ask(&census, true);
    count_as_asked();
    set_leaders_asked(true);
    for (size_t n = 0; n < census.size; n++)
        if (census.all[n].root != 0 && census.all[n].is_alive && !is_among(&asked, &census.all[n]))
            append(&asked, &census.all[n], sizeof *census.all);
    keep_spares();
}

static void forget_end_of_all(void)
{
    all_by = give_up_all_at = 0;
    set_leaders_asked(false);
    asked.size = 0;
}

/* Stop all processes, or those of jobs that are due, until there is no new one; then kill them. */
static void sweep(bool is_all)
{
    struct buffer stopped = {0};
    for (int times = 0; times < MOST_STOPS; times++) {
        struct census census = take_census_of_jobs();
        bool is_new = false;
        for (size_t n = 0; n < census.size; n++) {
            struct process *process = &census.all[n];
            if (process->root == 0 || !process->is_alive || is_among(&stopped, process))
                continue;
            if (!is_all && (process->job == NULL || !process->job->is_due))
                continue;
            signal_process(process, SIGSTOP);
            append(&stopped, process, sizeof *process);
            is_new = true;
        }
        if (!is_new)
            break;
    }
    for (size_t at = 0; at < stopped.size; at += sizeof(struct process))
        signal_process((struct process *)(stopped.at + at), SIGKILL);
    free(stopped.at);
}

/* We give up some time after the first kill, not after the grace: we may have been stopped since. */
static bool is_past(int64_t at, int64_t time)
{
    return at != 0 && time >= at;
}

/* Report jobs that are over, and kill those whose grace is over. */
static void check_endings(void)
{
    int64_t time = now();
    free_spares();
    struct census census = take_census_of_jobs();
    bool is_any_alive = false, is_any_due = false;
    for (size_t n = 0; n < census.size; n++)
        is_any_alive = is_any_alive || (census.all[n].root != 0 && census.all[n].is_alive);
    reap(); /* after the census: a job that is reported as over has left no zombie */
    for (struct job *job = ending, *next; job != NULL; job = next) {
        next = job->next_ending;
        bool is_alive = job->is_alive || job->pid != 0;
        job->is_due = is_alive && time >= job->deadline;
        if (!is_alive || is_past(job->give_up_at, time)) {
            read_available(job);
            for (int n = 0; n < 2; n++)
                close_stream(&job->streams[n]);
            if (job->wants_over)
                add_report(job, OVER, is_alive, 0);
            UNLINK(job, next_ending, link_ending);
            job->is_ending = job->is_due = false;
            job->deadline = job->give_up_at = 0; /* Plait may ask again */
            release(job);
        }
        if (job->is_due && job->give_up_at == 0)
            job->give_up_at = time + GIVE_UP;
        is_any_due = is_any_due || job->is_due;
    }
    if (all_by != 0 && (!is_any_alive || is_past(give_up_all_at, time)))
        forget_end_of_all();
    if (all_by != 0 && time >= all_by && give_up_all_at == 0)
        give_up_all_at = time + GIVE_UP;
    if (all_by != 0 && time >= all_by)
        sweep(true);
    else if (is_any_due)
        sweep(false); /* all at once: each looks at all processes */
    if (ending != NULL || all_by != 0)
        check_in(check_pause * 2 < LAST_PAUSE ? check_pause * 2 : LAST_PAUSE);
    else
        check_at = 0;
    keep_spares();
}

/* Kill what a dead guardian left running, wherever it is in the process tree. */
static void kill_marked(char **marks, int count)
{
    for (int times = 0; count && times < MOST_STOPS; times++) {
        struct census census = take_census();
        size_t found = 0;
        for (size_t n = 0; n < census.size; n++) {
            uint64_t mark = census.all[n].is_alive ? read_mark(census.all[n].pid) >> MARK_BITS : 0;
            bool is_old = false;
            for (int one = 0; mark && one < count; one++)
                is_old = is_old || strtoull(marks[one], NULL, 10) == mark;
            if (is_old)
                census.all[found++] = census.all[n];
        }
        if (found == 0)
            return;
        for (size_t n = 0; n < found; n++)
            signal_process(&census.all[n], SIGSTOP);
        for (size_t n = 0; n < found; n++)
            signal_process(&census.all[n], SIGKILL);
    }
}

/* ── an order ──────────────────────────────────────────────────────────────────────────────────── */

struct order {
    struct head head;
    char *argv, *env, *more, *directory;                 /* texts, each with NUL at its end */
    int descriptors[MAX_DESCRIPTORS];
    int first;                                           /* number of the first stream among them */
};

struct list { char **all; size_t size, room; };

static void add_text(struct list *list, char *text)
{
    if (list->size == list->room) {
        list->room = list->room ? list->room * 2 : 64;
        list->all = require_memory(realloc(list->all, list->room * sizeof *list->all));
    }
    list->all[list->size++] = text;
}

/* Split texts with NUL between them; `size` 0: there are none.  Returns false if they are too many. */
static bool split(struct list *list, char *texts, size_t size, size_t most)
{
    list->size = 0;
    for (size_t at = 0; at < size && list->size <= most; at += strlen(texts + at) + 1)
        add_text(list, texts + at);
    return list->size <= most;
}

static size_t name_length(const char *variable)
{
    const char *equals = strchr(variable, '=');
    return equals == NULL ? strlen(variable) : (size_t)(equals - variable);
}

/* The environment of an order: `more` replaces variables of `env`.  Returns false if they are too many. */
static bool make_environment(const struct order *order, struct list *environment)
{
    static struct list whole, more;
    if (!split(&whole, order->env, order->head.env_size, MOST_TEXTS) ||
        !split(&more, order->more, order->head.more_size, MOST_CHANGES))
        return false;
    for (size_t n = 0; n < more.size; n++) {
        size_t length = name_length(more.all[n]);
        bool is_there = false;
        for (size_t one = 0; one < whole.size && !is_there; one++) {
            const char *variable = whole.all[one];
            is_there = strncmp(variable, more.all[n], length) == 0 && (variable[length] == '=' || variable[length] == 0);
            if (is_there)
                whole.all[one] = more.all[n];
        }
        if (!is_there)
            add_text(&whole, more.all[n]);
    }
    add_text(&whole, NULL);
    whole.size--;
    *environment = whole;
    return true;
}

static const char *find_variable(struct list environment, const char *name)
{
    size_t length = strlen(name);
    for (size_t n = 0; n < environment.size; n++)
        if (strncmp(environment.all[n], name, length) == 0 && environment.all[n][length] == '=')
            return environment.all[n] + length + 1;
    return NULL;
}

static bool is_file(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode);
}

/* Find a program like a shell, on the PATH that it will get.  Returns an errno. */
static int find_program(const char *name, struct list environment, char path[PATH_MAX])
{
    if (strchr(name, '/') != NULL) {
        if (snprintf(path, PATH_MAX, "%s", name) >= PATH_MAX)
            return ENAMETOOLONG;
        return 0;
    }
    const char *folder = find_variable(environment, "PATH");
    if (folder == NULL)
        folder = "/bin:/usr/bin";
    bool is_there = false;
    for (;;) {
        size_t length = strcspn(folder, ":");
        int size = length == 0 ? snprintf(path, PATH_MAX, "./%s", name)
                               : snprintf(path, PATH_MAX, "%.*s%s%s", (int)(length < PATH_MAX ? length : PATH_MAX),
                                          folder, folder[length - 1] == '/' ? "" : "/", name);
        if (size < PATH_MAX && is_file(path)) {
            if (access(path, X_OK) == 0)
                return 0;
            is_there = true;
        }
        if (folder[length] == 0)
            return is_there ? EACCES : ENOENT;
        folder += length + 1;
    }
}

/* ── prestarted shells (warm.c): a shell waits before its `main`, and each order forks a child ────── */

enum { WARM_VERSION = 1, MOST_WARM_DESCRIPTORS = 40, MOST_WARM_BYTES = 64 << 10, MOST_SHELLS = 8, EXECUTED_FIRST = 3 };

struct warm_order {                                      /* the same as in warm.c */
    uint32_t argv_size, env_size, argc, envc;
    uint64_t mark, hard_mark, files, hard_files;
    uint32_t first, unused;
};

struct shell {
    char program[PATH_MAX];
    struct stat identity;
    int socket;                                          /* -1: this program cannot be prestarted */
    uint64_t mark;
};

static struct shell shells[MOST_SHELLS];
static size_t shell_count, executed;

static void close_shells(void)
{
    for (size_t n = 0; n < shell_count; n++)
        if (shells[n].socket >= 0)
            close(shells[n].socket); /* the shell ends by itself then */
    shell_count = 0;
}

static bool is_same_file(const struct stat *one, const struct stat *other)
{
    return one->st_dev == other->st_dev && one->st_ino == other->st_ino && one->st_size == other->st_size &&
           one->st_mtim.tv_sec == other->st_mtim.tv_sec && one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

static bool receive_reply(int socket, int64_t *number)
{
    ssize_t size;
    do
        size = recv(socket, number, sizeof *number, 0);
    while (size < 0 && errno == EINTR);
    return size == sizeof *number;
}

static pid_t execute(const char *program, char **argv, char **env, const int (*targets)[2], int count, int group,
                     uint64_t mark, int *error);

static int start_shell(const char *program, const struct stat *identity, uint64_t mark)
{
    int pair[2], error = 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    struct timeval patience = {.tv_sec = 5};
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    char preload[PATH_MAX + 16], name[PATH_MAX];
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", library);
    const char *slash = strrchr(program, '/');
    snprintf(name, sizeof name, "%s", slash == NULL ? program : slash + 1);
    int targets[1][2] = {{pair[1], REQUEST_FD}};
    /* Marked like a job, so that the next guardian finds it. */
    pid_t pid = execute(program, (char *[]){name, NULL}, (char *[]){preload, NULL}, targets, 1, 0, mark, &error);
    close(pair[1]);
    int64_t version = 0;
    char path[64];
    struct stat running;
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    /* A script with the name of a shell would be run by its interpreter. */
    if (pid > 0 && receive_reply(pair[0], &version) && version == WARM_VERSION && stat(path, &running) == 0 &&
        is_same_file(&running, identity))
        return pair[0];
    if (pid > 0)
        killpg(pid, SIGKILL); /* another program with the name of a shell: nobody has ordered it */
    close(pair[0]);
    return -1;
}

/* A waiting shell of the file that is at this path now; NULL: it has to be executed. */
static struct shell *find_shell(const char *program)
{
    struct stat identity;
    if (stat(program, &identity) != 0)
        return NULL;
    struct shell *shell = NULL;
    for (size_t n = 0; n < shell_count && shell == NULL; n++)
        if (strcmp(shells[n].program, program) == 0)
            shell = &shells[n];
    if (shell != NULL && (is_same_file(&shell->identity, &identity)))
        return shell->socket < 0 ? NULL : shell;
    if (shell == NULL) {
        if (shell_count == MOST_SHELLS)
            return NULL;
        shell = &shells[shell_count++];
    } else if (shell->socket >= 0) {
        close(shell->socket);
    }
    snprintf(shell->program, sizeof shell->program, "%s", program);
    shell->identity = identity;
    shell->mark = next_mark++;
    shell->socket = start_shell(program, &identity, shell->mark);
    return shell->socket < 0 ? NULL : shell;
}

static bool is_shell(const char *program)
{
    const char *slash = strrchr(program, '/'), *name = slash == NULL ? program : slash + 1;
    return strcmp(name, "sh") == 0 || strcmp(name, "dash") == 0 || strcmp(name, "bash") == 0;
}

/* The loader and the C library read these before `main`, so the program has to be executed. */
static bool is_read_before(const char *variable)
{
    return strncmp(variable, "LD_", 3) == 0 || strncmp(variable, "MALLOC_", 7) == 0 ||
           strncmp(variable, "GLIBC_", 6) == 0;
}

/* Kill all processes with a mark that is no job's, without asking: SIGCONT would have them go on. */
static void kill_mark(uint64_t mark)
{
    struct job job = {.mark = mark, .is_due = true};
    struct job *own = &job;
    LINK(ending, own, next_ending, link_ending);
    free_spares();
    sweep(false);
    keep_spares();
    UNLINK(own, next_ending, link_ending);
}

/* Returns the pid of a new shell; 0: the program has to be executed; -1: `error` says why it failed.
 * `is_lost`: it is unknown whether a process runs. */
static pid_t start_warm(const char *program, const struct order *order, struct list argv, struct list env,
                        const int *given, int count, uint64_t mark, int *error, bool *is_lost)
{
    static struct buffer text;
    if (!*library || executed < EXECUTED_FIRST || all_by != 0 || order->head.group != 0 || !is_shell(program) ||
        order->head.argv_size > MOST_WARM_BYTES || order->head.env_size > MOST_WARM_BYTES ||
        order->head.more_size > MOST_WARM_BYTES || count > MOST_WARM_DESCRIPTORS ||
        child_files.rlim_cur < FIRST_FILE + MOST_WARM_DESCRIPTORS)
        return 0; /* the last: a waiting shell has the limit of its children */
    struct warm_order warm = {.argc = (uint32_t)argv.size, .envc = (uint32_t)env.size, .mark = mark,
                              .hard_mark = own_locks.rlim_max, .files = child_files.rlim_cur,
                              .hard_files = own_files.rlim_max, .first = (uint32_t)order->first};
    text.size = 0;
    append(&text, &warm, sizeof warm);
    for (size_t n = 0; n < argv.size; n++)
        append(&text, argv.all[n], strlen(argv.all[n]) + 1);
    warm.argv_size = (uint32_t)(text.size - sizeof warm);
    for (size_t n = 0; n < env.size; n++) {
        if (is_read_before(env.all[n]))
            return 0;
        append(&text, env.all[n], strlen(env.all[n]) + 1);
    }
    warm.env_size = (uint32_t)(text.size - sizeof warm) - warm.argv_size;
    memcpy(text.at, &warm, sizeof warm);
    if (text.size > MOST_WARM_BYTES)
        return 0;
    struct shell *shell = find_shell(program);
    if (shell == NULL)
        return 0;
    union { char bytes[CMSG_SPACE(MOST_WARM_DESCRIPTORS * sizeof(int))]; struct cmsghdr aligned; } control;
    struct iovec part = {text.at, text.size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int))};
    memset(&control, 0, sizeof control);
    control.aligned.cmsg_level = SOL_SOCKET;
    control.aligned.cmsg_type = SCM_RIGHTS;
    control.aligned.cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    memcpy(CMSG_DATA(&control.aligned), given, (size_t)count * sizeof(int));
    ssize_t sent;
    do
        sent = sendmsg(shell->socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    int64_t pid = 0;
    if (sent >= 0 && receive_reply(shell->socket, &pid)) {
        if (pid > 0)
            return (pid_t)pid;
        if (pid == -EPERM || pid == -ENOSYS || pid == -EINVAL) { /* this kernel forbids it for good */
            close(shell->socket);
            shell->socket = -1;
        }
        return 0; /* nothing runs */
    }
    uint64_t lost = shell->mark;
    close(shell->socket);
    memmove(shell, shells + shell_count - 1, sizeof *shell);
    shell_count--;
    if (sent < 0)
        return 0; /* it had ended before it got the order: nothing runs */
    kill_mark(lost); /* it may still have the order before it, or a child that has not its own mark yet */
    *is_lost = true;
    *error = EIO;
    return -1;
}

/* ── executing ─────────────────────────────────────────────────────────────────────────────────── */

static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGPIPE};
static const int defaults[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGPIPE, SIGXFSZ, SIGCHLD};

/* In the child, which shares our memory until it executes: only system calls, and no allocation. */
static __attribute__((noinline)) void become(const char *program, char **argv, char **env, const int (*targets)[2],
                                             int count, int group, uint64_t mark, volatile int *error)
{
    if (setpgid(0, group) != 0)
        goto failed;
    for (size_t n = 0; n < sizeof defaults / sizeof *defaults; n++)
        signal(defaults[n], SIG_DFL);
    for (int n = 0; n < count; n++) {
        if (targets[n][0] != targets[n][1] ? dup2(targets[n][0], targets[n][1]) < 0
                                           : fcntl(targets[n][1], F_SETFD, 0) < 0)
            goto failed;
    }
    struct rlimit locks = {mark, own_locks.rlim_max};
    setrlimit(RLIMIT_LOCKS, &locks); /* refused if our own limit is lower: see guardian.py */
    struct rlimit files = {child_files.rlim_cur, own_files.rlim_max};
    setrlimit(RLIMIT_NOFILE, &files);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(program, argv, env);
failed:
    *error = errno;
    _exit(127);
}

/* Start a program; returns its pid, or -1 and the error. */
static pid_t execute(const char *program, char **argv, char **env, const int (*targets)[2], int count, int group,
                     uint64_t mark, int *error)
{
    volatile int failure = 0;
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    pid_t pid = vfork();
    if (pid == 0)
        become(program, argv, env, targets, count, group, mark, &failure);
    int number = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid < 0)
        failure = number;
    else if (failure)
        waitpid(pid, NULL, 0);
    *error = failure;
    return failure ? -1 : pid;
}

/* Start the program of an order with these descriptors: the directory, streams, files. */
static pid_t spawn(const struct order *order, const int *given, int count, uint64_t mark, int *error, bool *is_lost)
{
    static struct list argv;
    char program[PATH_MAX];
    struct list env;
    if (!split(&argv, order->argv, order->head.argv_size, MOST_TEXTS) || !make_environment(order, &env)) {
        *error = E2BIG; /* Linux could not execute that many, and we would be busy with them for long */
        return -1;
    }
    add_text(&argv, NULL);
    argv.size--;
    if ((*error = find_program(argv.all[0], env, program)) != 0)
        return -1;
    pid_t pid = start_warm(program, order, argv, env, given, count, mark, error, is_lost);
    if (pid != 0)
        return pid;
    executed++;
    int targets[MAX_DESCRIPTORS + 3][2], moved[MAX_DESCRIPTORS + 3], size = 0, moved_count = 0;
    *error = 0;
    for (int n = 1; n < count && *error == 0; n++, size++) {
        int stream = order->first + n - 1;
        targets[size][1] = stream < 3 ? stream : FIRST_FILE + stream - 3;
        targets[size][0] = given[n];
        /* Files are moved up first: one on a number that another needs would be overwritten. */
        if (count + order->first > 4) {
            int above = fcntl(given[n], F_DUPFD_CLOEXEC, FIRST_FILE + count);
            if (above < 0)
                *error = errno == EINVAL ? EMFILE : errno; /* EINVAL: our limit is lower than that */
            else
                targets[size][0] = moved[moved_count++] = above;
        }
    }
    if (*error == 0)
        pid = execute(program, argv.all, env.all, (const int (*)[2])targets, size, order->head.group, mark, error);
    for (int n = 0; n < moved_count; n++)
        close(moved[n]);
    return *error ? -1 : pid;
}

static int open_pipe(int *ours, int *theirs)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return errno;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *ours = ends[0];
    *theirs = ends[1];
    return 0;
}

static void refuse(struct job *job, int error, bool is_directory)
{
    for (int n = 0; n < 2; n++)
        close_stream(&job->streams[n]);
    struct report *report = add_report(job, REFUSED, error, 0);
    report->flags = is_directory ? NO_DIRECTORY : 0;
    release(job);
}

static struct job *make_job(struct channel *channel, uint32_t id)
{
    struct job *job = require_memory(calloc(1, sizeof *job));
    job->channel = channel;
    job->id = id;
    job->mark = next_mark++;
    for (int n = 0; n < 2; n++)
        job->streams[n] = (struct stream){{IS_STREAM, -1}, job, false};
    LINK(channel->jobs, job, next_of_channel, link_of_channel);
    return job;
}

static void start(struct channel *channel, struct order *order)
{
    struct job *job = make_job(channel, order->head.id);
    int given[MAX_DESCRIPTORS + 3], count = 0, outputs[2] = {-1, -1}, error = 0, directory = -1, used = 0;
    bool is_lost = false, is_directory = false;
    if (request.fd < 0)
        error = ECANCELED; /* Plait is gone */
    else if (channel->has_lost_descriptors)
        error = EMFILE;
    if (order->head.directory_size && error == 0) {
        directory = open(order->directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (directory < 0)
            error = errno, is_directory = error != EMFILE && error != ENFILE;
        given[count++] = directory;
    } else if (error == 0) {
        given[count++] = order->descriptors[used++];
    }
    order->first = order->head.flags & NO_INPUT ? 1 : 0;
    if (error == 0 && order->head.flags & CAPTURE) {
        job->is_captured = true;
        if (!(order->head.flags & NO_INPUT))
            given[count++] = order->descriptors[used++];
        for (int n = 0; n < 2 && error == 0; n++) {
            error = open_pipe(&job->streams[n].watched.fd, &outputs[n]);
            given[count++] = outputs[n];
        }
    }
    while (error == 0 && used < order->head.descriptors)
        given[count++] = order->descriptors[used++];
    if (error == 0 && fchdir(given[0]) != 0)
        error = errno, is_directory = true;
    pid_t pid = -1;
    if (error == 0)
        pid = spawn(order, given, count, job->mark, &error, &is_lost);
    if (chdir("/") != 0) /* otherwise the directory could not be unmounted */
        _exit(72);
    for (int n = 0; n < 2; n++)
        if (outputs[n] >= 0)
            close(outputs[n]);
    if (directory >= 0)
        close(directory);
    if (pid <= 0) {
        if (is_lost)
            end_job(job, 0); /* it may run: all processes with its mark are killed */
        refuse(job, error ? error : EIO, is_directory);
        return;
    }
    job->pid = job->number = pid;
    job->is_grouped = order->head.group == 0;
    job->began = now();
    struct job **bucket = &by_pid[(unsigned)pid % LEADER_LISTS];
    job->next_by_pid = *bucket;
    *bucket = job;
    if (job->is_captured)
        LINK(unwatched, job, next_unwatched, link_unwatched);
}

/* ── messages ──────────────────────────────────────────────────────────────────────────────────── */

static void close_channel(struct channel *channel)
{
    if (channel->is_closed)
        return;
    channel->is_closed = true;
    epoll_ctl(poller, EPOLL_CTL_DEL, channel->watched.fd, NULL);
    close(channel->watched.fd);
    for (size_t n = 0; n < channel->descriptor_count; n++)
        close(channel->descriptors[n]);
    channel->descriptor_count = 0;
    if (channel->next != NULL)
        channel->next->previous = channel->previous;
    if (channel->previous != NULL)
        channel->previous->next = channel->next;
    else
        channels = channel->next;
    for (struct job *job = channel->jobs, *next; job != NULL; job = next) {
        next = job->next_of_channel;
        UNLINK(job, next_of_channel, link_of_channel);
        UNLINK(job, next_unwatched, link_unwatched);
        job->channel = NULL;
        for (int n = 0; n < 2; n++)
            close_stream(&job->streams[n]);
        if (job->pid != 0 && all_by == 0)
            end_job(job, grace); /* Plait has closed the channel, and it still runs */
        release(job);
    }
    channel->next_closed = closed;
    closed = channel;
}

/* Take over the descriptors of a message.  Returns false if some were lost. */
static bool take_descriptors(struct msghdr *message, struct channel *channel)
{
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head != NULL; head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        channel->descriptors = require_memory(
            realloc(channel->descriptors, (channel->descriptor_count + count + 1) * sizeof(int)));
        memcpy(channel->descriptors + channel->descriptor_count, CMSG_DATA(head), count * sizeof(int));
        channel->descriptor_count += count;
    }
    return !(message->msg_flags & MSG_CTRUNC);
}

static struct job *find_job(const struct channel *channel, uint32_t id)
{
    struct job *job = channel->jobs;
    while (job != NULL && job->id != id)
        job = job->next_of_channel;
    return job;
}

static void handle_command(struct channel *channel, const struct command *command)
{
    struct job *job = find_job(channel, command->id);
    if (job == NULL) {
        if (command->kind == END) { /* it has ended meanwhile */
            struct job gone = {.channel = channel, .id = command->id, .streams = {{{IS_STREAM, -1}, NULL, false}, {{IS_STREAM, -1}, NULL, false}}};
            add_report(&gone, OVER, 0, 0);
        }
    } else if (command->kind == END) {
        job->wants_over = true;
        end_job(job, seconds(command->grace));
    } else if (job->pid != 0 && !(job->is_grouped && killpg(job->pid, command->number) == 0)) {
        kill(job->pid, command->number); /* a prestarted shell has no group in its first moment */
    }
}

/* Handle an order at the beginning of the input.  Returns its size; 0: it is incomplete; -1: it is none. */
static ssize_t handle_order(struct channel *channel, char *at, size_t size)
{
    static struct order order;
    if (size < sizeof order.head)
        return 0;
    memcpy(&order.head, at, sizeof order.head);
    const struct head *head = &order.head;
    uint64_t whole = sizeof *head + (uint64_t)head->argv_size + head->env_size + head->more_size + head->directory_size;
    size_t wanted = (head->directory_size == 0) + (head->flags & CAPTURE ? 0 : 2) + (head->flags & NO_INPUT ? 0 : 1);
    if (whole > MOST_BYTES || head->argv_size == 0 || head->descriptors < wanted || head->descriptors > MAX_DESCRIPTORS ||
        find_job(channel, head->id) != NULL)
        return -1;
    if (size < whole)
        return 0;
    uint32_t sizes[] = {head->argv_size, head->env_size, head->more_size, head->directory_size};
    char **texts[] = {&order.argv, &order.env, &order.more, &order.directory};
    char *text = at + sizeof *head;
    for (int n = 0; n < 4; text += sizes[n++]) {
        *texts[n] = text;
        if (sizes[n] && text[sizes[n] - 1] != 0)
            return -1;
    }
    size_t count = head->descriptors;
    if (channel->descriptor_count < count) {
        if (!channel->has_lost_descriptors)
            return 0; /* they come with the rest of the message */
        count = channel->descriptor_count;
    }
    if (count) {
        memcpy(order.descriptors, channel->descriptors, count * sizeof(int));
        channel->descriptor_count -= count;
        memmove(channel->descriptors, channel->descriptors + count, channel->descriptor_count * sizeof(int));
    }
    start(channel, &order);
    for (size_t n = 0; n < count; n++)
        close(order.descriptors[n]);
    if (channel->has_lost_descriptors) {
        send_reports(channel);
        return -1;
    }
    return (ssize_t)whole;
}

static void receive(struct channel *channel)
{
    union { char bytes[CMSG_SPACE(MAX_DESCRIPTORS * sizeof(int))]; struct cmsghdr aligned; } control;
    struct iovec part = {make_room(&channel->in, PIECE), PIECE};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t size = recvmsg(channel->watched.fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (size <= 0) {
        close_channel(channel);
        return;
    }
    channel->in.size += (size_t)size;
    if (!take_descriptors(&message, channel))
        channel->has_lost_descriptors = true;
    size_t at = 0;
    while (at < channel->in.size && !channel->is_closed) {
        char *text = channel->in.at + at;
        size_t left = channel->in.size - at;
        ssize_t used = -1;
        if (*text == JOB) {
            used = handle_order(channel, text, left);
        } else if (*text == END || *text == SIGNAL) {
            struct command command;
            used = left < sizeof command ? 0 : (ssize_t)sizeof command;
            if (used > 0) {
                memcpy(&command, text, sizeof command);
                handle_command(channel, &command);
            }
        }
        if (used < 0) {
            close_channel(channel);
            return;
        }
        if (used == 0)
            break;
        at += (size_t)used;
    }
    if (channel->is_closed)
        return;
    drop_front(&channel->in, at);
    /* More than one order needs: its descriptors do not come, or it does not take them. */
    if (channel->in.size > MOST_BYTES || channel->descriptor_count > 2 * MAX_DESCRIPTORS)
        close_channel(channel);
    else
        watch_channel(channel);
}

static bool is_socket(int fd)
{
    int type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &(socklen_t){sizeof type}) == 0;
}

static void open_channel(int fd)
{
    struct channel *channel = require_memory(calloc(1, sizeof *channel));
    channel->watched = (struct watched){IS_CHANNEL, fd};
    if (is_socket(fd))
        watch_channel(channel);
    if (channel->events == 0) { /* it is no socket, or cannot be watched: Plait sees it closed */
        close(fd);
        free(channel);
        return;
    }
    channel->next = channels;
    if (channels != NULL)
        channels->previous = channel;
    channels = channel;
}

static void take_request(void)
{
    char kind = 0;
    union { char bytes[CMSG_SPACE(MAX_DESCRIPTORS * sizeof(int))]; struct cmsghdr aligned; } control;
    struct iovec part = {&kind, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t size = recvmsg(REQUEST_FD, &message, MSG_CMSG_CLOEXEC);
    if (size < 0 && errno == EINTR)
        return;
    struct channel came = {0};
    if (size >= 0)
        take_descriptors(&message, &came);
    for (size_t n = 0; n < came.descriptor_count; n++) {
        /* No descriptor comes if there is no room; Plait then sees the channel closed. */
        if (size == 1 && kind == CHANNEL)
            open_channel(came.descriptors[n]);
        else
            close(came.descriptors[n]);
    }
    free(came.descriptors);
    if (size == 1 && kind == END_ALL) {
        end_all();
    } else if (size <= 0) {
        close(REQUEST_FD);
        request.fd = -1;
        end_all();
    }
}

/* ── the loop ──────────────────────────────────────────────────────────────────────────────────── */

static void on_child(int number)
{
    (void)number; /* only for kernels without signalfd: it interrupts the wait */
}

static int milliseconds_left(void)
{
    int64_t at = check_at;
    if (unwatched != NULL) {
        int64_t watch_at = now() + UNWATCHED;
        at = at == 0 || watch_at < at ? watch_at : at;
    }
    if (unasked) /* sending has found a channel closed */
        return 0;
    if (at == 0)
        return child_signals >= 0 ? -1 : 20;
    int64_t left = at - now();
    int wait = left <= 0 ? 0 : (int)(left / MILLISECOND < 3600000 ? left / MILLISECOND + 1 : 3600000);
    return child_signals >= 0 || wait < 20 ? wait : 20;
}

static void watch_old_jobs(void)
{
    int64_t before = now() - UNWATCHED;
    for (struct job *job = unwatched, *next; job != NULL; job = next) {
        next = job->next_unwatched;
        if (job->began > before)
            continue;
        UNLINK(job, next_unwatched, link_unwatched);
        poll_streams(job);
        for (int n = 0; n < 2; n++)
            if (!job->streams[n].is_polled)
                receive_output(&job->streams[n]); /* the kernel does not watch it: we look at it again and again */
    }
}

static void serve(void)
{
    while (request.fd >= 0 || all_by != 0) {
        struct epoll_event events[64];
        int count = epoll_wait(poller, events, 64, milliseconds_left());
        bool has_child = child_signals < 0;
        for (int n = 0; n < count; n++) {
            struct watched *watched = events[n].data.ptr;
            if (watched->what == IS_REQUEST) {
                if (request.fd >= 0)
                    take_request();
            } else if (watched->what == IS_CHILD) {
                has_child = true;
            } else if (watched->what == IS_STREAM) {
                receive_output((struct stream *)watched);
            } else {
                struct channel *channel = (struct channel *)watched;
                if (channel->is_closed)
                    continue;
                if (events[n].events & EPOLLOUT)
                    send_reports(channel);
                if (!channel->is_closed && events[n].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                    receive(channel);
            }
        }
        if (has_child)
            reap();
        if (unasked)
            ask_jobs();
        if (check_at != 0 && now() >= check_at)
            check_endings();
        if (unwatched != NULL)
            watch_old_jobs();
        send_all_reports();
        free_finished();
    }
}

static void prepare_signals(void)
{
    /* A terminal or a service manager signals all processes; the guardian has to end last. */
    for (size_t n = 0; n < sizeof ignored / sizeof *ignored; n++)
        signal(ignored[n], SIG_IGN);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    child_signals = getenv("PLAIT_NO_SIGNALFD") ? -1 : signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (child_signals < 0) {
        struct sigaction action = {.sa_handler = on_child};
        sigaction(SIGCHLD, &action, NULL);
        sigprocmask(SIG_UNBLOCK, &child, NULL);
    }
}

static void prepare_limits(void)
{
    getrlimit(RLIMIT_LOCKS, &own_locks);
    getrlimit(RLIMIT_NOFILE, &own_files);
    child_files = own_files;
    own_files.rlim_cur = own_files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &own_files) != 0) /* the kernel allows fewer */
        own_files = child_files;
}

/* Arguments: version, high bits of our marks, grace, `own` or `same` session, the library of
 * prestarted shells or nothing, high bits of old marks. */
int main(int count, char **arguments)
{
    if (count < 6 || atoi(arguments[1]) != VERSION)
        return 64;
    if (!is_socket(REQUEST_FD))
        return 70;
    self = getpid();
    next_mark = strtoull(arguments[2], NULL, 10) << MARK_BITS;
    grace = seconds(strtod(arguments[3], NULL));
    library = arguments[5];
    if (strcmp(arguments[4], "own") == 0)
        setsid();
    else
        setpgid(0, 0);
    fcntl(REQUEST_FD, F_SETFD, FD_CLOEXEC);
    /* Descriptors that Plait inherited must not stay open here or in our children. */
    if (close_range(REQUEST_FD + 1, ~0u, 0) != 0)
        for (int fd = REQUEST_FD + 1; fd < (int)sysconf(_SC_OPEN_MAX); fd++)
            close(fd);
    prepare_signals();
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* orphans below us become our children */
    prctl(PR_SET_PDEATHSIG, SIGCONT, 0, 0, 0); /* Plait's end continues us if we are stopped */
    prepare_limits();
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0 || chdir("/") != 0)
        return 70;
    children.fd = child_signals;
    if ((child_signals >= 0 && !watch(&children, EPOLLIN)) || !watch(&request, EPOLLIN))
        return 70;
    kill_marked(arguments + 6, count - 6);
    keep_spares();
    send(REQUEST_FD, &(char){READY}, 1, MSG_NOSIGNAL); /* if Plait is gone, serve() notices */
    serve();
    return 0;
}
