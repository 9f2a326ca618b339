/* What a run under a fault script came to, against what the script says must hold.  Pure. */
#ifndef GK_TOOL_FAULTS_EXPECT_H
#define GK_TOOL_FAULTS_EXPECT_H

#include "tool/faults.h"

struct gk_faults_outcome {
    int exit_code; /* of the run; 128 + a signal that killed it */
    bool told;     /* the launcher lived to tell the rest of this block */
    bool complete; /* every summary came */
    bool hashed;
    uint64_t model_hash, lost, restarts;

    bool compared; /* an undisturbed run gave a hash */
    uint64_t undisturbed_hash;

    bool late;              /* it had to be ended: `within` was over */
    uint64_t memory_bytes;  /* of the largest process */
    struct gk_words leaked; /* who outlived the run; "": nobody */
    bool said[GK_FAULTS_SAYS_MAX];
    uint64_t done[GK_FAULTS_MAX]; /* how often each fault was done */
};

/* Calls `fail` with the line in the script and one line of words for each expectation that does not
 * hold.  How many. */
uint32_t gk_faults_expect(const struct gk_faults *faults, const struct gk_faults_outcome *outcome,
                          void (*fail)(void *context, uint32_t line, const char *words),
                          void *context);

/* How many expectations the script has, with those that every script has. */
uint32_t gk_faults_expect_count(const struct gk_faults *faults);

#endif
