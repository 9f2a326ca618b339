/* One message of the protocol as our own C struct, and its two directions: to wire and from wire.
 *
 * On the wire a message is [header][body?][frame ...]: the header is 4 bytes magic "GKP1", 4 bytes
 * CRC-32C of what follows, and one protobuf message of scalars; 256 bytes at most.  HELLO, WELCOME,
 * PING and PONG have a body of scalars.  Words travel as one text frame; arrays as raw
 * little-endian frames.  proto/README.md is the specification.
 *
 * Every check that needs no memory of earlier messages is made in gk_msg_from_wire(), and only
 * there. */
#ifndef GK_PROTO_MSG_H
#define GK_PROTO_MSG_H

#include "common/backend.h"
#include "common/buf.h"
#include "common/err.h"
#include "common/limits.h"
#include "common/words.h"

#include <stdbool.h>
#include <stdint.h>

/* Wire numbers, frozen; 0 is invalid. */
enum gk_kind {
    GK_KIND_HELLO = 1,
    GK_KIND_WELCOME = 2,
    GK_KIND_REFUSE = 3,
    GK_KIND_INIT = 4,
    GK_KIND_INIT_OK = 5,
    GK_KIND_PUSH = 6,
    GK_KIND_PUSH_OK = 7,
    GK_KIND_NACK = 8,
    GK_KIND_PULL_DENSE = 9,
    GK_KIND_PARAMS = 10,
    GK_KIND_PULL_UPDATES = 11, /* reserved */
    GK_KIND_UPDATES = 12,      /* reserved */
    GK_KIND_GONE = 13,
    GK_KIND_LEAVE = 14,
    GK_KIND_LEAVE_OK = 15,
    GK_KIND_PING = 16,
    GK_KIND_PONG = 17,
    GK_KIND_STATUS = 18,
    GK_KIND_STATUS_OK = 19,
    GK_KIND_DRAIN = 20,
    GK_KIND_DRAIN_OK = 21,
    GK_KIND_PIN = 22,
    GK_KIND_PIN_OK = 23,
    GK_KIND_PULL_PIN = 24,
    GK_KIND_PIN_PARAMS = 25,
    GK_KIND_MAX = 25,
};

/* Wire numbers, frozen. */
enum gk_index_encoding {
    GK_INDEX_NONE = 0,   /* no arrays */
    GK_INDEX_RAW32 = 1,  /* u32 relative to lo, strictly rising */
    GK_INDEX_RICE = 2,   /* reserved */
    GK_INDEX_BITMAP = 3, /* reserved */
    GK_INDEX_DENSE = 4,  /* no index frame: values of [lo, hi) */
};

/* Of one rank's push of one step at one shard; wire numbers, frozen. */
enum gk_verdict {
    GK_VERDICT_NONE = 0,
    GK_VERDICT_APPLIED = 1,
    GK_VERDICT_RETURNED = 2,
    GK_VERDICT_SKIPPED = 3,
    GK_VERDICT_REJECTED = 4,
    GK_VERDICT_LOST = 5, /* a LOST push: the rank's state was gone, its contribution is empty */
};

/* Of REFUSE and NACK; wire numbers, frozen. */
enum gk_code {
    GK_CODE_NONE = 0,
    /* REFUSE */
    GK_CODE_PROTOCOL = 1,    /* no common protocol version; fatal */
    GK_CODE_WRONG_JOB = 2,   /* another job name or uid; retryable until the start deadline */
    GK_CODE_WRONG_SHARD = 3, /* this address serves another shard, or N or S differ; fatal */
    GK_CODE_WRONG_SPEC = 4,  /* another model, optimizer, seed ...; fatal */
    GK_CODE_BAD_RANK = 5,    /* rank >= N, or none is free; fatal */
    GK_CODE_HELD = 6,        /* the rank is held by a living process; retryable */
    /* The incarnation is not above the highest known; retryable with a higher one. */
    GK_CODE_STALE_LIFE = 7,
    GK_CODE_DRAINING = 8,    /* the server is going away; retryable */
    GK_CODE_WRONG_EPOCH = 9, /* fatal */
    /* NACK */
    GK_CODE_NO_SESSION = 20,  /* say HELLO again */
    GK_CODE_FENCED = 21,      /* a newer life of this rank exists; exit */
    GK_CODE_BAD_MESSAGE = 22, /* a peer's message that fails validation */
    GK_CODE_UNSUPPORTED = 23, /* unknown kind or reserved encoding */
    GK_CODE_NOT_READY = 24,   /* no version yet, or (INIT) some rank has not said HELLO; retry */
    GK_CODE_BAD_STEP = 25,    /* a push of a step the rank cannot be at */
    GK_CODE_NO_MEMORY = 26,   /* the job does not fit the server's budget; fatal */
    /* The job is beyond version 0 elsewhere and this shard has no version; fatal. */
    GK_CODE_LOST_SHARD = 27,
    GK_CODE_BAD_SHAPE = 28,    /* well-formed, but not what this job's shard expects; fatal */
    GK_CODE_FINISHED = 29,     /* the job has ended */
    GK_CODE_PAST = 30,         /* PIN, PULL_PIN: that version is past, or is not pinned any more */
    GK_CODE_RATES_DIFFER = 31, /* the ranks of a step push with different learning rates; fatal */
};

/* Header flags. */
enum {
    GK_FLAG_LOST = 1 << 0,
    GK_FLAG_SKIP = 1 << 1,           /* reserved */
    GK_FLAG_LR_FROM_CLIENT = 1 << 2, /* PUSH: lr_bits is the learning rate of the step */
    GK_FLAG_AT_LEAST = 1 << 3,       /* PULL_DENSE: any version from `version` on */
    GK_FLAG_RETRYABLE = 1 << 4,      /* REFUSE, NACK */
    GK_FLAG_RELEASE = 1 << 5,        /* PIN: it is not needed any more; not answered */
    GK_FLAGS_ALL = (1 << 6) - 1,
};

#define GK_VERSION_MAX (UINT64_C(1) << 62) /* of steps and versions: no sum of two overflows */
#define GK_PARAMS_MAX (UINT64_C(1) << 40)  /* GK_SERVERS_MAX shards of 2^32 elements */

enum {
    GK_CHUNKS_MAX = 1 << 14, /* of a push or INIT: a shard below 2^32 elements in full chunks */
};

/* 128 random bits; 0: unknown. */
struct gk_uid {
    uint64_t hi, lo;
};

/* Fields that a kind does not use are 0 and absent on the wire; which kind uses which is pinned
 * in proto/README.md and checked: a field that does not belong there is an error. */
struct gk_header {
    uint32_t kind; /* enum gk_kind */
    uint64_t session;
    uint64_t req_id; /* chosen by the requester, repeated in the answer */
    uint32_t epoch;
    uint32_t rank; /* GK_RANK_ANY where no rank speaks */
    uint32_t shard;
    uint32_t incarnation; /* of the sender */
    uint64_t step;
    uint64_t version;
    uint64_t to_version;
    uint64_t base_version;
    uint64_t durable_version;
    uint64_t lo, hi; /* global element range */
    uint32_t plane;
    uint64_t samples;
    uint32_t lr_bits;
    uint64_t push_id;
    uint64_t init_id;
    struct gk_uid job_uid; /* INIT, PIN */
    uint32_t chunk, chunks;
    uint64_t push_bytes; /* of the whole push, all frames of all chunks */
    uint32_t index_encoding;
    uint32_t index_param;
    uint32_t value_encoding; /* enum gk_value_encoding; 0: no arrays */
    uint64_t count;          /* entries in this message */
    uint32_t frame_crc[GK_FRAMES_MAX];
    uint32_t flags;
    /* enum gk_verdict: the rank's last, with its step and the incarnation that pushed. */
    uint32_t verdict;
    uint64_t verdict_step;
    uint32_t verdict_incarnation;
    uint64_t state_hash;
    uint32_t code; /* enum gk_code */
};

enum gk_slot_state { GK_SLOT_NONE = 0, GK_SLOT_LOST = 1, GK_SLOT_STEP = 2, GK_SLOT_LEFT = 3 };

struct gk_hello {
    uint32_t protocol_min, protocol_max;
    struct gk_uid job_uid;
    uint64_t spec_hash;       /* 0: not known yet (rank any) */
    uint64_t model_signature; /* hash of the model table */
    uint32_t workers, servers;
    uint32_t role;       /* 1: worker */
    uint64_t life_nonce; /* random, one per life of the process */
    bool takeover;
    uint32_t slot; /* enum gk_slot_state */
    uint64_t slot_step;
    uint64_t slot_push_id; /* at this shard */
    uint64_t slot_left_at;
};

struct gk_welcome {
    uint64_t life_nonce; /* echoed */
    struct gk_uid job_uid;
    bool initialised; /* a version exists; then init_id (header) and version count */
    uint64_t spec_hash;
    uint64_t oldest_version;
    uint32_t highest_incarnation; /* seen of this rank */
    uint64_t credit_bytes;        /* what the shard has reserved for one push of this rank */
    bool finished;
    uint32_t workers_present, workers; /* "waiting for worker 3 of 4" */
};

enum gk_wait {
    GK_WAIT_NONE = 0,
    GK_WAIT_SHARD = 1,
    GK_WAIT_RANK = 2,
    GK_WAIT_DISK = 3, /* PONG: a record finds no room on the shard's disk */
};

/* PING and PONG. */
struct gk_ping {
    uint64_t sent_us;     /* sender's monotonic clock; PONG repeats the PING's */
    uint64_t received_us; /* PONG: server's clock when the PING came */
    uint32_t waits;       /* enum gk_wait */
    uint32_t waits_for;   /* shard, or lowest rank that is missing */
    uint32_t waits_count; /* PONG: how many ranks are missing */
    uint64_t waits_version;
    uint64_t waits_us; /* for how long already */
};

struct gk_msg {
    struct gk_header h;
    union {
        struct gk_hello hello; /* words: job name */
        struct gk_welcome welcome;
        struct gk_ping ping;
    } body;
    struct gk_words words; /* HELLO: job name; REFUSE, NACK: reason; "" when there is none */
    /* References owned by the message.  PUSH: [indices][values] (RAW32), [values] (DENSE), none
     * (count 0).  PARAMS, PIN_PARAMS: [values].  INIT: chunk 0 [spec][values], others [values].
     * STATUS_OK: [JSON].  PIN_OK: [spec]. */
    struct gk_buf *frame[GK_FRAMES_MAX];
    uint32_t frames_count;
    /* To wire only: the CRC-32C of frame[i] where the sender knows it, so that bytes that go to
     * many peers are summed once; 0: it is computed. */
    uint32_t known_crc[GK_FRAMES_MAX];
};

/* Parse and check one received message.  Borrows the parts; *ret_msg takes references to the array
 * frames.  GK_E_CORRUPT: magic, CRC, lengths, encodings, order of indices, non-finite values ...;
 * GK_E_UNSUPPORTED: unknown kind or an encoding that is reserved; GK_E_LIMIT: sizes.  `words` says
 * which field and which value.
 *
 * After GK_E_UNSUPPORTED and GK_E_CORRUPT, `ret_msg->h` holds what could be read of the header
 * when its CRC was right (kind 0 otherwise), so that it can be answered; frames are then empty.
 * A rank or shard out of range is replaced there, by GK_RANK_ANY and 0, so that an answer that
 * repeats them is legal.  Any thread. */
enum gk_err gk_msg_from_wire(struct gk_buf *const *parts, uint32_t parts_count,
                             struct gk_msg *ret_msg, struct gk_words *words);

/* Encode.  Computes the frame CRCs that are not known.  Gives 1..GK_PARTS_MAX references in
 * ret_parts.  Asserts what the message must hold; GK_E_NOMEM.  Any thread. */
enum gk_err gk_msg_to_wire(const struct gk_msg *msg, struct gk_buf **ret_parts,
                           uint32_t *ret_parts_count);

/* Drop the frames and zero everything.  Accepts a zeroed message. */
void gk_msg_clear(struct gk_msg *msg);

/* A job's name as HELLO may carry it: 1 to GK_JOB_NAME_BYTES - 1 bytes of printable UTF-8.
 * GK_E_INVALID, and words that do not say where the name came from.  Any thread. */
enum gk_err gk_job_name_check(const char *name, struct gk_words *words);

const char *gk_kind_name(uint32_t kind);       /* "PUSH"; "?" when unknown */
const char *gk_verdict_name(uint32_t verdict); /* "applied" */
const char *gk_code_name(uint32_t code);       /* "NO_SESSION" */

#endif
