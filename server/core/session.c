/* HELLO: who may be a rank of this job.  The checks run in the order of proto/README.md, the first
 * that fails is the answer.  A new life of a rank is written down before it is welcomed, so that no
 * restart can unfence the old one. */
#include "common/assert.h"
#include "common/bits.h"
#include "server/core/state.h"

#include <inttypes.h>
#include <string.h>

struct hello {
    struct gk_server *server;
    const struct gk_msg *msg;
    uint32_t rank; /* resolved by check_rank */
    bool retryable;
    struct gk_words words;
};

bool gk_server_silent(const struct gk_server *server, uint32_t rank)
{
    const struct gk_member *member = &server->live.members[rank];

    return !member->heard || server->now_us - member->heard_us > GK_HELD_US;
}

static enum gk_code check_protocol(struct hello *hello)
{
    const struct gk_hello *body = &hello->msg->body.hello;

    if (body->protocol_min <= GK_PROTOCOL_VERSION && body->protocol_max >= GK_PROTOCOL_VERSION) {
        return GK_CODE_NONE;
    }
    gk_words_set(&hello->words,
                 "this server speaks protocol %d, the worker %" PRIu32 " to %" PRIu32,
                 GK_PROTOCOL_VERSION, body->protocol_min, body->protocol_max);
    return GK_CODE_PROTOCOL;
}

static bool uid_known(struct gk_uid uid)
{
    return uid.hi != 0 || uid.lo != 0;
}

static bool uid_equal(struct gk_uid a, struct gk_uid b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

static enum gk_code check_job(struct hello *hello)
{
    const struct gk_server *server = hello->server;
    struct gk_uid uid = hello->msg->body.hello.job_uid;

    hello->retryable = true;
    if (strcmp(hello->msg->words.text, server->config.job) != 0) {
        gk_words_set(&hello->words, "this server belongs to job '%s', the worker to '%.64s'",
                     server->config.job, hello->msg->words.text);
        return GK_CODE_WRONG_JOB;
    }
    if (uid_known(uid) && uid_known(server->image->job_uid) &&
        !uid_equal(uid, server->image->job_uid)) {
        gk_words_set(&hello->words, "this server is in another run of job '%s'",
                     server->config.job);
        return GK_CODE_WRONG_JOB;
    }
    hello->retryable = false;
    return GK_CODE_NONE;
}

static enum gk_code check_shard(struct hello *hello)
{
    const struct gk_server_config *config = &hello->server->config;
    const struct gk_hello *body = &hello->msg->body.hello;

    if (hello->msg->h.shard == config->shard && body->servers == config->servers &&
        body->workers == config->workers) {
        return GK_CODE_NONE;
    }
    gk_words_set(&hello->words,
                 "this is shard %" PRIu32 " of %" PRIu32 " servers and %" PRIu32
                 " workers, the worker wants shard %" PRIu32 " of %" PRIu32 " and %" PRIu32,
                 config->shard, config->servers, config->workers, hello->msg->h.shard,
                 body->servers, body->workers);
    return GK_CODE_WRONG_SHARD;
}

static enum gk_code check_epoch(struct hello *hello)
{
    if (hello->msg->h.epoch == hello->server->image->epoch) {
        return GK_CODE_NONE;
    }
    gk_words_set(&hello->words, "this server is in epoch %" PRIu32 ", the worker in %" PRIu32,
                 hello->server->image->epoch, hello->msg->h.epoch);
    return GK_CODE_WRONG_EPOCH;
}

/* Why a life that says this cannot be of a job with that spec; 0 is not known, on either side. */
static bool spec_differs(const struct gk_hello *body, uint64_t spec_hash, uint64_t signature,
                         struct gk_words *words)
{
    if (body->model_signature != 0 && signature != 0 && body->model_signature != signature) {
        gk_words_set(words, "the worker's model (%016" PRIx64 ") is not the job's (%016" PRIx64 ")",
                     body->model_signature, signature);
        return true;
    }
    if (body->spec_hash != 0 && spec_hash != 0 && body->spec_hash != spec_hash) {
        gk_words_set(words,
                     "the worker's job spec (%016" PRIx64 ") is not the job's (%016" PRIx64
                     "): optimizer, schedule, seed, steps or density differ",
                     body->spec_hash, spec_hash);
        return true;
    }
    return false;
}

/* The job's spec once there is one; before INIT, what rank 0 said in its HELLO. */
static bool fits_job(const struct gk_server *server, uint32_t rank, const struct gk_hello *body,
                     struct gk_words *words)
{
    const struct gk_member *first = &server->live.members[0];

    if (server->image->initialised) {
        return !spec_differs(body, server->durable.spec_hash, server->durable.model_signature,
                             words);
    }
    return rank == 0 || first->session == 0 ||
           !spec_differs(body, first->hello.spec_hash, first->hello.model_signature, words);
}

static enum gk_code check_spec(struct hello *hello)
{
    return fits_job(hello->server, hello->msg->h.rank, &hello->msg->body.hello, &hello->words)
               ? GK_CODE_NONE
               : GK_CODE_WRONG_SPEC;
}

/* A shard that has just begun has heard nobody yet; that makes nobody silent.  A rank that a
 * process asks for by its number is that process's, as soon as its former life is silent. */
static bool vacant(const struct gk_server *server, uint32_t rank)
{
    const struct gk_member *member = &server->live.members[rank];
    bool wanted = member->wanted && server->now_us - member->wanted_us <= GK_HELD_US;

    return gk_server_silent(server, rank) && !wanted &&
           (member->heard || server->now_us - server->live.started_us > GK_HELD_US);
}

/* RANK_ANY: the same life gets the same rank again; else the lowest that nobody has had, else the
 * lowest whose holder is silent.  WORKERS_MAX: none. */
static uint32_t assign_rank(const struct gk_server *server, uint64_t life_nonce)
{
    uint32_t unused = GK_WORKERS_MAX, silent = GK_WORKERS_MAX;

    for (uint32_t r = server->config.workers; r-- > 0;) {
        const struct gk_rank_row *row = &server->image->rows[r];
        const struct gk_change *change = &server->live.members[r].change;

        if ((row->incarnation > 0 && row->life_nonce == life_nonce) ||
            (change->hello && change->life_nonce == life_nonce)) {
            return r;
        }
        if (change->hello || row->left) {
            continue;
        }
        if (row->incarnation == 0) {
            unused = r;
        } else if (vacant(server, r)) {
            silent = r;
        }
    }
    return unused < GK_WORKERS_MAX ? unused : silent;
}

static enum gk_code check_rank(struct hello *hello)
{
    const struct gk_server *server = hello->server;
    uint32_t rank = hello->msg->h.rank;

    if (rank == GK_RANK_ANY && server->config.shard != 0) {
        gk_words_set(&hello->words, "ranks are assigned by shard 0, this is shard %" PRIu32,
                     server->config.shard);
        return GK_CODE_BAD_RANK;
    }
    if (rank == GK_RANK_ANY) {
        rank = assign_rank(server, hello->msg->body.hello.life_nonce);
        if (rank == GK_WORKERS_MAX) {
            gk_words_set(&hello->words,
                         "all %" PRIu32 " ranks are held by living workers or have left",
                         server->config.workers);
            hello->retryable = true; /* the holder of one may just have died */
            return GK_CODE_HELD;
        }
    }
    if (rank >= server->config.workers) {
        gk_words_set(&hello->words,
                     "rank %" PRIu32 " does not exist: the job has ranks 0 to %" PRIu32, rank,
                     server->config.workers - 1);
        return GK_CODE_BAD_RANK;
    }
    hello->rank = rank;
    return GK_CODE_NONE;
}

static bool has_slot(const struct gk_hello *body)
{
    return body->slot == GK_SLOT_STEP || body->slot == GK_SLOT_LEFT;
}

static bool outranks(const struct gk_hello *one, const struct gk_hello *other)
{
    return has_slot(one) != has_slot(other) ? has_slot(one) : one->life_nonce > other->life_nonce;
}

/* Two lives that are both still joining could each hold some shards and wait for the others for
 * ever.  So everywhere the one with a slot gets through, or else the one with the greater nonce;
 * once it has asked for three pings, so that a HELLO of a dead process that was long on its way
 * pushes nobody out.  A life that has begun to pull or push holds all shards and is not in
 * question.
 */
static bool yields(const struct gk_server *server, struct gk_member *holder,
                   const struct gk_hello *body)
{
    struct gk_rival *rival = &holder->rival;
    bool gone = rival->hello.life_nonce == 0 || server->now_us - rival->heard_us > GK_HELD_US;

    if (holder->engaged || !outranks(body, &holder->hello)) {
        return false;
    }
    if (rival->hello.life_nonce != body->life_nonce) {
        if (!gone && !outranks(body, &rival->hello)) {
            return false;
        }
        rival->since_us = server->now_us;
    }
    rival->hello = *body;
    rival->heard_us = server->now_us;
    return server->now_us - rival->since_us > GK_HELD_US;
}

static enum gk_code check_holder(struct hello *hello)
{
    const struct gk_server *server = hello->server;
    struct gk_member *member = &server->live.members[hello->rank];
    const struct gk_rank_row *row = &server->image->rows[hello->rank];
    const struct gk_hello *body = &hello->msg->body.hello;

    hello->retryable = true;
    if (member->change.hello && member->change.life_nonce != body->life_nonce) {
        gk_words_set(&hello->words, "rank %" PRIu32 " is being taken by another process",
                     hello->rank);
        return GK_CODE_HELD;
    }
    if (member->session != 0 && row->life_nonce != body->life_nonce && !body->takeover &&
        !gk_server_silent(server, hello->rank) && !yields(server, member, body)) {
        member->wanted = true;
        member->wanted_us = server->now_us;
        gk_words_set(&hello->words,
                     "rank %" PRIu32 " is held by a living process, last heard %.1f s ago",
                     hello->rank, (double)(server->now_us - member->heard_us) / 1e6);
        return GK_CODE_HELD;
    }
    return GK_CODE_NONE;
}

static enum gk_code check_life(struct hello *hello)
{
    const struct gk_rank_row *row = &hello->server->image->rows[hello->rank];

    if ((row->incarnation > 0 && row->life_nonce == hello->msg->body.hello.life_nonce) ||
        hello->msg->h.incarnation > row->incarnation) {
        return GK_CODE_NONE;
    }
    hello->retryable = true;
    gk_words_set(&hello->words,
                 "life %" PRIu32 " of rank %" PRIu32 " is not above the highest known, %" PRIu32,
                 hello->msg->h.incarnation, hello->rank, row->incarnation);
    return GK_CODE_STALE_LIFE;
}

static enum gk_code check_draining(struct hello *hello)
{
    if (hello->server->live.state != GK_SHARD_DRAINING) {
        return GK_CODE_NONE;
    }
    hello->retryable = true;
    gk_words_set(&hello->words, "this server is going away");
    return GK_CODE_DRAINING;
}

/* A life that was welcomed before it was found to be of another job must not hold its rank, nor
 * count as one that is here. */
static void expel(struct gk_server *server, uint32_t rank)
{
    struct gk_member *member = &server->live.members[rank];

    gk_server_push_drop(server, rank);
    member->session = 0;
    member->heard = false;
    member->pulls_count = 0;
}

static void refuse(struct hello *hello, uint64_t route, enum gk_code code)
{
    struct gk_server *server = hello->server;
    const struct gk_header *h = &hello->msg->h;
    struct gk_server_action *action = gk_server_emit(server, GK_SERVER_SEND);
    uint32_t rank = h->rank < server->config.workers ? h->rank : GK_RANK_ANY;
    uint32_t judged = code == GK_CODE_STALE_LIFE ? hello->rank : rank; /* or the one assigned */
    bool known = judged < server->config.workers &&
                 !(code == GK_CODE_HELD && server->live.members[judged].change.hello);

    action->route = route;
    action->msg.h = (struct gk_header){
        .kind = GK_KIND_REFUSE,
        .req_id = h->req_id,
        .epoch = server->image->epoch,
        .rank = rank,
        .shard = server->config.shard,
        .incarnation = known ? server->image->rows[judged].incarnation : 0,
        .code = code,
        .flags = hello->retryable ? GK_FLAG_RETRYABLE : 0,
    };
    action->msg.words = hello->words;
    if (!hello->retryable) {
        gk_server_trace(server, GK_LOG_WARN, "SERVER-REFUSED", "rank %" PRIu32 " refused, %s: %s",
                        rank, gk_code_name(code), hello->words.text);
    }
    if (rank < server->config.workers && code != GK_CODE_DRAINING &&
        server->live.members[rank].session != 0 &&
        server->live.members[rank].life_nonce == hello->msg->body.hello.life_nonce) {
        expel(server, rank);
    }
}

/* The others are asked to leave when they next say HELLO, which they do all the time until the job
 * begins; but from here on none of them counts. */
void gk_server_spec_known(struct gk_server *server, uint64_t spec_hash, uint64_t signature)
{
    struct gk_words words, first = {.text = ""};
    uint32_t expelled = 0, lowest = 0;

    for (uint32_t r = 1; r < server->config.workers; r++) {
        const struct gk_member *member = &server->live.members[r];

        if (member->session == 0 || !spec_differs(&member->hello, spec_hash, signature, &words)) {
            continue;
        }
        expel(server, r);
        if (expelled++ == 0) {
            lowest = r;
            first = words;
        }
    }
    if (expelled > 0) { /* one line: a step emits a bounded number of actions */
        gk_server_trace(server, GK_LOG_WARN, "SERVER-EXPELLED",
                        "%" PRIu32 " ranks have another job than rank 0, the first is rank %" PRIu32
                        ": %s",
                        expelled, lowest, first.text);
    }
}

/* Ranks that have said HELLO to this life of the shard, of this job as far as is known;
 * *ret_missing: the lowest other. */
uint32_t gk_server_present(const struct gk_server *server, struct gk_uid job_uid,
                           uint32_t *ret_missing)
{
    uint32_t present = 0, missing = GK_WORKERS_MAX;

    for (uint32_t r = 0; r < server->config.workers; r++) {
        const struct gk_member *member = &server->live.members[r];

        if (member->session != 0 && (!uid_known(job_uid) || !uid_known(member->hello.job_uid) ||
                                     uid_equal(job_uid, member->hello.job_uid))) {
            present++;
        } else if (missing == GK_WORKERS_MAX) {
            missing = r;
        }
    }
    if (ret_missing) {
        *ret_missing = missing;
    }
    return present;
}

static void welcome(struct gk_server *server, uint32_t rank, uint64_t req_id)
{
    const struct gk_server_durable *durable = &server->durable;
    struct gk_msg *msg = gk_server_reply(server, GK_KIND_WELCOME, rank, req_id);

    msg->h.lo = durable->lo;
    msg->h.hi = durable->hi;
    msg->h.init_id = server->image->initialised ? server->image->init_id : 0;
    msg->body.welcome = (struct gk_welcome){
        .life_nonce = server->image->rows[rank].life_nonce,
        .job_uid = server->image->job_uid,
        .initialised = server->image->initialised,
        .spec_hash = server->image->initialised ? durable->spec_hash : 0,
        .oldest_version = server->image->version,
        .highest_incarnation = server->image->rows[rank].incarnation,
        .credit_bytes = durable->setup.push_bytes,
        .finished = server->image->finished,
        .workers_present = gk_server_present(server, server->image->job_uid, NULL),
        .workers = server->config.workers,
    };
}

static uint64_t draw_session(struct gk_server *server, uint32_t rank)
{
    struct gk_server_live *live = &server->live;
    struct gk_rng rng = {
        .seed = server->config.seed,
        .purpose = GK_RNG_IDENTITY,
        .a = server->config.shard,
        .b = server->image->incarnation,
    };
    uint64_t session = 0;

    if (server->config.plant & GK_SERVER_PLANT_SAME_SESSION) {
        return gk_mix64(server->image->rows[rank].life_nonce) | 1;
    }
    while (session == 0) {
        session = (uint64_t)gk_rng_u32(&rng, live->sessions_drawn) << 32 |
                  gk_rng_u32(&rng, live->sessions_drawn + 1);
        live->sessions_drawn += 2;
    }
    return session;
}

/* What the new life does not name as its own comes again or is lost with the old one; PUSH_OKs
 * count no more either way. */
static void keep_or_drop_push(struct gk_server *server, uint32_t rank)
{
    const struct gk_member *member = &server->live.members[rank];
    const struct gk_push_slot *push = &member->push;
    bool same = member->hello.slot == GK_SLOT_STEP && member->hello.slot_step == push->step &&
                member->hello.slot_push_id == push->push_id;

    if (push->assembly.chunks > 0 && !same &&
        !(server->config.plant & GK_SERVER_PLANT_MIXED_CHUNKS)) {
        gk_server_push_drop(server, rank);
    }
}

static void open_session(struct gk_server *server, uint32_t rank)
{
    struct gk_member *member = &server->live.members[rank];
    const struct gk_rank_row *row = &server->image->rows[rank];

    member->life_nonce = row->life_nonce;
    member->session = draw_session(server, rank);
    member->engaged = false;
    memset(&member->rival, 0, sizeof(member->rival));
    member->pulls_count = 0;
    memset(&member->ping, 0, sizeof(member->ping));
    keep_or_drop_push(server, rank);
    gk_server_trace(server, GK_LOG_INFO, "SERVER-JOINED",
                    "worker %" PRIu32 " joined (life %" PRIu32 "), %" PRIu32 " of %" PRIu32
                    " are here",
                    rank, row->incarnation, gk_server_present(server, server->image->job_uid, NULL),
                    server->config.workers);
}

/* The rank's row is durable and names the life that said HELLO: a session for it, and WELCOME.
 * Rank 0 may have come, with another spec, since the HELLO was judged: then none, and the next
 * HELLO is refused. */
void gk_server_session_open(struct gk_server *server, uint32_t rank)
{
    struct gk_member *member = &server->live.members[rank];
    struct gk_change *change = &member->change;
    struct gk_words words;

    change->hello = false;
    if (!fits_job(server, rank, &change->hello_body, &words)) {
        return;
    }
    member->hello = change->hello_body;
    member->route = change->hello_route;
    member->heard = true;
    member->heard_us = server->now_us;
    if (member->session == 0 || member->life_nonce != server->image->rows[rank].life_nonce) {
        open_session(server, rank);
    }
    if (rank == 0 && !server->image->initialised) {
        gk_server_spec_known(server, member->hello.spec_hash, member->hello.model_signature);
    }
    welcome(server, rank, change->hello_req_id);
}

/* Remember what the HELLO asks for; it is answered now, or when the rank's new row is durable. */
static void accept(struct gk_server *server, uint32_t rank, uint64_t route,
                   const struct gk_msg *msg)
{
    const struct gk_rank_row *row = &server->image->rows[rank];
    struct gk_change *change = &server->live.members[rank].change;
    uint32_t known = change->hello ? change->incarnation : row->incarnation;

    change->life_nonce = msg->body.hello.life_nonce;
    change->incarnation = msg->h.incarnation > known ? msg->h.incarnation : known;
    change->hello_req_id = msg->h.req_id;
    change->hello_route = route;
    change->hello_body = msg->body.hello;
    if (row->life_nonce == change->life_nonce && row->incarnation == change->incarnation) {
        gk_server_session_open(server, rank);
        return;
    }
    change->wanted = change->wanted || !change->hello || change->incarnation != known;
    change->hello = true;
    gk_server_write_next(server);
}

void gk_server_hello(struct gk_server *server, uint64_t route, const struct gk_msg *msg)
{
    static enum gk_code (*const checks[])(struct hello *) = {
        check_protocol, check_job,  check_shard,  check_epoch,    check_spec,
        check_rank,     check_life, check_holder, check_draining,
    };
    struct hello hello = {.server = server, .msg = msg};

    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        enum gk_code code = checks[i](&hello);

        if (code != GK_CODE_NONE) {
            refuse(&hello, route, code);
            return;
        }
    }
    accept(server, hello.rank, route, msg);
}

/* Whom the shard waits for: before version 0 those that have not come, then those whose push is not
 * here. */
static void fill_waits(const struct gk_server *server, struct gk_ping *pong)
{
    const struct gk_server_live *live = &server->live;
    uint32_t lowest = 0, missing;
    uint64_t since_us = live->round.opened_us;

    if (live->writer.full) {
        pong->waits = GK_WAIT_DISK;
        pong->waits_us = server->now_us - live->writer.full_since_us;
        return;
    }
    if (gk_server_before_version(server)) {
        missing = server->config.workers - gk_server_present(server, (struct gk_uid){0}, &lowest);
        since_us = live->started_us;
    } else {
        missing = gk_server_round_missing(server, &lowest);
        pong->waits_version = missing > 0 ? server->image->version + 1 : 0;
    }
    if (missing > 0) {
        pong->waits = GK_WAIT_RANK;
        pong->waits_for = lowest;
        pong->waits_count = missing;
        pong->waits_us = server->now_us - since_us;
    }
}

void gk_server_ping(struct gk_server *server, uint32_t rank, const struct gk_msg *msg)
{
    const struct gk_ping *ping = &msg->body.ping;
    struct gk_msg *pong;

    server->live.members[rank].ping = *ping;
    pong = gk_server_reply(server, GK_KIND_PONG, rank, msg->h.req_id);
    pong->body.ping = (struct gk_ping){.sent_us = ping->sent_us, .received_us = server->now_us};
    fill_waits(server, &pong->body.ping);
}
