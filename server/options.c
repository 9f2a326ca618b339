#include "server/options.h"

#include "common/exit.h"
#include "common/limits.h"
#include "common/net/zsock.h"
#include "common/option_rows.h"
#include "proto/msg.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HOST_BYTES = 96 }; /* an IPv6 address with its zone */

#define AT(field) offsetof(struct gk_server_options, field)

static const struct gk_option options[] = {
    {"bind", GK_OPTION_STRING, AT(bind), "tcp://127.0.0.1:5600", NULL, 0, 0, "ADDRESS",
     "Where to listen: tcp://HOST:PORT; port * lets the system choose one.", NULL, "Network"},
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
    {"state-dir", GK_OPTION_STRING, AT(state_dir), NULL, NULL, 0, 0, "DIR",
     "Keep log and snapshots there, and go on from there after a restart; unset: a server that "
     "dies "
     "loses its shard.",
     NULL, "State"},
    {"sync", GK_OPTION_CHOICE, AT(sync), "always", "always|interval|never", 0, 0, "POLICY",
     "When log records are synced: before their version is served, in the background, or never "
     "(safe against kill -9 only).",
     NULL, "State"},
    {"fold-every", GK_OPTION_UINT, AT(fold_every), "50", NULL, 1, 1e6, "VERSIONS",
     "Versions behind the last snapshot at which the next one is made; bounds the time of a "
     "restart.",
     NULL, "State"},
    {"log-bytes", GK_OPTION_BYTES, AT(log_bytes), "16G", NULL, 64 * 1024, 1e15, "BYTES",
     "Limit of all log files together; whenever a quarter of it is full a snapshot is made, "
     "whatever --fold-every says.",
     NULL, "State"},
    {"keep-versions", GK_OPTION_UINT, AT(keep_versions), "0", NULL, 0, 1e9, "VERSIONS",
     "How far back gkps rewind must be able to go.", NULL, "State"},
    {"memory", GK_OPTION_BYTES, AT(memory_bytes), NULL, NULL, 0, 0, "BYTES",
     "Budget for parameters, optimizer and pushes; unset: half of the machine's or the container's "
     "memory.",
     NULL, "Resources"},
    GK_OPTION_CPU(AT(cpu)),
    GK_OPTION_LOG_FORMAT(AT(log_format), "Log"),
    GK_OPTION_LOG_LEVEL(AT(log_level), "info", "Log"),
    GK_OPTION_LAUNCHER_FD(AT(launcher_fd)),
    GK_OPTION_ALLOW_FAULTS(AT(allow_faults)),
};

const struct gk_program *gk_server_program(void)
{
    static const struct gk_program program = {
        .name = "gkps-server",
        .summary = "Serve one shard of a model: sum the workers' pushes, run the optimizer, serve "
                   "the parameters.",
        .usage = "[options]",
        .notes =
            "Exit codes: 0 done, 64 wrong flags, 65 the training has diverged, 69 "
            "workers are\n"
            "missing at the deadline or the launcher is gone, 70 internal or no memory, 75 the "
            "port or\n"
            "the state directory is in use, or the disk is full at the start or fails, 78 "
            "configuration\n"
            "or state (also: --bind names a host that does not resolve, or one beyond loopback "
            "without\n"
            "--insecure), 130 and 143 stopped by a signal.",
        .options = options,
        .options_count = sizeof(options) / sizeof(options[0]),
        .positional_max = 0,
    };

    return &program;
}

enum gk_err gk_server_options_check(const struct gk_server_options *values, int *ret_exit,
                                    struct gk_words *words)
{
    if (values->shard >= values->servers) {
        gk_words_set(words, "%" PRIu64 " is not below --servers %" PRIu64, values->shard,
                     values->servers);
        *ret_exit = gk_config_blame(values->config, "shard", words);
        return GK_E_CONFIG;
    }
    if (gk_job_name_check(values->job, words)) {
        *ret_exit = gk_config_blame(values->config, "job", words);
        return GK_E_CONFIG;
    }
    return GK_OK;
}

/* The halves of an address that gk_zsock_address_check() has passed; the host without brackets. */
static const char *split(const char *address, char *ret_host, bool *ret_bracketed)
{
    const char *host = address + strlen("tcp://");
    const char *colon = strrchr(host, ':');
    size_t length = (size_t)(colon - host);

    *ret_bracketed = host[0] == '[';
    if (*ret_bracketed) {
        host++;
        length -= 2;
    }
    memcpy(ret_host, host, length);
    ret_host[length] = '\0';
    return colon + 1;
}

static bool is_loopback(const struct addrinfo *info)
{
    struct sockaddr_in in;
    struct sockaddr_in6 in6;

    if (info->ai_family == AF_INET) {
        memcpy(&in, info->ai_addr, sizeof(in));
        return ntohl(in.sin_addr.s_addr) >> 24 == 127;
    }
    memcpy(&in6, info->ai_addr, sizeof(in6));
    return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr) && in6.sin6_addr.s6_addr[12] == 127);
}

/* As a number: of the IPv4 addresses the first, where there is none of the others, because that is
 * the order in which our sockets connect to a name.  Local only if all of them are.  0, or an error
 * of getaddrinfo(). */
static int resolve(const char *host, bool bracketed, char *ret_number, bool *ret_local)
{
    struct addrinfo hints = {.ai_family = bracketed ? AF_INET6 : AF_UNSPEC,
                             .ai_flags = bracketed ? AI_NUMERICHOST : 0,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    const struct addrinfo *chosen = NULL;
    bool local = true;
    int error = getaddrinfo(host, NULL, &hints, &list);

    if (error != 0) {
        return error;
    }
    for (const struct addrinfo *info = list; info; info = info->ai_next) {
        if (info->ai_family != AF_INET && info->ai_family != AF_INET6) {
            continue;
        }
        if (!chosen || (chosen->ai_family == AF_INET6 && info->ai_family == AF_INET)) {
            chosen = info;
        }
        local = local && is_loopback(info);
    }
    error = chosen ? getnameinfo(chosen->ai_addr, chosen->ai_addrlen, ret_number, HOST_BYTES, NULL,
                                 0, NI_NUMERICHOST)
                   : EAI_NONAME;
    freeaddrinfo(list);
    *ret_local = local;
    return error;
}

static int unresolved(const struct gk_server_options *values, const char *host, bool bracketed,
                      int error, struct gk_words *words)
{
    if (bracketed) {
        gk_words_set(words, "'%s': [%s] is no IPv6 address", values->bind, host);
        return gk_config_blame(values->config, "bind", words);
    }
    gk_words_set(words, "'%s': the name '%s' has no address: %s", values->bind, host,
                 gai_strerror(error));
    (void)gk_config_blame(values->config, "bind", words); /* well written, but not of this world */
    return error == EAI_MEMORY ? GK_EXIT_INTERNAL : GK_EXIT_CONFIG;
}

enum gk_err gk_server_options_address(const struct gk_server_options *values, char *ret_address,
                                      bool *ret_local, int *ret_exit, struct gk_words *words)
{
    char host[GK_ZSOCK_ADDRESS_BYTES], number[HOST_BYTES] = "0.0.0.0";
    const char *port;
    bool bracketed, ipv6, local = false;
    int error = 0;

    if (gk_zsock_address_check(values->bind, true, words)) {
        *ret_exit = gk_config_blame(values->config, "bind", words);
        return GK_E_CONFIG;
    }
    port = split(values->bind, host, &bracketed);
    if (strcmp(host, "*") != 0) {
        error = resolve(host, bracketed, number, &local);
    }
    if (error != 0) {
        *ret_exit = unresolved(values, host, bracketed, error, words);
        return GK_E_CONFIG;
    }
    if (!local && !values->insecure) {
        gk_words_set(words,
                     "'%s' is reachable from other machines, and connections are not encrypted or "
                     "authenticated; add --insecure if the network is trusted",
                     values->bind);
        (void)gk_config_blame(values->config, "bind", words);
        *ret_exit = GK_EXIT_CONFIG;
        return GK_E_CONFIG;
    }
    ipv6 = strchr(number, ':') != NULL;
    (void)snprintf(ret_address, GK_SERVER_ADDRESS_BYTES, "tcp://%s%s%s:%s", ipv6 ? "[" : "", number,
                   ipv6 ? "]" : "", port);
    *ret_local = local;
    return GK_OK;
}

void gk_server_options_endpoint(const char *bound, char *ret_address)
{
    static const struct {
        const char *all, *own;
    } hosts[] = {{"tcp://0.0.0.0:", "tcp://127.0.0.1:"}, {"tcp://[::]:", "tcp://[::1]:"}};

    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        size_t length = strlen(hosts[i].all);

        if (strncmp(bound, hosts[i].all, length) == 0) {
            (void)snprintf(ret_address, GK_SERVER_ADDRESS_BYTES, "%s%s", hosts[i].own,
                           bound + length);
            return;
        }
    }
    (void)snprintf(ret_address, GK_SERVER_ADDRESS_BYTES, "%s", bound);
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
