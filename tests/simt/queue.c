/* Goal: a queue of the CUDA table is what backend.h says: slots return before the work is done,
 * tickets tell when it is, results land in pinned memory, errors stick, failures of the runtime are
 * errors and never more, and a machine without a device gets one line.
 *
 * Method: vectors in device memory and results in pinned memory, which the emulator keeps poisoned
 * until somebody waits; several slots in flight; every allocation and every launch fails once;
 * kernels are counted. */
#include "common/backend.h"
#include "common/bits.h"
#include "common/words.h"
#include "cuda/backend.h"
#include "tests/simt/simt.h"

#include <criterion/criterion.h>

#include <stdint.h>
#include <string.h>

enum { N = 3000, K = 40 };

static const struct gk_vector_ops *ops;
static struct gk_queue *queue;
static float *g, *e, *u; /* device */
static float *host;      /* pinned, N */
static uint32_t *idx;    /* pinned, N */
static float *val;       /* pinned, N */
static struct gk_select_report *report;
static struct gk_select_state *state;
static uint64_t *numbers;

static void *memory(enum gk_memory kind, size_t bytes)
{
    void *at = ops->alloc(queue, kind, bytes);

    cr_assert_not_null(at);
    return at;
}

static void finish(struct gk_ticket ticket)
{
    cr_assert_eq(ops->wait(queue, ticket), GK_OK);
}

static float value(uint64_t i)
{
    return (float)(int32_t)(gk_mix64(i) >> 40) * 0x1p-23f - 0.5f;
}

static void begin(void)
{
    ops = gk_vector_cuda(NULL);
    cr_assert_not_null(ops);
    cr_assert_eq(ops->open(&queue, NULL), GK_OK);
    g = memory(GK_MEMORY_DEVICE, N * sizeof(float));
    e = memory(GK_MEMORY_DEVICE, N * sizeof(float));
    u = memory(GK_MEMORY_DEVICE, N * sizeof(float));
    host = memory(GK_MEMORY_PINNED, N * sizeof(float));
    idx = memory(GK_MEMORY_PINNED, N * sizeof(uint32_t));
    val = memory(GK_MEMORY_PINNED, N * sizeof(float));
    report = memory(GK_MEMORY_PINNED, sizeof(*report));
    state = memory(GK_MEMORY_PINNED, sizeof(*state));
    numbers = memory(GK_MEMORY_PINNED, 8 * sizeof(*numbers));
    for (uint64_t i = 0; i < N; i++)
        host[i] = value(i);
    finish(ops->copy(queue, g, host, N * sizeof(float)));
}

static void end(void)
{
    ops->free(queue, GK_MEMORY_DEVICE, g);
    ops->free(queue, GK_MEMORY_DEVICE, e);
    ops->free(queue, GK_MEMORY_DEVICE, u);
    ops->free(queue, GK_MEMORY_PINNED, host);
    ops->free(queue, GK_MEMORY_PINNED, idx);
    ops->free(queue, GK_MEMORY_PINNED, val);
    ops->free(queue, GK_MEMORY_PINNED, report);
    ops->free(queue, GK_MEMORY_PINNED, state);
    ops->free(queue, GK_MEMORY_PINNED, numbers);
    ops->close(queue);
}

static const struct gk_range whole = {0, N};
static const uint64_t k = K;

static struct gk_select_args select_args(void)
{
    return (struct gk_select_args){.dst = u,
                                   .g = g,
                                   .e = e,
                                   .segments = &whole,
                                   .k = &k,
                                   .segments_count = 1,
                                   .state = state,
                                   .idx = idx,
                                   .val = val,
                                   .room = K,
                                   .report = report};
}

/* The choice of K from g, by counting who is larger. */
static bool is_chosen(uint64_t i)
{
    uint64_t before = 0;

    for (uint64_t j = 0; j < N; j++) {
        uint32_t mine = gk_float_bits(value(i)) & GK_KEY_MASK;
        uint32_t other = gk_float_bits(value(j)) & GK_KEY_MASK;

        before += other > mine || (other == mine && j < i);
    }
    return before < K;
}

static void check_choice(void)
{
    static uint32_t chosen[N];
    static uint64_t chosen_count;
    uint64_t at = 0;

    for (uint64_t i = 0; i < N && chosen_count < K; i++)
        if (is_chosen(i))
            chosen[chosen_count++] = (uint32_t)i;
    cr_assert_eq(report->n, K);
    for (uint64_t j = 0; j < K; j++) {
        const uint32_t i = chosen[j];

        cr_assert_eq(idx[at], i);
        cr_assert_eq(val[at], value(i));
        at++;
    }
}

Test(simt_queue, work_is_done_when_the_ticket_says_so)
{
    begin();
    for (unsigned turn = 0; turn < 30; turn++) { /* more tickets than a queue has events */
        const struct gk_select_args args = select_args();
        const uint64_t before = gk_simt_launches();
        struct gk_ticket ticket;
        unsigned asked = 0;

        gk_simt_schedule(GK_SIMT_RANDOM, turn);
        ticket = ops->select(queue, &args);
        cr_assert_gt(ticket.v, 0);
        cr_assert_eq(gk_simt_launches(), before); /* nothing has run */
        if (turn % 2)
            while (!ops->poll(queue, ticket))
                cr_assert_lt(asked++, 1000);
        finish(ticket);
        cr_assert(ops->poll(queue, ticket));
        cr_assert_eq(gk_simt_launches() - before, 9);
        check_choice();
    }
    end();
}

/* The number of launches is that of one segment. */
Test(simt_queue, launches_do_not_grow_with_segments)
{
    struct gk_range segments[300];
    uint64_t ks[300];
    struct gk_select_args args;
    uint64_t before;

    begin();
    for (uint64_t s = 0; s < 300; s++) {
        segments[s] = (struct gk_range){10 * s, 10 * s + 10};
        ks[s] = 2;
    }
    args = select_args();
    args.segments = segments;
    args.k = ks;
    args.segments_count = 300;
    args.state = NULL;
    args.room = 600;
    before = gk_simt_launches();
    finish(ops->select(queue, &args));
    cr_assert_eq(gk_simt_launches() - before, 9);
    cr_assert_eq(report->n, 600);
    for (unsigned j = 0; j < 600; j++)
        cr_assert_eq(idx[j] / 10, j / 2);
    end();
}

/* Add, take, hash and copy in one queue, one wait: each sees what the one before has done. */
Test(simt_queue, slots_in_flight_run_in_order)
{
    begin();
    for (unsigned turn = 0; turn < 5; turn++) {
        const struct gk_accumulate_args add = {.dst = u, .g = g, .e = g, .scale = 1, .n = N};
        const struct gk_take_args take = {
            .u = u, .idx = idx, .n = K, .encoding = GK_VALUE_F32, .val = val};
        const struct gk_hash_args hash = {.x = u, .n = N, .hash = numbers};
        uint64_t want = 0;

        gk_simt_schedule(GK_SIMT_RANDOM, 100 + turn);
        for (uint32_t j = 0; j < K; j++)
            idx[j] = 7 * j + turn;
        ops->accumulate(queue, &add);
        ops->take(queue, &take);
        ops->hash(queue, &hash);
        finish(ops->copy(queue, host, u, N * sizeof(float)));
        for (uint64_t i = 0; i < N; i++) {
            const bool taken = i >= turn && (i - turn) % 7 == 0 && (i - turn) / 7 < K;
            const float x = taken ? 0.0f : value(i) + value(i);

            cr_assert_eq(host[i], x);
            cr_assert(!taken || val[(i - turn) / 7] == value(i) + value(i));
            want += gk_hash_term(0, i, gk_float_bits(x));
        }
        cr_assert_eq(numbers[0], want);
    }
    end();
}

/* Whatever fails: an error that sticks until somebody waits, the state as it was, and the next call
 * works. */
Test(simt_queue, every_failure_is_an_error)
{
    const struct gk_select_state before = {.t = 0.5f, .kp = K, .margin = 0.2f};

    begin();
    for (int what = 0; what < 2; what++) {
        for (int after = 0; after < 40; after++) {
            const struct gk_select_args args = select_args();
            struct gk_queue *fresh = NULL;
            enum gk_err err;

            cr_assert_eq(ops->open(&fresh, NULL), GK_OK); /* one without scratch memory */
            *state = before;
            if (what == 0)
                gk_simt_fail_allocation(after);
            else
                gk_simt_fail_launch(after);
            err = ops->wait(fresh, ops->select(fresh, &args));
            gk_simt_fail_allocation(-1);
            gk_simt_fail_launch(-1);
            cr_assert_eq(ops->wait(fresh, (struct gk_ticket){0}), GK_OK);
            if (err != GK_OK) {
                cr_assert_eq(err, what == 0 ? GK_E_NOMEM : GK_E_IO);
                cr_assert(what == 0 ? after < 30 : after < 9);
            } else {
                cr_assert_gt(after, what == 0 ? 0 : 8);
            }
            finish(ops->select(fresh, &args));
            ops->close(fresh);
            check_choice();
        }
    }
    cr_assert_null(ops->alloc(queue, GK_MEMORY_DEVICE, (size_t)1 << 40));
    finish((struct gk_ticket){0});
    gk_simt_fail_allocation(0);
    cr_assert_null(ops->alloc(queue, GK_MEMORY_PINNED, 100));
    end();
}

Test(simt_queue, a_machine_without_a_device_gets_a_line)
{
    struct gk_words words = {0};

    cr_assert_not_null(gk_vector_cuda_device(0, &words));
    cr_assert_null(gk_vector_cuda_device(1, &words));
    cr_assert_str_eq(words.text, "no CUDA device 1: this machine has 1, counted from 0");
    cr_assert_null(gk_vector_cuda_device(16, &words));
    gk_simt_devices(0);
    cr_assert_null(gk_vector_cuda(&words));
    cr_assert_str_eq(words.text, "no CUDA device: no CUDA-capable device is detected");
    gk_simt_devices(-1);
    cr_assert_null(gk_vector_cuda(&words));
    cr_assert_not_null(strstr(words.text, "driver"));
}
