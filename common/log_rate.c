#include "common/log_rate.h"

#include "common/hash.h"

#include <string.h>

static struct gk_log_rate_id *place_of(struct gk_log_rate *rate, const char *id)
{
    uint64_t hash = gk_hash64(id, strlen(id)) | 1; /* 0 means free */

    for (uint64_t i = 0; i < GK_LOG_IDS_MAX; i++) {
        struct gk_log_rate_id *place = &rate->ids[(hash / 2 + i) % GK_LOG_IDS_MAX];

        if (place->hash == hash) {
            return place;
        }
        if (place->hash == 0) {
            place->hash = hash;
            return place;
        }
    }
    return &rate->ids[GK_LOG_IDS_MAX];
}

bool gk_log_rate_admit(struct gk_log_rate *rate, const char *id, uint64_t now_us, bool forced,
                       uint64_t *ret_suppressed)
{
    struct gk_log_rate_id *place = place_of(rate, id);

    if (!forced) {
        if (place->written == 0 || now_us - place->since_us >= GK_LOG_RATE_US) {
            place->since_us = now_us;
            place->written = 0;
        }
        if (place->written == GK_LOG_RATE) {
            place->suppressed++;
            return false;
        }
        place->written++;
    }
    *ret_suppressed = place->suppressed;
    place->suppressed = 0;
    return true;
}
