#include "server/options.h"

#include "common/limits.h"
#include "common/option_rows.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define AT(field) offsetof(struct gk_server_options, field)

static const struct gk_option options[] = {
    {"bind", GK_OPTION_STRING, AT(bind), "tcp://127.0.0.1:5600", NULL, 0, 0, "ADDRESS",
     "Where to listen; port * lets the system choose one.", NULL, "Network"},
    {"insecure", GK_OPTION_BOOL, AT(insecure), "false", NULL, 0, 0, NULL,
     "Listen beyond loopback although anybody who reaches the port can then join the job.", NULL,
     "Network"},
    {"job", GK_OPTION_STRING, AT(job), "gkps", NULL, 0, 0, "NAME",
     "Name of the job: workers of another one are refused.", NULL, "Cluster"},
    {"shard", GK_OPTION_UINT, AT(shard), "0", NULL, 0, GK_SERVERS_MAX - 1, "S",
     "Number of this server, 0 to servers - 1.", NULL, "Cluster"},
    {"servers", GK_OPTION_UINT, AT(servers), "1", NULL, 1, GK_SERVERS_MAX, "N",
     "Number of servers of the job.", NULL, "Cluster"},
    {"workers", GK_OPTION_UINT, AT(workers), "1", NULL, 1, GK_WORKERS_MAX, "N",
     "Number of workers of the job.", NULL, "Cluster"},
    {"deadline", GK_OPTION_UINT, AT(deadline_s), "120", NULL, 0, 1e6, "SECONDS",
     "How long to wait for workers and model at the start before giving up with exit code 69; 0: "
     "for ever.",
     NULL, "Cluster"},
    {"memory", GK_OPTION_BYTES, AT(memory_bytes), NULL, NULL, 0, 0, "BYTES",
     "Budget for parameters, optimizer and pushes; unset: half of the machine's or the container's "
     "memory.",
     NULL, "Resources"},
    GK_OPTION_CPU(AT(cpu)),
    GK_OPTION_LOG_FORMAT(AT(log_format), "Log"),
    GK_OPTION_LOG_LEVEL(AT(log_level), "info", "Log"),
    GK_OPTION_LAUNCHER_FD(AT(launcher_fd)),
};

const struct gk_program *gk_server_program(void)
{
    static const struct gk_program program = {
        .name = "gkps-server",
        .summary = "Serve one shard of a model: sum the workers' pushes, run the optimizer, serve "
                   "the parameters.",
        .usage = "[options]",
        .notes =
            "Exit codes: 0 done, 64 wrong flags, 65 the sum of the gradients is not finite, 69 "
            "workers are\n"
            "missing at the deadline or the launcher is gone, 70 internal, 75 the port is in use,\n"
            "78 configuration, 130 and 143 stopped by a signal.",
        .options = options,
        .options_count = sizeof(options) / sizeof(options[0]),
        .positional_max = 0,
    };

    return &program;
}

/* "tcp://HOST:PORT" into its halves. */
static bool split(const char *address, char *ret_host, size_t room, const char **ret_port)
{
    const char *host = address + strlen("tcp://");
    const char *colon;
    size_t length;

    if (strncmp(address, "tcp://", strlen("tcp://")) != 0) {
        return false;
    }
    colon = strrchr(host, ':');
    if (!colon || colon == host || !colon[1] || strchr(host, '[')) {
        return false;
    }
    length = (size_t)(colon - host);
    if (length >= room || strlen(colon + 1) > 5 ||
        (strcmp(colon + 1, "*") != 0 && strspn(colon + 1, "0123456789") != strlen(colon + 1))) {
        return false;
    }
    memcpy(ret_host, host, length);
    ret_host[length] = '\0';
    *ret_port = colon + 1;
    return true;
}

/* The first IPv4 address of the name; local only if all of them are. */
static bool resolve(const char *host, struct in_addr *ret_address, bool *ret_local)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    bool local = true;

    if (strcmp(host, "*") == 0) {
        ret_address->s_addr = htonl(INADDR_ANY);
        *ret_local = false;
        return true;
    }
    if (getaddrinfo(host, NULL, &hints, &list) != 0 || !list) {
        return false;
    }
    for (const struct addrinfo *info = list; info; info = info->ai_next) {
        struct sockaddr_in in;

        memcpy(&in, info->ai_addr, sizeof(in));
        if (info == list) {
            *ret_address = in.sin_addr;
        }
        local = local && ntohl(in.sin_addr.s_addr) >> 24 == 127;
    }
    *ret_local = local;
    freeaddrinfo(list);
    return true;
}

enum gk_err gk_server_options_check(const struct gk_server_options *values, struct gk_words *words)
{
    if (values->shard >= values->servers) {
        gk_words_set(words, "--shard %llu: must be below --servers %llu",
                     (unsigned long long)values->shard, (unsigned long long)values->servers);
        return GK_E_CONFIG;
    }
    if (!*values->job || strlen(values->job) >= GK_JOB_NAME_BYTES) {
        gk_words_set(words, "--job: 1 to %d bytes", GK_JOB_NAME_BYTES - 1);
        return GK_E_CONFIG;
    }
    return GK_OK;
}

enum gk_err gk_server_options_address(const struct gk_server_options *values, char *ret_address,
                                      bool *ret_local, struct gk_words *words)
{
    char host[GK_SERVER_ADDRESS_BYTES - 32], text[INET_ADDRSTRLEN];
    struct in_addr address;
    const char *port;
    bool local;

    if (!split(values->bind, host, sizeof(host), &port)) {
        gk_words_set(words,
                     "--bind '%s': must be tcp://HOST:PORT with a name or an IPv4 address, and * "
                     "or a number",
                     values->bind);
        return GK_E_CONFIG;
    }
    if (!resolve(host, &address, &local)) {
        gk_words_set(words, "--bind '%s': cannot resolve '%s'", values->bind, host);
        return GK_E_CONFIG;
    }
    if (!local && !values->insecure) {
        gk_words_set(
            words,
            "--bind '%s' is reachable from other machines, and connections are not encrypted or "
            "authenticated; add --insecure if the network is trusted",
            values->bind);
        return GK_E_CONFIG;
    }
    if (!inet_ntop(AF_INET, &address, text, sizeof(text))) {
        gk_words_set(words, "--bind '%s': no IPv4 address", values->bind);
        return GK_E_CONFIG;
    }
    (void)snprintf(ret_address, GK_SERVER_ADDRESS_BYTES, "tcp://%s:%s", text, port);
    *ret_local = local;
    return GK_OK;
}

/* A container's limit; UINT64_MAX: none. */
static uint64_t container_bytes(void)
{
    static const char *const files[] = {"/sys/fs/cgroup/memory.max",
                                        "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    uint64_t least = UINT64_MAX;

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        FILE *file = fopen(files[i], "re");
        char text[32];

        if (!file) {
            continue;
        }
        if (fgets(text, sizeof(text), file) && text[0] >= '0' && text[0] <= '9') {
            uint64_t bytes = strtoull(text, NULL, 10);

            least = bytes < least ? bytes : least;
        }
        (void)fclose(file); /* only read */
    }
    return least;
}

uint64_t gk_server_options_memory(const struct gk_server_options *values)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t machine = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
    uint64_t container = container_bytes();
    uint64_t least = machine < container ? machine : container;

    if (values->memory_bytes > 0) {
        return values->memory_bytes;
    }
    return least == UINT64_MAX ? 0 : least / 2;
}
