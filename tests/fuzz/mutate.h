/* Mutations that know what a message is: fields of header and body, parts, arrays.  Afterwards the
 * checksums are right again, most of the time. */
#ifndef GK_TESTS_FUZZ_MUTATE_H
#define GK_TESTS_FUZZ_MUTATE_H

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/wire.h"

/* One change, or a few. */
void fuzz_message_mutate(struct fuzz_message *message, struct fuzz_random *random);

/* Give `message` a header field of `other`: a session, a push id, a range. */
void fuzz_message_borrow(struct fuzz_message *message, const struct fuzz_message *other,
                         struct fuzz_random *random);

#endif
