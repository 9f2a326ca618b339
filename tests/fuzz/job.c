#include "tests/fuzz/job.h"

#include "common/backend.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

void job_make(struct job *job, uint32_t workers, uint32_t servers)
{
    struct gk_words words;

    memset(job, 0, sizeof(*job));
    job->tensors[0] =
        (struct gk_tensor){.name = "weight", .count = 64, .dims = {8, 8}, .dims_count = 2};
    job->tensors[1] = (struct gk_tensor){.name = "bias",
                                         .offset = 64,
                                         .count = JOB_PARAMS - 64,
                                         .dims = {JOB_PARAMS - 64},
                                         .dims_count = 1,
                                         .flags = GK_TENSOR_NO_DECAY};
    job->spec = (struct gk_spec){
        .workers = workers,
        .servers = servers,
        .mode = GK_MODE_BSP,
        .lost_policy = GK_LOST_WAIT,
        .nonfinite_policy = GK_NONFINITE_ABORT,
        .seed = 7,
        .steps = JOB_STEPS,
        .push_max = JOB_PARAMS,
        .optimizer = GK_OPTIMIZER_MOMENTUM,
        .lr = 0.1f,
        .momentum = 0.9f,
        .weight_decay = 0.01f,
        .schedule = GK_SCHEDULE_COSINE,
        .warmup_steps = 1,
        .lr_min = 0.01f,
        .model = "tiny",
        .params_count = JOB_PARAMS,
        .tensors = job->tensors,
        .tensors_count = 2,
    };
    FUZZ_CHECK(gk_spec_encode(&job->spec, job->bytes, &job->bytes_count, &words) == GK_OK);
    job->hash = gk_spec_hash(job->bytes, job->bytes_count);
    job->signature = gk_spec_model_signature(&job->spec);
}

float job_initial(uint64_t index)
{
    return 0.01f * (float)index - 0.3f;
}
