#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/job.h"
#include "tests/fuzz/seeds.h"
#include "tests/fuzz/wire.h"
#include "tests/unit/proto_legal.h"
#include "tests/unit/proto_sample.h"

#include <ctype.h>

enum { VARIANTS = 3 };

static void name_of(char *ret, size_t room, const char *kind, uint32_t variant)
{
    (void)snprintf(ret, room, "%s-%u", kind, (unsigned)variant);
    for (; *ret; ret++) {
        *ret = (char)tolower((unsigned char)*ret);
    }
}

static void write_bodies(uint32_t kind, const char *name, const struct fuzz_message *message)
{
    static const uint32_t kinds[] = {GK_KIND_HELLO, GK_KIND_WELCOME, GK_KIND_PING, GK_KIND_PONG};
    uint8_t bytes[2 + GK_BODY_BYTES_MAX + GK_TEXT_BYTES_MAX];
    size_t size = 2;

    for (uint8_t i = 0; i < 4; i++) {
        if (kinds[i] == kind) {
            bytes[0] = i;
            bytes[1] = (uint8_t)message->parts[1].size;
            for (uint32_t p = 1; p < message->count; p++) {
                memcpy(bytes + size, message->parts[p].bytes, message->parts[p].size);
                size += message->parts[p].size;
            }
            seeds_write("bodies", name, bytes, size);
        }
    }
}

static void write_message(uint32_t kind, uint32_t variant)
{
    struct draw draw = {.rng = {.seed = 11, .purpose = GK_RNG_BATCH, .a = kind, .b = variant}};
    static uint8_t bytes[1 << 16];
    struct fuzz_message message;
    struct gk_msg msg;
    char name[64];

    legal_message(&draw, kind, &msg);
    fuzz_message_check_ours(&msg);
    fuzz_message_send(&msg, &message);
    gk_msg_clear(&msg);
    name_of(name, sizeof(name), gk_kind_name(kind), variant);
    message.skewed = variant % 2 == 1;
    seeds_write("frames", name, bytes, fuzz_message_write(&message, bytes, sizeof(bytes)));
    if (variant == 0) {
        seeds_write("header", name, message.parts[0].bytes, message.parts[0].size);
    }
    write_bodies(kind, name, &message);
    fuzz_message_clear(&message);
}

static void write_spec(const char *name, const struct gk_spec *spec)
{
    static uint8_t bytes[GK_SPEC_BYTES_MAX];
    struct gk_words words;
    size_t size;

    FUZZ_CHECK(gk_spec_encode(spec, bytes, &size, &words) == GK_OK);
    seeds_write("spec", name, bytes, size);
}

void seeds_wire(void)
{
    static struct job job;
    struct gk_tensor tensors[SAMPLE_TENSORS];
    struct gk_spec spec = sample_spec(tensors);

    for (uint32_t kind = 1; kind <= GK_KIND_MAX; kind++) {
        for (uint32_t variant = 0; variant < VARIANTS && !reserved_kind(kind); variant++) {
            write_message(kind, variant);
        }
    }
    write_spec("milestones", &spec);
    job_make(&job, 2, 1);
    write_spec("cosine", &job.spec);
    job.spec.schedule = GK_SCHEDULE_CONSTANT;
    job.spec.lr_min = 0;
    job.spec.optimizer = GK_OPTIMIZER_SGD;
    job.spec.momentum = 0;
    write_spec("constant", &job.spec);
    job.spec.optimizer = GK_OPTIMIZER_ADAMW;
    job.spec.momentum = 0.9f;
    job.spec.beta2 = 0.999f;
    job.spec.epsilon = 1e-8f;
    write_spec("adamw", &job.spec);
}
