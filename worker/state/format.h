/* Private to worker/state: the layout of the file, and what its files share.
 *
 *   page 0      header, written once
 *   page 1, 2   identity, twice
 *   page 3, 4   descriptor of residual slot 0, 1
 *   then        GK_RING_ENTRIES ring entries
 *   then        residual slot 0, 1: d floats, auxiliary bytes
 *
 * Every part begins on a page.  Numbers are little-endian, as in memory.  A record that is
 * rewritten has a seal: its seq is 0 while it is written, and is stored last. */
#ifndef GK_WORKER_STATE_FORMAT_H
#define GK_WORKER_STATE_FORMAT_H

#include "worker/state/slot.h"

#include <stddef.h>

enum {
    GK_SLOT_FORMAT = 2,
    GK_SLOT_PAGE = 4096,
    GK_SLOT_COPIES = 2, /* of identity and residual */
    GK_SLOT_HEADER_AT = 0,
    GK_SLOT_IDENTITY_AT = GK_SLOT_PAGE,
    GK_SLOT_RESIDUAL_AT = 3 * GK_SLOT_PAGE,
    GK_SLOT_RING_AT = 5 * GK_SLOT_PAGE,
};

enum gk_slot_record { /* numbers on disk */
                      GK_SLOT_RECORD_IDENTITY = 1,
                      GK_SLOT_RECORD_RESIDUAL = 2,
                      GK_SLOT_RECORD_PUSH = 3,
};

struct gk_slot_header {
    char magic[8]; /* "gkpsslot" */
    uint32_t format;
    uint32_t crc; /* of the header with 0 here */
    char job[GK_JOB_NAME_BYTES];
    uint32_t workers, servers;
    uint64_t params_count, push_max;
    uint64_t spec_hash, model_signature;
    uint32_t ring_entries, chunk_floats;
    uint64_t aux_bytes; /* behind each residual, in its CRC */
    uint64_t entry_bytes, residual_bytes, file_bytes;
};

struct gk_slot_seal {
    uint64_t seq;  /* 0: not a record */
    uint32_t crc;  /* of the whole record with 0 here */
    uint32_t kind; /* enum gk_slot_record */
};

struct gk_slot_identity {
    struct gk_slot_seal seal;
    uint32_t rank, incarnation, joined_incarnation, epoch;
    uint64_t job_uid_hi, job_uid_lo, init_id, left_at;
    uint64_t void_seq; /* residuals and pushes up to it are void */
};

struct gk_slot_residual {
    struct gk_slot_seal seal;
    uint64_t step, first_step;
    uint32_t memory_incarnation, epoch;
    uint32_t residual_crc, reserved; /* of d floats and the auxiliary bytes */
};

struct gk_slot_push { /* followed by slices, chunks, arrays */
    struct gk_slot_seal seal;
    uint64_t step, samples;
    uint64_t body_bytes;
    uint32_t slices, chunks;
    uint32_t body_crc, has_rate; /* 0 or 1 */
    uint32_t lr_bits, reserved;  /* 0 without a rate */
};

struct gk_slot_slice {
    uint64_t id;
    uint32_t chunks, reserved;
};

struct gk_slot_chunk {
    uint64_t lo, hi, count;
    uint32_t index_encoding, reserved;
};

_Static_assert(sizeof(struct gk_slot_header) == 160, "as in docs/worker-state.md");
_Static_assert(sizeof(struct gk_slot_identity) == 72, "as in docs/worker-state.md");
_Static_assert(sizeof(struct gk_slot_residual) == 48, "as in docs/worker-state.md");
_Static_assert(sizeof(struct gk_slot_push) == 64, "as in docs/worker-state.md");
_Static_assert(sizeof(struct gk_slot_slice) == 16 && sizeof(struct gk_slot_chunk) == 32,
               "the same");

struct gk_slot {
    char *path; /* of the file, for words */
    int directory, lock, file;
    uint8_t *map; /* NULL: not mapped */
    struct gk_slot_header header;
    bool sync;
    void (*hook)(void *context, const char *where);
    void *hook_context;
    struct gk_slot_identity identity; /* the one that counts */
    uint32_t identity_copy;           /* and where it lies */
    uint32_t current;                 /* residual slot that the next step reads */
    bool remembers;                   /* it is the one behind the push of `step` */
    uint64_t step;
    uint64_t seq; /* of the last flip that may have counted */
    bool put;     /* the push of put_step lies in the ring, not yet flipped */
    uint64_t put_step;
};

/* layout.c */
void gk_slot_layout(const struct gk_slot_setup *setup, struct gk_slot_header *ret);
uint32_t gk_slot_header_crc(const struct gk_slot_header *header);
void *gk_slot_identity_at(const struct gk_slot *slot, uint32_t copy);
void *gk_slot_residual_at(const struct gk_slot *slot, uint32_t copy);
void *gk_slot_entry_at(const struct gk_slot *slot, uint64_t step);
float *gk_slot_floats_at(const struct gk_slot *slot, uint32_t copy);
void gk_slot_say(const struct gk_slot *slot, const char *where); /* the hook */
/* The record without its seal counts no more. */
void gk_slot_unseal(const struct gk_slot *slot, void *at);
/* Write a record of `size` bytes whose seal holds seq and kind: it counts with the last store. */
void gk_slot_seal(const struct gk_slot *slot, void *at, void *record, size_t size);
/* What lies there: false and a zero seq: nothing; false and another seq: damaged. */
bool gk_slot_unsealed(const void *at, enum gk_slot_record kind, void *ret_record, size_t size);

/* pushes.c */
uint64_t gk_slot_entry_bytes(const struct gk_slot_header *header);
enum gk_err gk_slot_push_write(const struct gk_slot *slot, const struct gk_push *push, uint64_t seq,
                               struct gk_words *words);
/* GK_E_NOTFOUND: no push that belongs to the memory lies there; GK_E_CORRUPT, GK_E_NOMEM. */
enum gk_err gk_slot_push_read(const struct gk_slot *slot, const struct gk_slot_residual *memory,
                              uint64_t step, struct gk_push **ret_push, struct gk_words *words);

/* load.c */
enum gk_err gk_slot_header_check(const struct gk_slot *slot, const struct gk_slot_setup *setup,
                                 uint64_t size, struct gk_words *words);
enum gk_err gk_slot_load(struct gk_slot *slot, const struct gk_slot_setup *setup,
                         struct gk_slot_found *found, struct gk_words *words);

#endif
