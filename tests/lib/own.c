/* A selector of the program's own, as a user would write one. */
#include "tests/lib/rig.h"

#include <math.h>
#include <stdlib.h>

/* Indices of the k largest magnitudes of u, rising: the same set as the library's topk. */
static uint64_t largest(const float *u, uint64_t k, uint32_t *ret_idx)
{
    bool taken[RIG_PARAMS] = {false};
    uint64_t n = 0;

    for (uint64_t found = 0; found < k; found++) {
        uint64_t best = RIG_PARAMS;

        for (uint64_t i = 0; i < RIG_PARAMS; i++) {
            if (!taken[i] && u[i] != 0 && (best == RIG_PARAMS || fabsf(u[i]) > fabsf(u[best]))) {
                best = i;
            }
        }
        if (best < RIG_PARAMS) {
            taken[best] = true;
        }
    }
    for (uint32_t i = 0; i < RIG_PARAMS; i++) {
        if (taken[i]) {
            ret_idx[n++] = i;
        }
    }
    return n;
}

int rig_push_own(struct rig_rank *rank, struct gkps_step *step)
{
    uint64_t k =
        (uint64_t)(strtod(rank->job->density ? rank->job->density : "0.05", NULL) * RIG_PARAMS);
    struct gkps_sparse lists[RIG_TENSORS];
    float *u = rank->aux.residual;
    uint32_t idx[RIG_PARAMS];
    float val[RIG_PARAMS];
    uint64_t n, at = 0;
    int code;

    for (uint64_t i = 0; i < RIG_PARAMS; i++) {
        float sum = (float)step->samples * rank->gradient[i];

        u[i] = u[i] + sum;
    }
    n = largest(u, k, idx);
    for (uint64_t i = 0; i < n; i++) {
        val[i] = u[idx[i]];
        u[idx[i]] = 0;
    }
    for (uint32_t i = 0; i < RIG_TENSORS; i++) {
        uint64_t count;
        uint64_t begin = rig_tensor_at(i, &count);
        uint64_t first = at;

        while (at < n && idx[at] < begin + count) {
            idx[at++] -= (uint32_t)begin;
        }
        lists[i] = (struct gkps_sparse){.size = sizeof(lists[i]),
                                        .indices = idx + first,
                                        .values = val + first,
                                        .count = at - first};
    }
    code = gkps_push_sparse(rank->gkps, step, lists);
    code = code ? code : gkps_wait(rank->gkps, step);
    return code ? code : gkps_pull(rank->gkps);
}
