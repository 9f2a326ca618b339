/* What a message must satisfy by itself, field by field: the rules of README.md that need no memory
 * of other messages.  All functions: first violation wins, words name the field and its value; any
 * thread. */
#ifndef GK_PROTO_CHECK_H
#define GK_PROTO_CHECK_H

#include "common/err.h"
#include "common/words.h"
#include "proto/kinds.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a part behind the header holds. */
enum gk_part {
    GK_PART_BODY,
    GK_PART_TEXT, /* words, one line */
    GK_PART_SPEC,
    GK_PART_JSON,
    GK_PART_INDICES,
    GK_PART_VALUES,
};

struct gk_part_rule {
    enum gk_part part;
    size_t bytes_min, bytes_max;
};

/* The parts that must follow a header, in order; `optional` of them at the end may be absent. */
struct gk_parts_rule {
    struct gk_part_rule parts[GK_FRAMES_MAX];
    uint32_t count;
    uint32_t optional;
};

const char *gk_part_name(enum gk_part part);

/* Kind, fields that the kind uses, ranges, enums.  GK_E_CORRUPT, GK_E_UNSUPPORTED, GK_E_LIMIT. */
enum gk_err gk_header_check(const struct gk_header *header, struct gk_words *words);

/* The parts behind a header that gk_header_check() has passed. */
void gk_parts_of(const struct gk_header *header, struct gk_parts_rule *ret);

/* The body of a message whose header has been checked.  GK_E_CORRUPT. */
enum gk_err gk_body_check(const struct gk_msg *msg, struct gk_words *words);

/* Length of the longest prefix that is well-formed UTF-8 without control characters; `lines` allows
 * tab, line feed and carriage return. */
size_t gk_text_good(const uint8_t *bytes, size_t bytes_count, bool lines);

/* u32 that rise strictly and stay below `bound`.  GK_E_CORRUPT. */
enum gk_err gk_indices_check(const uint8_t *bytes, uint64_t count, uint64_t bound,
                             struct gk_words *words);

/* Finite floats.  GK_E_CORRUPT. */
enum gk_err gk_values_check(const uint8_t *bytes, uint64_t count, struct gk_words *words);

#endif
