/* Goal: a process that has too few file descriptors is told so in words before a library aborts,
 * and a socket lets nobody take the last ones. Method: limits of the test's own process, from none
 * left to enough. */
#include "common/net/process.h"

#include "common/net/signals.h"
#include "tests/unit/net_support.h"

#include <criterion/criterion.h>

#include <fcntl.h>
#include <sys/resource.h>

enum { HIGH = 500 }; /* descriptors beyond every limit that is set here */

static uv_loop_t loop;

static void limit_files(rlim_t soft, rlim_t hard)
{
    const struct rlimit limit = {.rlim_cur = soft, .rlim_max = hard};

    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void on_signal(void *context, int number)
{
    (void)context;
    (void)number;
}

static rlim_t soft_limit(void)
{
    struct rlimit limit;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit.rlim_cur;
}

static rlim_t hard_limit(void)
{
    struct rlimit limit;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit.rlim_max;
}

/* How many descriptors below HIGH are open. */
static rlim_t open_files(void)
{
    rlim_t count = 0;

    for (int fd = 0; fd < HIGH; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

Test(net_process, soft_limit_is_raised)
{
    rlim_t hard = hard_limit();
    struct gk_words words;
    rlim_t used = open_files();

    cr_assert_gt(hard, used + 200);
    limit_files(used + 100, hard);
    cr_expect_eq(gk_process_files(90, &words), GK_OK);
    cr_expect_eq(soft_limit(), used + 100, "enough already");
    cr_expect_eq(gk_process_files(150, &words), GK_OK);
    cr_expect_geq(soft_limit(), used + 150);
    cr_expect_leq(soft_limit(), used + 200);
    cr_expect_eq(open_files(), used, "all given back");
    cr_expect_eq(gk_process_files(0, &words), GK_OK);
}

Test(net_process, hard_limit_is_told)
{
    struct gk_words words = {{0}};
    rlim_t used = open_files();
    char needed[32], allowed[32];

    limit_files(used + 10, used + 20);
    (void)snprintf(needed, sizeof(needed), " %u are needed", (unsigned)used + 50);
    (void)snprintf(allowed, sizeof(allowed), "limit is %u;", (unsigned)used + 20);
    cr_expect_eq(gk_process_files(50, &words), GK_E_LIMIT);
    cr_expect(strstr(words.text, "ulimit"), "%s", words.text);
    cr_expect(strstr(words.text, needed), "%s", words.text);
    cr_expect(strstr(words.text, allowed), "%s", words.text);
    cr_expect_eq(gk_process_files(20, &words), GK_OK);
    cr_expect(gk_process_files_free(20));
    cr_expect_not(gk_process_files_free(21));
}

/* Whatever the number of descriptors that is left: opened, or an error in words; never an abort. */
Test(net_process, sockets_with_few_files)
{
    enum { FEW = 34 };
    int opened = 0, refused = 0;

    for (rlim_t few = 0; few < FEW; few++) {
        struct net_endpoint at = {0};
        struct gk_signals *signals = NULL;
        struct gk_words words = {{0}};
        rlim_t hard = hard_limit();
        enum gk_err err;
        void *zmq;

        cr_assert_eq(uv_loop_init(&loop), 0);
        limit_files(open_files() + few, hard);
        err = gk_signals_open(&loop, on_signal, NULL, &signals, &words);
        cr_expect(err == GK_OK || err == GK_E_LIMIT, "%s", words.text);
        zmq = gk_net_context();
        err = zmq ? net_try_open(&loop, zmq, few % 2 ? GK_ZSOCK_ROUTER : GK_ZSOCK_DEALER,
                                 few % 2 ? "tcp://127.0.0.1:*" : "tcp://127.0.0.1:1", &at)
                  : GK_E_LIMIT;
        cr_expect(err == GK_OK || err == GK_E_LIMIT);
        opened += err == GK_OK;
        refused += err == GK_E_LIMIT;
        limit_files(hard, hard);
        gk_signals_close(signals);
        if (at.zsock) {
            net_close(&loop, &at);
        }
        net_end(&loop, zmq);
    }
    cr_expect_gt(opened, 5);
    cr_expect_gt(refused, 5);
}

/* Strangers that stay take all descriptors but those that are kept; a peer that was there before
 * works on, and when they have gone others come in. */
Test(net_process, strangers_take_no_last_file)
{
    enum { STRANGERS = 80, LEFT = 40 };
    void *zmq = gk_net_context();
    struct net_endpoint router = {.echo = true}, dealer = {0};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    rlim_t hard = hard_limit();
    int fds[STRANGERS];
    uint64_t turned_away;

    cr_assert_not_null(zmq);
    cr_assert_eq(uv_loop_init(&loop), 0);
    limit_files(hard, hard);
    for (int i = 0; i < STRANGERS; i++) { /* with numbers beyond the limit to come */
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        fds[i] = fcntl(fd, F_DUPFD, HIGH);
        cr_assert_geq(fds[i], HIGH);
        close(fd);
    }
    limit_files(open_files() + LEFT, hard);
    net_open(&loop, zmq, GK_ZSOCK_ROUTER, "tcp://127.0.0.1:*", &router);
    net_open(&loop, zmq, GK_ZSOCK_DEALER, gk_zsock_address(router.zsock), &dealer);
    NET_RUN_UNTIL(&loop, dealer.up == 1);
    to.sin_port = htons((uint16_t)atoi(strrchr(gk_zsock_address(router.zsock), ':') + 1));
    for (int i = 0; i < STRANGERS; i++) {
        cr_assert_eq(connect(fds[i], (struct sockaddr *)&to, sizeof(to)), 0);
    }
    NET_RUN_UNTIL(&loop, gk_zsock_stats(router.zsock)->turned_away >= STRANGERS - LEFT);
    turned_away = gk_zsock_stats(router.zsock)->turned_away;
    cr_expect_geq(router.full, turned_away);
    cr_expect_lt(turned_away, STRANGERS);
    cr_expect_eq(net_send_number(dealer.zsock, 0, 1, 4), GK_OK);
    NET_RUN_UNTIL(&loop, dealer.messages == 1);
    for (int i = 0; i < STRANGERS; i++) {
        close(fds[i]);
    }
    NET_RUN_UNTIL(&loop, gk_process_files_free(24));
    cr_expect_eq(dealer.down, 0);
    limit_files(hard, hard);
    net_close(&loop, &dealer);
    net_close(&loop, &router);
    net_end(&loop, zmq);
}
