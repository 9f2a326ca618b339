/* Goal: what stands at an address is told apart, in bounded time. Method: listeners of ours on
 * ports of the system's choice; a child process plays the ones that must answer. */
#include "tool/probe.h"

#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Bound; the address in words. */
static int bound(char *ret_address)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(in);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    cr_assert_eq(bind(fd, (struct sockaddr *)&in, sizeof(in)), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&in, &size), 0);
    sprintf(ret_address, "tcp://127.0.0.1:%u", ntohs(in.sin_port));
    return fd;
}

/* What a listener that says `text` and hangs up is taken for. */
static enum gk_probe_result taken_for(const char *text, size_t length)
{
    enum gk_probe_result result = GK_PROBE_UNKNOWN;
    struct gk_probe probe = {.result = &result};
    char address[64], byte;
    int fd = bound(address);
    pid_t pid;

    cr_assert_eq(listen(fd, 4), 0);
    pid = fork();
    if (pid == 0) {
        int peer = accept(fd, NULL, NULL);

        if (write(peer, text, length) != (ssize_t)length) {
            _exit(1);
        }
        shutdown(peer, SHUT_WR);
        while (read(peer, &byte, 1) > 0) { /* all of it, or the end would be a reset */
        }
        _exit(0);
    }
    probe.address = address;
    gk_probe(&probe, 1, 10000);
    close(fd);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    return result;
}

Test(probe, answers_are_told_apart)
{
    cr_assert_eq(taken_for("SSH-2.0-x\r\n", 11), GK_PROBE_OTHER);
    cr_assert_eq(taken_for("\xff\0\0\0\0\0\0\0\1\x7f", 10), GK_PROBE_ZMTP);
    cr_assert_eq(taken_for("", 0), GK_PROBE_CLOSED);
}

Test(probe, nobody_and_silence)
{
    enum gk_probe_result results[4] = {GK_PROBE_UNKNOWN};
    char refused[64], silent[64];
    int a = bound(refused), b = bound(silent);
    const struct gk_probe probes[] = {{refused, &results[0]},
                                      {silent, &results[1]},
                                      {"tcp://no.such.host.invalid:1", &results[2]},
                                      {"tcp://[::1", &results[3]}};

    cr_assert_eq(listen(b, 4), 0);
    gk_probe(probes, 4, 100);
    cr_assert_eq(results[0], GK_PROBE_REFUSED);
    cr_assert_eq(results[1], GK_PROBE_SILENT);
    cr_assert_eq(results[2], GK_PROBE_NAME);
    cr_assert_neq(results[3], GK_PROBE_ZMTP);
    close(a);
    close(b);
}

Test(probe, every_result_has_words)
{
    for (int i = GK_PROBE_UNKNOWN; i <= GK_PROBE_OTHER; i++) {
        cr_assert_gt(strlen(gk_probe_words((enum gk_probe_result)i)), 10);
    }
}
