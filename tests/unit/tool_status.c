/* Goal: `gkps status` asks real sockets, shows what comes, and gives up on what does not come, in
 * time and by name. Method: a ROUTER of ours on a port of the system's choice answers (or does
 * not); the command runs in a child process. */
#include "common/exit.h"
#include "common/net/zsock.h"
#include "proto/msg.h"
#include "tool/commands.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <uv.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char sample[] =
    "{\"job\":\"j1\",\"job_uid\":\"01\",\"shard\":0,\"servers\":1,\"workers\":1,"
    "\"state\":\"running\",\"version\":3,\"model_hash\":\"00000000000000aa\","
    "\"hash_version\":3,\"ledger\":{\"pushes\":3,\"applied\":3}}";

struct command {
    pid_t pid;
    int tell, hear;
};

struct server {
    void *zmq;
    uv_loop_t loop;
    struct gk_zsock *zsock;
    const char *json; /* NULL: no answer at all */
    bool silent_once; /* loses the first request */
    uint32_t requests;
    uint32_t enough; /* requests after which the command is interrupted; 0: never */
    pid_t command;
    uv_pipe_t pipe; /* output of the command; its end stops the loop */
    char out[16384];
    size_t used;
};

static void on_message(void *context, uint64_t route, struct gk_buf *const *parts,
                       uint32_t parts_count)
{
    struct server *server = context;
    struct gk_buf *answer[GK_PARTS_MAX];
    struct gk_words words;
    struct gk_msg msg;
    uint32_t count;

    memset(&msg, 0, sizeof(msg));
    cr_assert_eq(gk_msg_from_wire(parts, parts_count, &msg, &words), GK_OK, "%s", words.text);
    cr_assert_eq(msg.h.kind, GK_KIND_STATUS);
    cr_assert_eq(msg.h.session, 0);
    server->requests++;
    if (!server->json || (server->silent_once && server->requests == 1)) {
        return;
    }
    struct gk_msg reply;
    memset(&reply, 0, sizeof(reply));
    reply.h.kind = GK_KIND_STATUS_OK;
    reply.h.req_id = msg.h.req_id;
    reply.h.rank = GK_RANK_ANY;
    reply.frame[0] = gk_buf_copy(server->json, strlen(server->json));
    reply.frames_count = 1;
    cr_assert_eq(gk_msg_to_wire(&reply, answer, &count), GK_OK);
    gk_zsock_send(server->zsock, route, answer, count);
    for (uint32_t i = 0; i < count; i++) {
        gk_buf_unref(answer[i]);
    }
    gk_msg_clear(&reply);
    gk_msg_clear(&msg);
    if (server->requests == server->enough) {
        kill(server->command, SIGINT);
    }
}

static void on_error(void *context, enum gk_err err, const char *words)
{
    (void)context;
    cr_assert_fail("%d %s", err, words);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct server *server = handle->data;

    (void)suggested;
    *buf =
        uv_buf_init(server->out + server->used, (unsigned)(sizeof(server->out) - 1 - server->used));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct server *server = stream->data;

    (void)buf;
    if (n < 0) {
        uv_close((uv_handle_t *)stream, NULL);
        gk_zsock_close(server->zsock, 0);
        return;
    }
    server->used += (size_t)n;
    server->out[server->used] = '\0';
}

static void open_server(struct server *server, const char *json)
{
    static const struct gk_zsock_callbacks callbacks = {.message = on_message, .error = on_error};
    struct gk_words words;

    memset(server, 0, sizeof(*server));
    server->json = json;
    server->zmq = gk_net_context();
    cr_assert_eq(uv_loop_init(&server->loop), 0);
    cr_assert_eq(gk_zsock_open(&(struct gk_zsock_setup){.loop = &server->loop,
                                                        .zmq = server->zmq,
                                                        .type = GK_ZSOCK_ROUTER,
                                                        .address = "tcp://127.0.0.1:*",
                                                        .callbacks = &callbacks,
                                                        .context = server},
                               &server->zsock, &words),
                 GK_OK, "%s", words.text);
}

static void close_server(struct server *server)
{
    cr_assert_eq(uv_loop_close(&server->loop), 0);
    gk_net_context_free(server->zmq);
}

/* Start the process that will run the command, once it is told its arguments.  Before any context
 * of ZeroMQ exists: a fork of a process with threads may find the allocator locked for ever. */
static void fork_command(struct command *ret)
{
    int tell[2], hear[2];

    cr_assert(uv_pipe(tell, 0, 0) == 0 && uv_pipe(hear, 0, 0) == 0);
    fflush(stdout);
    ret->pid = fork();
    if (ret->pid == 0) {
        char lines[512] = "";
        char *argv[] = {(char *)"gkps", (char *)"status", (char *)"--server", lines, NULL, NULL};

        close(tell[1]);
        for (size_t used = 0; read(tell[0], lines + used, 1) == 1; used++) {
        }
        argv[4] = strchr(lines, '\n') + 1; /* a flag, or "" */
        argv[4][-1] = '\0';
        dup2(hear[1], 1);
        dup2(hear[1], 2);
        int code = gk_tool_main(argv[4][0] ? 5 : 4, argv);
        fflush(stdout);
        _exit(code);
    }
    close(tell[0]);
    close(hear[1]);
    ret->tell = tell[1];
    ret->hear = hear[0];
}

/* Run `gkps status` on the addresses while the server answers; the exit code.  Output and errors
 * are in server->out. */
static int ask(struct server *server, const struct command *command, const char *addresses,
               const char *flag)
{
    char lines[512];
    int status, length = snprintf(lines, sizeof(lines), "%s\n%s", addresses, flag);

    cr_assert_eq(write(command->tell, lines, (size_t)length), length);
    close(command->tell);
    uv_pipe_init(&server->loop, &server->pipe, 0);
    server->pipe.data = server;
    uv_pipe_open(&server->pipe, command->hear);
    uv_read_start((uv_stream_t *)&server->pipe, on_alloc, on_read);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    cr_assert_eq(waitpid(command->pid, &status, 0), command->pid);
    close_server(server);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static bool said(const struct server *server, const char *words)
{
    return strstr(server->out, words) != NULL;
}

Test(status, shows_an_answer)
{
    struct command command;
    struct server server;

    fork_command(&command);
    open_server(&server, sample);
    server.silent_once = true; /* asked again */
    cr_assert_eq(ask(&server, &command, gk_zsock_address(server.zsock), ""), GK_EXIT_OK, "%s",
                 server.out);
    cr_assert_eq(server.requests, 2);
    cr_assert(said(&server,
                   "job j1 (01): 1 server, 1 worker\nmodel hash 00000000000000aa at version 3\n"),
              "%s", server.out);
}

Test(status, watch_goes_on_until_interrupted)
{
    struct command command;
    struct server server;
    const char *second;

    fork_command(&command);
    open_server(&server, sample);
    server.enough = 3;
    server.command = command.pid;
    cr_assert_eq(ask(&server, &command, gk_zsock_address(server.zsock), "--watch"), GK_EXIT_SIGINT);
    second = strstr(server.out, "\n\njob j1");
    cr_assert(strncmp(server.out, "job j1", 6) == 0 && second, "%s", server.out);
    cr_assert_null(strstr(server.out, "\x1b"));
}

Test(status, json_without_scheme)
{
    struct command command;
    struct server server;
    json_t *object;

    fork_command(&command);
    open_server(&server, sample);
    cr_assert_eq(
        ask(&server, &command, gk_zsock_address(server.zsock) + strlen("tcp://"), "--json"),
        GK_EXIT_OK);
    object = json_loads(server.out, 0, NULL);
    cr_assert(json_is_true(json_object_get(object, "whole_job")), "%s", server.out);
    json_decref(object);
}

Test(status, a_ledger_that_does_not_balance)
{
    struct command command;
    struct server server;

    fork_command(&command);
    open_server(&server, "{\"ledger\":{\"pushes\":3,\"applied\":1}}");
    cr_assert_eq(ask(&server, &command, gk_zsock_address(server.zsock), ""), GK_EXIT_INTERNAL);
    cr_assert(said(&server, "OFF BY 2"), "%s", server.out);
}

Test(status, a_full_disk_is_told)
{
    static const char full[] = "{\"job\":\"j1\",\"shard\":0,\"servers\":1,\"workers\":1,\"state\":"
                               "\"running\",\"version\":3,"
                               "\"state_dir\":{\"directory\":\"/data/s0\",\"disk_full_s\":12.0},"
                               "\"ledger\":{\"pushes\":3,\"applied\":3}}";
    static const char *const answers[] = {full, sample};

    for (size_t i = 0; i < 2; i++) {
        struct server server;
        struct command command;

        fork_command(&command);
        open_server(&server, answers[i]);
        cr_assert_eq(ask(&server, &command, gk_zsock_address(server.zsock), ""), GK_EXIT_OK);
        cr_assert_eq(said(&server, "shard 0: the disk of /data/s0 has been full for 12.0 s: make"),
                     i == 0, "%s", server.out);
    }
}

Test(status, who_does_not_answer_is_named)
{
    struct command command;
    struct server server, other;
    char addresses[128], away[64];

    fork_command(&command);
    open_server(&other, sample);
    snprintf(away, sizeof(away), "%s", gk_zsock_address(other.zsock));
    gk_zsock_close(other.zsock, 0); /* its port is free again */
    uv_run(&other.loop, UV_RUN_DEFAULT);
    close_server(&other);
    open_server(&server, NULL);
    snprintf(addresses, sizeof(addresses), "%s,%s", away, gk_zsock_address(server.zsock));
    cr_assert_eq(ask(&server, &command, addresses, "--timeout=0.3"), GK_EXIT_PEER);
    snprintf(away + strlen(away), sizeof(away) - strlen(away), ": no server is there");
    cr_assert(said(&server, away), "%s", server.out);
    cr_assert(said(&server, "is connected but does not answer"), "%s", server.out);
}

Test(status, nonsense_is_named)
{
    static const struct {
        const char *json, *words;
    } cases[] = {
        {"[1,2]", "answered with JSON that cannot be read"},
        {"{", "answered with JSON that cannot be read"},
        {"\xff", "answered with something that is no gkps message"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct command command;
        struct server server;

        fork_command(&command);
        open_server(&server, cases[i].json);
        cr_assert_eq(ask(&server, &command, gk_zsock_address(server.zsock), "--timeout=0.3"),
                     GK_EXIT_PEER);
        cr_assert(said(&server, cases[i].words), "%s", server.out);
    }
}

Test(status, wrong_addresses_are_usage_errors)
{
    static const char *const wrong[] = {"", ",", "tcp://127.0.0.1", "tcp://127.0.0.1:1,,",
                                        "ftp://x:1"};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct command command;
        struct server server;

        fork_command(&command);
        open_server(&server, sample);
        cr_assert_eq(ask(&server, &command, wrong[i], ""), GK_EXIT_USAGE, "'%s': %s", wrong[i],
                     server.out);
        cr_assert(said(&server, "gkps status: "));
    }
}
