/* The one peer of a DEALER.
 *
 * ZeroMQ connects again by itself when a connection is lost or refused, but gives its endpoint up
 * for good after an error of the protocol: when another program had the address, or a frame was
 * beyond the limit.  It does not say so; but an attempt that it will make is announced at once
 * behind the end of the connection before.  Where that announcement is missing a timer makes the
 * endpoint anew, later each time until a handshake is done. */
#include "common/net/zsock_internal.h"

#include "common/bits.h"
#include "common/net/clock.h"

#include <zmq.h>

enum {
    ANEW_MS = 1000,
    ANEW_MS_MAX = 30000,
};

void gk_zsock_peer_init(struct gk_zsock *zsock)
{
    uint64_t seed = uv_hrtime(); /* good enough to scatter in time, should there be no better */

    (void)gk_random_bytes(&seed, sizeof(seed));
    zsock->peer.rng = (struct gk_rng){.seed = seed, .purpose = GK_RNG_IDENTITY};
    zsock->peer.wait_ms = ANEW_MS;
}

static void on_anew(uv_timer_t *timer);

/* With up to a half more by chance, so that many workers do not come at the same time. */
static void anew_later(struct gk_zsock *zsock)
{
    struct gk_zsock_peer *peer = &zsock->peer;
    uint64_t wait_ms =
        peer->wait_ms + gk_rng_below(&peer->rng, peer->draws++, peer->wait_ms / 2 + 1);

    peer->wait_ms = gk_min_u64(2 * peer->wait_ms, ANEW_MS_MAX);
    (void)uv_timer_start(&peer->timer, on_anew, wait_ms, 0);
}

static void on_anew(uv_timer_t *timer)
{
    struct gk_zsock *zsock = timer->data;

    if (!gk_zsock_usable(zsock)) {
        return;
    }
    (void)zmq_disconnect(zsock->socket, zsock->address); /* fails if nothing is left of it */
    if (zmq_connect(zsock->socket, zsock->address) != 0) {
        anew_later(zsock);
    }
    if (!zsock->peer.known) {
        gk_zsock_tell(zsock, GK_ZSOCK_STRANGER);
    }
}

void gk_zsock_peer_up(struct gk_zsock *zsock)
{
    zsock->peer.known = true;
    zsock->peer.wait_ms = ANEW_MS;
    (void)uv_timer_stop(&zsock->peer.timer);
}

void gk_zsock_peer_retried(struct gk_zsock *zsock)
{
    (void)uv_timer_stop(&zsock->peer.timer);
}

void gk_zsock_peer_ended(struct gk_zsock *zsock, bool was_up)
{
    zsock->peer.known = was_up;
    anew_later(zsock);
}
