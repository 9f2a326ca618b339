/* Goal: message faults do what they are named after and nothing else, draw the same for the same
 * seed, keep their bounds, and let go of every buffer.  Method: an object between two counting
 * callbacks; delays on a loop with a real clock, of which only lower bounds are asserted. */
#include "common/net/fault.h"
#include "tests/unit/net_support.h"

#include <criterion/criterion.h>
#include <uv.h>

#include <string.h>

enum { MESSAGES = 4000 };

struct ends {
    uv_loop_t loop;
    uv_idle_t busy; /* in the place of a socket, which keeps the loop running */
    struct gk_fault *fault;
    struct gk_buf *sent[2]; /* of the message on its way */
    uint64_t passed[2];
    uint32_t last[2]; /* number of the last message that came out */
    uint64_t out_of_order, bits, longest;
    uint8_t seen[MESSAGES];
    uint64_t sent_us;
    uint64_t amount_us;
    bool close_next;
};

static uint64_t bits_between(const struct gk_buf *a, const struct gk_buf *b)
{
    uint64_t bits = 0;

    cr_assert_eq(a->size, b->size);
    for (size_t i = 0; i < a->size; i++) {
        bits += (uint64_t)__builtin_popcount((unsigned)(a->data[i] ^ b->data[i]));
    }
    return bits;
}

static void come_out(struct ends *ends, int way, struct gk_buf *const *parts, uint32_t count)
{
    uint32_t number;

    cr_assert_eq(count, 2);
    cr_assert_geq(gk_now_us(), ends->sent_us + ends->amount_us, "early");
    ends->passed[way]++;
    if (ends->sent[0]) {
        ends->bits += bits_between(parts[0], ends->sent[0]) + bits_between(parts[1], ends->sent[1]);
    }
    memcpy(&number, parts[0]->data, sizeof(number));
    if (number < MESSAGES) {
        ends->seen[number]++;
        ends->out_of_order += number < ends->last[way];
        ends->last[way] = number;
    }
    if (ends->close_next) {
        gk_fault_close(ends->fault);
        ends->fault = NULL;
    }
}

static void out(void *context, uint64_t route, struct gk_buf *const *parts, uint32_t count)
{
    cr_assert_eq(route, 7);
    come_out(context, 0, parts, count);
}

static void in(void *context, uint64_t route, struct gk_buf *const *parts, uint32_t count)
{
    cr_assert_eq(route, 7);
    come_out(context, 1, parts, count);
}

static struct ends ends; /* one test, one process */

static void on_idle(uv_idle_t *handle)
{
    (void)handle;
}

static void begin(void)
{
    memset(&ends, 0, sizeof(ends));
    cr_assert_eq(uv_loop_init(&ends.loop), 0);
    uv_idle_init(&ends.loop, &ends.busy);
    uv_idle_start(&ends.busy, on_idle);
    cr_assert_eq(
        gk_fault_open(
            &(struct gk_fault_setup){
                .loop = &ends.loop, .us = 3, .peer = 1, .out = out, .in = in, .context = &ends},
            &ends.fault),
        GK_OK);
}

static void end(void)
{
    gk_fault_close(ends.fault);
    gk_fault_close(NULL);
    uv_close((uv_handle_t *)&ends.busy, NULL);
    cr_assert_eq(uv_run(&ends.loop, UV_RUN_DEFAULT), 0);
    cr_assert_eq(uv_loop_close(&ends.loop), 0);
}

static void set(uint32_t kind, double chance, uint64_t amount_us, uint64_t seed)
{
    const struct gk_fault_command command = {
        .seed = seed, .kind = kind, .peer = -1, .chance = chance, .amount_us = amount_us};

    gk_fault_set(ends.fault, &command);
}

static struct gk_buf *numbered(uint32_t number, size_t size)
{
    struct gk_buf *buf = gk_buf_new(size);

    cr_assert_not_null(buf);
    memcpy(buf->data, &number, sizeof(number));
    return buf;
}

static void send_one(int way, uint32_t number)
{
    struct gk_buf *parts[2] = {numbered(number, 24), numbered(number, 9)};

    memcpy(ends.sent, parts, sizeof(parts));
    gk_fault_message(ends.fault, (enum gk_fault_way)way, 7, parts, 2);
    for (int i = 0; i < 2; i++) {
        uint32_t kept;

        memcpy(&kept, parts[i]->data, sizeof(kept));
        cr_assert_eq(kept, number, "the sender's own buffer was damaged");
        gk_buf_unref(parts[i]);
        ends.sent[i] = NULL;
    }
}

static void send_all(int way)
{
    memset(ends.seen, 0, sizeof(ends.seen));
    for (uint32_t i = 0; i < MESSAGES; i++) {
        send_one(way, i);
    }
}

Test(net_fault, nothing_is_done_before_it_is_asked_for)
{
    begin();
    send_all(0);
    send_all(1);
    cr_assert_eq(ends.passed[0], MESSAGES);
    cr_assert_eq(ends.passed[1], MESSAGES);
    cr_assert_eq(ends.out_of_order + ends.bits, 0);
    end();
}

/* A fifth is lost, each way for itself, and the same fifth for the same seed. */
Test(net_fault, drops_are_drawn_from_the_seed)
{
    static uint8_t first[MESSAGES];
    uint64_t other = 0;

    for (uint64_t seed = 7; seed < 10; seed++) {
        for (int again = 0; again < 2; again++) {
            begin();
            set(GK_FAULT_DROP, 0.2, 0, seed);
            send_all(0);
            cr_assert_gt(ends.passed[0], MESSAGES * 3 / 4);
            cr_assert_lt(ends.passed[0], MESSAGES * 17 / 20);
            cr_assert_eq(gk_fault_stats(ends.fault)->done[GK_FAULT_DROP],
                         MESSAGES - ends.passed[0]);
            if (again) {
                cr_assert_arr_eq(first, ends.seen, sizeof(first));
            } else {
                other += seed > 7 && memcmp(first, ends.seen, sizeof(first)) != 0;
                memcpy(first, ends.seen, sizeof(first));
            }
            send_all(1);
            cr_assert_neq(memcmp(first, ends.seen, sizeof(first)), 0, "both ways lose the same");
            end();
        }
    }
    cr_assert_eq(other, 2, "another seed draws the same");
}

Test(net_fault, damage_is_one_bit_of_a_copy)
{
    begin();
    set(GK_FAULT_CORRUPT, 1.0, 0, 1);
    send_all(1);
    cr_assert_eq(ends.passed[1], MESSAGES);
    cr_assert_eq(ends.bits, MESSAGES);
    set(GK_FAULT_CORRUPT, 0.0, 0, 1);
    send_all(1);
    cr_assert_eq(ends.bits, MESSAGES);
    end();
}

Test(net_fault, doubles_partitions_and_heals)
{
    begin();
    set(GK_FAULT_DUPLICATE, 0.5, 0, 1);
    send_all(0);
    cr_assert_gt(ends.passed[0], MESSAGES * 14 / 10);
    cr_assert_lt(ends.passed[0], MESSAGES * 16 / 10);
    ends.passed[0] = 0;
    set(GK_FAULT_PARTITION, 1.0, 0, 1);
    send_all(0);
    send_all(1);
    cr_assert_eq(ends.passed[0] + ends.passed[1], 0);
    set(GK_FAULT_KINDS, 0.0, 0, 1); /* heal: the doubling ends with it */
    send_all(0);
    cr_assert_eq(ends.passed[0], MESSAGES);
    end();
}

Test(net_fault, a_delay_is_never_short_and_keeps_the_order)
{
    begin();
    ends.amount_us = 20 * 1000;
    set(GK_FAULT_DELAY, 1.0, ends.amount_us, 1);
    ends.sent_us = gk_now_us();
    for (uint32_t i = 0; i < 100; i++) {
        send_one(0, i);
    }
    cr_assert_eq(ends.passed[0], 0);
    while (ends.passed[0] < 100) {
        uv_run(&ends.loop, UV_RUN_NOWAIT);
    }
    cr_assert_eq(ends.out_of_order, 0);
    ends.amount_us = 0;
    end();
}

Test(net_fault, what_is_not_delayed_overtakes)
{
    begin();
    set(GK_FAULT_DELAY, 0.5, 5000, 3);
    for (uint32_t i = 0; i < 200; i++) {
        send_one(0, i);
    }
    while (ends.passed[0] < 200) {
        uv_run(&ends.loop, UV_RUN_NOWAIT);
    }
    cr_assert_gt(ends.out_of_order, 0);
    end();
}

/* More than the queue holds is lost and counted; what waits goes with the object. */
Test(net_fault, the_queue_is_bounded_and_emptied)
{
    begin();
    set(GK_FAULT_DELAY, 1.0, UINT64_C(3600) * 1000 * 1000, 1);
    for (uint32_t i = 0; i < GK_FAULT_QUEUE_MESSAGES_MAX + 50; i++) {
        send_one(i % 2, i);
    }
    cr_assert_eq(gk_fault_stats(ends.fault)->overflowed, 50);
    end();

    begin();
    set(GK_FAULT_DELAY, 1.0, UINT64_C(3600) * 1000 * 1000, 1);
    for (uint32_t i = 0; i < 3; i++) {
        struct gk_buf *parts[2] = {numbered(i, GK_FAULT_QUEUE_BYTES_MAX / 2), numbered(i, 4)};

        gk_fault_message(ends.fault, GK_FAULT_OUT, 7, parts, 2);
        gk_buf_unref(parts[0]);
        gk_buf_unref(parts[1]);
    }
    cr_assert_eq(gk_fault_stats(ends.fault)->overflowed, 2, "bytes are not bounded");
    cr_assert_eq(ends.passed[0], 0);
    end();
}

Test(net_fault, the_owner_may_close_it_from_its_callback)
{
    begin();
    ends.close_next = true;
    set(GK_FAULT_DUPLICATE, 1.0, 0, 1);
    send_one(0, 1);
    cr_assert_eq(ends.passed[0], 1);
    end();

    begin();
    set(GK_FAULT_DELAY, 1.0, 1000, 1);
    send_one(0, 1);
    send_one(0, 2);
    ends.close_next = true;
    while (ends.passed[0] == 0) {
        uv_run(&ends.loop, UV_RUN_NOWAIT);
    }
    end();
    cr_assert_eq(ends.passed[0], 1);
}

Test(net_fault, commands)
{
    static const char *const bad[] = {
        "{}",
        "{\"fault\": 3}",
        "{\"fault\": \"explode\"}",
        "{\"fault\": \"drop\", \"chance\": 1.5}",
        "{\"fault\": \"drop\", \"chance\": \"1\"}",
        "{\"fault\": \"drop\", \"chance\": -0.1}",
        "{\"fault\": \"drop\", \"peer\": 5000}",
        "{\"fault\": \"delay\", \"amount_us\": -1}",
        "{\"fault\": \"delay\", \"amount_us\": 1e300}",
    };
    static const char *const names[] = {"partition", "drop",  "corrupt",
                                        "duplicate", "delay", "heal"}; /* by kind */
    struct gk_fault_command command;
    struct gk_words words;
    json_t *object;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        object = json_loads(bad[i], 0, NULL);
        cr_assert_not_null(object);
        words.text[0] = '\0';
        cr_assert_eq(gk_fault_command_read(object, &command, &words), GK_E_INVALID, "%s", bad[i]);
        cr_assert_neq(words.text[0], '\0');
        json_decref(object);
    }
    object =
        json_loads("{\"fault\": \"delay\", \"peer\": 2, \"chance\": 0.25, \"amount_us\": 50000,"
                   " \"seed\": 9}",
                   0, NULL);
    cr_assert_eq(gk_fault_command_read(object, &command, &words), GK_OK);
    json_decref(object);
    cr_assert_eq(command.kind, GK_FAULT_DELAY);
    cr_assert_eq(command.peer, 2);
    cr_assert_eq(command.amount_us, 50000);
    cr_assert_eq(command.seed, 9);
    cr_assert_float_eq(command.chance, 0.25, 1e-9);
    for (uint32_t kind = 0; kind <= GK_FAULT_KINDS; kind++) {
        object = json_pack("{s:s}", "fault", names[kind]);
        cr_assert_eq(gk_fault_command_read(object, &command, &words), GK_OK);
        cr_assert_eq(command.kind, kind);
        cr_assert_eq(command.peer, -1);
        json_decref(object);
    }
}

/* In a real socket: both directions pass it, and closing loses what waits. */
Test(net_fault, in_a_socket)
{
    const struct gk_zsock_pair pair = {.us = 1, .peer = 0};
    struct net_endpoint router = {.echo = true}, dealer = {0};
    struct gk_fault_command command = {.kind = GK_FAULT_DUPLICATE, .peer = -1, .chance = 1.0};
    void *zmq = gk_net_context();
    uv_loop_t loop;

    cr_assert_eq(uv_loop_init(&loop), 0);
    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    cr_assert_null(gk_zsock_fault(router.zsock));
    cr_assert_eq(gk_zsock_open(&(struct gk_zsock_setup){.loop = &loop,
                                                        .zmq = zmq,
                                                        .type = GK_ZSOCK_DEALER,
                                                        .address = gk_zsock_address(router.zsock),
                                                        .callbacks = &net_callbacks,
                                                        .context = &dealer,
                                                        .faults = &pair},
                               &dealer.zsock, NULL),
                 GK_OK);
    cr_assert_eq(net_send_number(dealer.zsock, 0, 1, 4000), GK_OK);
    NET_RUN_UNTIL(&loop, dealer.messages == 1);
    gk_fault_set(gk_zsock_fault(dealer.zsock), &command);
    cr_assert_eq(net_send_number(dealer.zsock, 0, 2, 4000), GK_OK);
    NET_RUN_UNTIL(&loop, dealer.messages == 5); /* two out, and two back of each */
    cr_assert_eq(router.messages, 3);
    command = (struct gk_fault_command){
        .kind = GK_FAULT_DELAY, .peer = -1, .chance = 1.0, .amount_us = UINT64_C(3600) * 1000000};
    gk_fault_set(gk_zsock_fault(dealer.zsock), &command);
    cr_assert_eq(net_send_number(dealer.zsock, 0, 3, 4000), GK_OK);
    net_close(&loop, &dealer);
    cr_assert_eq(router.messages, 3);
    net_close(&loop, &router);
    net_end(&loop, zmq);
    cr_assert_eq(atomic_load(&net_bufs_live), 0);
}
