/* SIGINT and SIGTERM as events of the loop; SIGPIPE is ignored, because a peer that went away is an
 * error of a write. */
#ifndef GK_COMMON_NET_SIGNALS_H
#define GK_COMMON_NET_SIGNALS_H

#include "common/err.h"
#include "common/words.h"

struct uv_loop_s;
struct gk_signals;

/* `caught` is called on the loop thread with the signal's number, each time.  The handles do not
 * keep the loop running.  GK_E_NOMEM, GK_E_LIMIT (no descriptors), GK_E_IO.  Loop thread only, like
 * everything here. */
enum gk_err gk_signals_open(struct uv_loop_s *loop, void (*caught)(void *context, int number),
                            void *context, struct gk_signals **ret_signals, struct gk_words *words);

/* Idempotent; no callback from here on; the signals do again what they do by default (SIGPIPE stays
 * ignored); memory goes in the loop's next turn.  Accepts NULL. */
void gk_signals_close(struct gk_signals *signals);

#endif
