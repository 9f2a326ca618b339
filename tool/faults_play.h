/* What of a fault script is due.  Pure: told the time and the step, it calls `act` for everything
 * that is to be done now, in the order of the script; every draw is a function of the script's
 * seed, the fault and its repetition. */
#ifndef GK_TOOL_FAULTS_PLAY_H
#define GK_TOOL_FAULTS_PLAY_H

#include "tool/faults.h"
#include "tool/tally.h"

enum { GK_FAULTS_UNDO_MAX = 256 }; /* waiting for their end at one time */

struct gk_faults_act { /* on one daemon, or on the messages between two */
    const struct gk_fault_line *fault;
    enum gk_faults_do what; /* THAW, HEAL of one kind ... are told by `ends` */
    bool ends;              /* what the fault did is to be undone */
    bool launcher;
    enum gk_role role;
    uint32_t index;     /* messages: of the worker */
    uint32_t server;    /* messages: the other end */
    bool comes_back;    /* kill: after down_us, whatever --restart says */
    uint64_t down_us;   /* GK_FAULTS_EVER: until it is started */
    uint64_t length_us; /* of a frozen launcher */
};

struct gk_faults_play_line {
    struct gk_faults_span next; /* low: the point; given false: no more */
    uint32_t done;
};

struct gk_faults_undo {
    bool steps;
    uint64_t at;
    struct gk_faults_act act;
};

struct gk_faults_play {
    const struct gk_faults *faults;
    struct gk_faults_job job;
    struct gk_faults_play_line lines[GK_FAULTS_MAX];
    struct gk_faults_undo undos[GK_FAULTS_UNDO_MAX];
    uint32_t undos_count;
};

/* Borrows `faults`. */
void gk_faults_play_init(struct gk_faults_play *play, const struct gk_faults *faults,
                         const struct gk_faults_job *job);

typedef void gk_faults_act_fn(void *context, const struct gk_faults_act *act);

/* `now_us` since the run began, `step` done by all workers.  A fault happens once a call at most:
 * what is due several times by now comes in the next calls. */
void gk_faults_play_tick(struct gk_faults_play *play, uint64_t now_us, uint64_t step,
                         gk_faults_act_fn *act, void *context);

/* "kill worker 2", "drop 20 % between worker 1 and server 0", "end of freeze server 1". */
void gk_faults_act_text(const struct gk_faults_act *act, char *ret, size_t ret_bytes);

#endif
