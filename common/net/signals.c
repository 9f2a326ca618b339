#include "common/net/signals.h"

#include <uv.h>

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

enum { SIGNALS_COUNT = 2 };

static const int numbers[SIGNALS_COUNT] = {SIGINT, SIGTERM};

struct gk_signals {
    uv_signal_t handles[SIGNALS_COUNT];
    uint32_t open;
    void (*caught)(void *context, int number);
    void *context;
};

static void on_signal(uv_signal_t *handle, int number)
{
    struct gk_signals *signals = handle->data;

    signals->caught(signals->context, number);
}

static void on_closed(uv_handle_t *handle)
{
    struct gk_signals *signals = handle->data;

    signals->open--;
    if (signals->open == 0) {
        free(signals);
    }
}

enum gk_err gk_signals_open(struct uv_loop_s *loop, void (*caught)(void *context, int number),
                            void *context, struct gk_signals **ret_signals, struct gk_words *words)
{
    struct gk_signals *signals = calloc(1, sizeof(*signals));
    int rc = signals ? 0 : UV_ENOMEM;

    (void)signal(SIGPIPE, SIG_IGN); /* fails only for numbers that are no signals */
    for (uint32_t i = 0; i < SIGNALS_COUNT && rc == 0; i++) {
        rc = uv_signal_init(loop, &signals->handles[i]);
        if (rc == 0) {
            signals->handles[i].data = signals;
            signals->open++;
            uv_unref((uv_handle_t *)&signals->handles[i]);
            rc = uv_signal_start(&signals->handles[i], on_signal, numbers[i]);
        }
    }
    if (rc != 0) {
        gk_words_set(words, "cannot watch for signals: %s", uv_strerror(rc));
        if (signals && signals->open == 0) {
            free(signals);
        } else {
            gk_signals_close(signals);
        }
        return rc == UV_ENOMEM                      ? GK_E_NOMEM
               : rc == UV_EMFILE || rc == UV_ENFILE ? GK_E_LIMIT
                                                    : GK_E_IO;
    }
    signals->caught = caught;
    signals->context = context;
    *ret_signals = signals;
    return GK_OK;
}

void gk_signals_close(struct gk_signals *signals)
{
    uint32_t open = signals ? signals->open : 0;

    for (uint32_t i = 0; i < open; i++) {
        if (!uv_is_closing((uv_handle_t *)&signals->handles[i])) {
            uv_close((uv_handle_t *)&signals->handles[i], on_closed);
        }
    }
}
