/* Goal: what the daemons' option tables let through is judged before it is used: refused in words
 * that name the place it came from, with the right exit code, or turned into what can be used.
 * Method: the real tables are loaded from flags, and each judge is asked about good and bad values.
 */
#include "common/exit.h"
#include "common/limits.h"
#include "server/options.h"
#include "worker/options.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FLAGS_MAX = 4 };

static struct gk_server_options server;
static struct gk_worker_options worker;
static struct gk_settings_place place = {.values = &worker.settings};
static struct gk_config *config;
static struct gk_words words;
static int exit_code;

/* Up to four flags, NULL behind the last; 0 for the server's table. */
static void load(int of_worker, const char *const *flags)
{
    char *argv[FLAGS_MAX + 2] = {(char *)(uintptr_t) "test"};
    struct gk_config_args args = {.program = of_worker ? gk_worker_program() : gk_server_program(),
                                  .argc = 1,
                                  .argv = argv,
                                  .values = of_worker ? (void *)&worker : (void *)&server,
                                  .values_bytes = of_worker ? sizeof(worker) : sizeof(server)};

    for (int i = 0; i < FLAGS_MAX && flags[i]; i++) {
        argv[args.argc++] = (char *)(uintptr_t)flags[i];
    }
    gk_config_free(config);
    config = NULL;
    cr_assert_eq(gk_config_load(&args, &config, &exit_code, &words), GK_OK, "%s", words.text);
    server.config = config;
    worker.config = config;
    place.config = config;
    exit_code = -1;
    words.text[0] = 0;
}

static void clean(void)
{
    static const char *const variables[] = {"RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX",
                                            "OMPI_COMM_WORLD_RANK"};

    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        unsetenv(variables[i]);
    }
}

static void drop(void)
{
    gk_config_free(config);
    config = NULL;
}

TestSuite(daemon_options, .init = clean, .fini = drop);

static bool has_ipv6_loopback(void)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool has = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0;

    if (fd >= 0) {
        (void)close(fd);
    }
    return has;
}

/* Numbers need neither a resolver nor an interface. */
Test(daemon_options, where_to_bind)
{
    static const struct {
        const char *bind, *bound;
        bool local;
    } cases[] = {
        {"tcp://127.0.0.1:*", "tcp://127.0.0.1:*", true},
        {"tcp://127.9.9.9:5600", "tcp://127.9.9.9:5600", true},
        {"tcp://[::1]:*", "tcp://[::1]:*", true},
        {"tcp://[0:0:0:0:0:0:0:1]:7", "tcp://[::1]:7", true},
        {"tcp://[::ffff:127.0.0.1]:*", "tcp://[::ffff:127.0.0.1]:*", true},
        {"tcp://localhost:*", NULL, true},
        {"tcp://*:5600", "tcp://0.0.0.0:5600", false},
        {"tcp://0.0.0.0:*", "tcp://0.0.0.0:*", false},
        {"tcp://[::]:*", "tcp://[::]:*", false},
        {"tcp://192.0.2.1:*", "tcp://192.0.2.1:*", false},
        {"tcp://[2001:db8::1]:*", "tcp://[2001:db8::1]:*", false},
        {"tcp://[::ffff:192.0.2.1]:*", "tcp://[::ffff:192.0.2.1]:*", false},
    };
    char address[GK_SERVER_ADDRESS_BYTES];
    bool local;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *flags[] = {"--bind", cases[i].bind, NULL, NULL};

        load(0, flags);
        if (!cases[i].local) {
            cr_expect_eq(gk_server_options_address(&server, address, &local, &exit_code, &words),
                         GK_E_CONFIG, "%s", cases[i].bind);
            cr_expect_eq(exit_code, GK_EXIT_CONFIG);
            cr_expect(strstr(words.text, "--insecure"), "%s", words.text);
            flags[2] = "--insecure";
            load(0, flags);
        }
        cr_assert_eq(gk_server_options_address(&server, address, &local, &exit_code, &words), GK_OK,
                     "%s", words.text);
        cr_expect_eq(local, cases[i].local, "%s", cases[i].bind);
        if (cases[i].bound) {
            cr_expect_str_eq(address, cases[i].bound);
        } else {
            cr_expect(strcmp(address, "tcp://127.0.0.1:*") == 0 ||
                          strcmp(address, "tcp://[::1]:*") == 0,
                      "%s", address);
        }
    }
    if (!has_ipv6_loopback()) {
        (void)fprintf(stderr, "this machine has no ::1: nothing was bound to it here\n");
    }
}

Test(daemon_options, where_not_to_bind)
{
    static const struct {
        const char *bind, *word;
        int exit;
    } cases[] = {
        {"nonsense", "tcp://", 64},
        {"", "tcp://", 64},
        {"tcp://127.0.0.1", "port", 64},
        {"tcp://127.0.0.1:99999999", "port", 64},
        {"tcp://127.0.0.1:65536", "port", 64},
        {"tcp://:5600", "host", 64},
        {"tcp://::1:5600", "brackets", 64},
        {"tcp://[::1:5600", "brackets", 64},
        {"tcp://[127.0.0.1]:5600", "IPv6", 64},
        {"tcp://[::g]:5600", "IPv6", 64},
        {"tcp://[localhost]:5600", "IPv6", 64},
        {"tcp://no.such.host.invalid:5600", "no.such.host.invalid", 78},
    };
    char address[GK_SERVER_ADDRESS_BYTES];
    bool local;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *flags[] = {"--bind", cases[i].bind, "--insecure", NULL};

        load(0, flags);
        cr_expect_eq(gk_server_options_address(&server, address, &local, &exit_code, &words),
                     GK_E_CONFIG, "%s", cases[i].bind);
        cr_expect_eq(exit_code, cases[i].exit, "%s: %d", cases[i].bind, exit_code);
        cr_expect(strncmp(words.text, "--bind: ", 8) == 0 && strstr(words.text, cases[i].word),
                  "%s", words.text);
    }
}

Test(daemon_options, what_the_launcher_is_told)
{
    static const char *const cases[][2] = {
        {"tcp://127.0.0.1:40123", "tcp://127.0.0.1:40123"},
        {"tcp://[::1]:40123", "tcp://[::1]:40123"},
        {"tcp://0.0.0.0:40123", "tcp://127.0.0.1:40123"},
        {"tcp://[::]:40123", "tcp://[::1]:40123"},
        {"tcp://10.0.0.0:1", "tcp://10.0.0.0:1"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char address[GK_SERVER_ADDRESS_BYTES];

        gk_server_options_endpoint(cases[i][0], address);
        cr_expect_str_eq(address, cases[i][1]);
    }
}

Test(daemon_options, job_and_shard)
{
    char name[GK_JOB_NAME_BYTES + 1] = "";
    const char *flags[] = {"--job", name, NULL, NULL};

    memset(name, 'x', GK_JOB_NAME_BYTES - 1);
    for (int i = 0; i < 3; i++) { /* the longest, one more, none */
        name[GK_JOB_NAME_BYTES - 1] = i == 1 ? 'x' : 0;
        name[0] = i == 2 ? 0 : 'x';
        load(0, flags);
        cr_expect_eq(gk_server_options_check(&server, &exit_code, &words),
                     i == 0 ? GK_OK : GK_E_CONFIG);
        cr_expect_eq(exit_code, i == 0 ? -1 : GK_EXIT_USAGE);
        load(1, flags);
        cr_expect_eq(gk_settings_check(&place, &exit_code, &words), i == 0 ? GK_OK : GK_E_CONFIG);
        cr_expect_eq(exit_code, i == 0 ? -1 : GK_EXIT_USAGE);
        cr_expect(i == 0 || strncmp(words.text, "--job: ", 7) == 0, "%s", words.text);
    }
    load(0, (const char *const[]){"--shard=3", "--servers=2", NULL, NULL});
    cr_expect_eq(gk_server_options_check(&server, &exit_code, &words), GK_E_CONFIG);
    cr_expect(exit_code == GK_EXIT_USAGE && strncmp(words.text, "--shard: ", 9) == 0, "%s",
              words.text);
}

Test(daemon_options, rank)
{
    static const struct {
        const char *rank, *workers;
        uint32_t expected;
        bool good;
    } cases[] = {
        {NULL, "--workers=1", 0, true},
        {NULL, "--workers=2", 0, false},
        {"--rank=1", "--workers=2", 1, true},
        {"--rank=any", "--workers=2", GK_RANK_ANY, true},
        {"--rank=2", "--workers=2", 0, false},
        {"--rank=-1", "--workers=2", 0, false},
        {"--rank= 1", "--workers=2", 0, false},
        {"--rank=1x", "--workers=2", 0, false},
        {"--rank=", "--workers=2", 0, false},
        {"--rank=18446744073709551616", "--workers=2", 0, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *flags[] = {cases[i].workers, cases[i].rank, NULL, NULL};
        uint32_t rank = 77;

        load(1, flags);
        cr_expect_eq(gk_settings_rank(&place, &rank, &exit_code, &words),
                     cases[i].good ? GK_OK : GK_E_CONFIG, "%zu", i);
        cr_expect_eq(rank, cases[i].good ? cases[i].expected : 77, "%zu", i);
        cr_expect(cases[i].good || strncmp(words.text, "--rank: ", 8) == 0, "%s", words.text);
    }
    setenv("SLURM_PROCID", "7", 1);
    load(1, (const char *const[]){"--workers=2", NULL, NULL, NULL});
    cr_expect_eq(gk_settings_rank(&place, &(uint32_t){0}, &exit_code, &words), GK_E_CONFIG);
    cr_expect(strncmp(words.text, "SLURM_PROCID (rank): '7'", 24) == 0, "%s", words.text);
}

Test(daemon_options, servers)
{
    static const char *const bad[] = {
        "",
        ",",
        "nonsense",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:99999999",
        "tcp://127.0.0.1:0",
        "tcp://*:5600",
        "tcp://a:1,tcp://b:1,tcp://a:1",
    };
    struct gk_addresses addresses = {.count = 0};
    char many[(GK_SERVERS_MAX + 1) * 16] = "";

    load(1, (const char *const[]){"--servers", "tcp://a:1, tcp://[::1]:2,tcp://10.0.0.1:3", NULL,
                                  NULL});
    cr_assert_eq(gk_settings_addresses(&place, &addresses, &exit_code, &words), GK_OK);
    cr_assert_eq(addresses.count, 3);
    cr_expect_str_eq(addresses.list[0], "tcp://a:1");
    cr_expect_str_eq(addresses.list[1], "tcp://[::1]:2");
    cr_expect_str_eq(addresses.list[2], "tcp://10.0.0.1:3");
    gk_addresses_fini(&addresses);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        load(1, (const char *const[]){"--servers", bad[i], NULL, NULL});
        cr_expect_eq(gk_settings_addresses(&place, &addresses, &exit_code, &words), GK_E_CONFIG,
                     "%s", bad[i]);
        cr_expect(exit_code == GK_EXIT_USAGE && strncmp(words.text, "--servers: ", 11) == 0, "%s",
                  words.text);
        cr_expect(!addresses.text && !addresses.list && addresses.count == 0);
    }
    for (int i = 0; i <= GK_SERVERS_MAX; i++) {
        size_t used = strlen(many);

        (void)snprintf(many + used, sizeof(many) - used, "tcp://a:%d,", i + 1);
    }
    load(1, (const char *const[]){"--servers", many, NULL, NULL});
    cr_expect_eq(gk_settings_addresses(&place, &addresses, &exit_code, &words), GK_E_CONFIG);
    cr_expect(strstr(words.text, "256"), "%s", words.text);
}
