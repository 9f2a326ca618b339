/* A fault script: when what happens to whom, and what must hold at the end (docs/faults.md).
 *
 * The file is read and checked here, and is data from then on: faults_play.h says what is due,
 * launch_faults.c does it, faults_expect.h compares, faults_judge.h runs it all. */
#ifndef GK_TOOL_FAULTS_H
#define GK_TOOL_FAULTS_H

#include "common/err.h"
#include "common/words.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GK_FAULTS_MAX = 64,
    GK_FAULTS_START_MAX = 128,
    GK_FAULTS_SAYS_MAX = 16,
    GK_FAULTS_OPTIONS_MAX = 32,
    GK_FAULTS_WITHIN_S = 300, /* unless the script says otherwise */
};

#define GK_FAULTS_EVER UINT64_MAX

/* In the order of the words in `do`. */
enum gk_faults_do {
    GK_FAULTS_KILL,
    GK_FAULTS_FREEZE,
    GK_FAULTS_THAW,
    GK_FAULTS_RESTART,
    GK_FAULTS_PARTITION,
    GK_FAULTS_HEAL,
    GK_FAULTS_DROP,
    GK_FAULTS_DELAY,
    GK_FAULTS_DUPLICATE,
    GK_FAULTS_CORRUPT,
    GK_FAULTS_DISK_FULL,
    GK_FAULTS_DISK_FREE,
    GK_FAULTS_LOSE_STATE,
    GK_FAULTS_START,
    GK_FAULTS_DO_COUNT,
};

struct gk_faults;

/* Daemons lose their memory in it, and the run is to go on as if they had not: state directories
 * are needed. */
bool gk_faults_need_state(const struct gk_faults *faults);

const char *gk_faults_do_name(enum gk_faults_do what);

enum gk_faults_whom {
    GK_FAULTS_WORKER, /* one, by its number */
    GK_FAULTS_SERVER,
    GK_FAULTS_ANY_WORKER, /* one, drawn each time */
    GK_FAULTS_ANY_SERVER,
    GK_FAULTS_WORKERS,
    GK_FAULTS_SERVERS,
    GK_FAULTS_ALL, /* of both */
    GK_FAULTS_LAUNCHER,
};

struct gk_faults_who {
    enum gk_faults_whom whom;
    uint32_t index; /* of WORKER and SERVER */
};

/* A point or a length: steps or microseconds, drawn from low to high. */
struct gk_faults_span {
    bool given, steps;
    uint64_t low, high;
};

struct gk_fault_line { /* one of the list `faults` */
    uint32_t line;     /* in the file */
    enum gk_faults_do what;
    struct gk_faults_who who, with;
    struct gk_faults_span at, every, length; /* `length`: for; high GK_FAULTS_EVER: ever */
    uint64_t after_us;                       /* ... behind the point */
    uint32_t times;
    double chance;
    uint64_t amount_us;
};

struct gk_faults_begin { /* one of the list `start` */
    uint32_t line;
    bool wait;
    uint64_t wait_us;
    struct gk_faults_who who; /* a WORKER or a SERVER */
};

struct gk_faults_bounds { /* "3", "at most 3", "at least 3" */
    uint32_t line;        /* 0: not given */
    uint64_t low, high;
};

struct gk_faults_expect { /* a line of 0: not given */
    uint32_t completes_line, hash_line, says_lines[GK_FAULTS_SAYS_MAX];
    bool completes, same_hash;
    struct gk_faults_bounds exit_code, memory_mib, pushes_lost, restarts;
    const char *says[GK_FAULTS_SAYS_MAX];
    uint32_t says_count;
    uint32_t within_line;
    uint64_t within_us;
};

struct gk_yaml;

struct gk_faults {
    struct gk_yaml *yaml; /* owns the strings */
    const char *name;     /* of the file */
    uint64_t seed;
    struct gk_fault_line faults[GK_FAULTS_MAX];
    uint32_t faults_count;
    struct gk_faults_begin start[GK_FAULTS_START_MAX];
    uint32_t start_count; /* 0: as without a script */
    struct gk_faults_expect expect;
    struct { /* `run`: options of gkps run, as if they were flags */
        const char *name, *text;
        uint32_t line;
    } options[GK_FAULTS_OPTIONS_MAX];
    uint32_t options_count;
};

/* GK_E_CONFIG and words "FILE:LINE: ..."; GK_E_NOMEM. */
enum gk_err gk_faults_read(const char *path, struct gk_faults **ret_faults, struct gk_words *words);
void gk_faults_free(struct gk_faults *faults); /* accepts NULL */

struct gk_faults_job { /* for which a script is checked */
    uint32_t servers, workers;
};

/* Does it name daemons that the job has, and start all of them?  GK_E_CONFIG and words. */
enum gk_err gk_faults_check(const struct gk_faults *faults, const struct gk_faults_job *job,
                            struct gk_words *words);

bool gk_faults_is_message(enum gk_faults_do what); /* done to messages, not to processes */

#endif
