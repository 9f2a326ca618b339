/* Every limit and every time constant of the protocol and of the daemons, by name. */
#ifndef GK_COMMON_LIMITS_H
#define GK_COMMON_LIMITS_H

enum {
    GK_PROTOCOL_VERSION = 1,

    GK_WORKERS_MAX = 1024, /* N */
    GK_SERVERS_MAX = 256,  /* S */
    GK_RANK_ANY = 0xffff,  /* in HELLO: shard 0 assigns the lowest free rank */

    GK_HEADER_BYTES_MAX = 256,       /* magic, CRC and message */
    GK_BODY_BYTES_MAX = 256,         /* HELLO, WELCOME, PING, PONG */
    GK_TEXT_BYTES_MAX = 480,         /* words in HELLO, REFUSE, NACK */
    GK_STATUS_BYTES_MAX = 64 * 1024, /* STATUS_OK */
    GK_SPEC_BYTES_MAX = 64 * 1024,   /* job spec with model table */
    GK_FRAMES_MAX = 3,               /* behind header and body */
    GK_PARTS_MAX = 4,                /* ZeroMQ parts of one message */
    GK_CHUNK_BYTES = 1024 * 1024,    /* values of one PARAMS or PUSH chunk */
    GK_CHUNK_FLOATS = GK_CHUNK_BYTES / 4,
    GK_FRAME_BYTES_MAX = 2 * 1024 * 1024, /* ZMQ_MAXMSGSIZE: larger frames close the connection */

    GK_PULL_WINDOW = 8, /* chunk requests outstanding per shard */
    GK_PUSH_WINDOW = 8, /* push or INIT chunks outstanding per shard */

    GK_PINS_MAX = 2,              /* versions that a shard holds still for an export */
    GK_PIN_US = 30 * 1000 * 1000, /* and for how long after the last request for one */

    GK_HASH_EVERY = 25, /* versions whose state hash goes into the log */

    GK_TENSORS_MAX = 1024,
    GK_TENSOR_NAME_BYTES = 64,
    GK_MILESTONES_MAX = 8,
    GK_JOB_NAME_BYTES = 64,

    GK_PARTITION_ALIGN = 16, /* shard bounds are multiples of it; d >= 16 S */

    GK_PING_US = 1000 * 1000,
    GK_HELD_US = 3 * GK_PING_US,   /* a rank heard within three pings is alive */
    GK_PAUSE_US = 3 * 1000 * 1000, /* a longer gap between two events was our own (pause.h) */
    GK_RETRY_US_MIN = 50 * 1000,
    GK_RETRY_US_MAX = 2 * 1000 * 1000,
    /* For chunks: a copy of what is still on its way makes a slow network slower.  So the first
     * retry comes after twice the time that answers take, and the next ones later still. */
    GK_RETRY_BULK_US_MIN = 500 * 1000,
    GK_RETRY_BULK_US_MAX = 8 * 1000 * 1000,
    GK_STALL_US = 5 * 1000 * 1000,        /* first stall line */
    GK_STALL_AGAIN_US = 10 * 1000 * 1000, /* and then every */
    GK_DEADLINE_S = 120,            /* for peers at the start, and for a peer that went away */
    GK_LINGER_US = 5 * 1000 * 1000, /* a finished server answers duplicates for so long */
    GK_HANDSHAKE_MS = 5000,         /* ZMQ_HANDSHAKE_IVL */

    /* Per peer, in zsock; more are dropped and counted: every request is retried. */
    GK_OUTBOX_MESSAGES_MAX = 256,
    /* A full window of the largest chunks, and half as much: of whom reads nothing. */
    GK_OUTBOX_BYTES_MAX = 24 * 1024 * 1024,
    /* Smaller messages (all but chunks) have a queue and a limit of their own, and go first: no
     * heartbeat waits for bulk, nor is dropped for it. */
    GK_OUTBOX_BULK_BYTES = 64 * 1024,
    GK_OUTBOX_SMALL_BYTES_MAX = 1024 * 1024,
    GK_TURN_MESSAGES_MAX = 64, /* received per socket and loop turn */
    GK_TURN_BYTES_MAX = 8 * 1024 * 1024,
    GK_TURN_US_MAX = 2000,
};

#endif
