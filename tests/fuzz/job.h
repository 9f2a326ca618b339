/* The small job that the sessions of both cores are about. */
#ifndef GK_TESTS_FUZZ_JOB_H
#define GK_TESTS_FUZZ_JOB_H

#include "proto/spec.h"

enum {
    JOB_PARAMS = 80, /* with 2 servers shard 0 has [0, 32), shard 1 [32, 80) */
    JOB_CHUNK = 32,  /* floats a chunk, so that slices have several */
    JOB_STEPS = 3,
};

#define JOB_NAME "job"

struct job {
    struct gk_tensor tensors[2];
    struct gk_spec spec;
    uint8_t bytes[GK_SPEC_BYTES_MAX];
    size_t bytes_count;
    uint64_t hash, signature;
};

void job_make(struct job *job, uint32_t workers, uint32_t servers);

/* Element `index` of version 0. */
float job_initial(uint64_t index);

#endif
