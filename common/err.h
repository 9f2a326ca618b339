/* Errors of the environment and of peers: one list gives the enum, the names and the texts.
 *
 * Functions return `enum gk_err`, 0 or negative; results leave through `ret_*` parameters, which
 * are untouched on failure.  Where one line for a person is needed, the last parameter is a `struct
 * gk_words *` (common/words.h).  Mistakes of our own are not errors but assertions
 * (common/assert.h). */
#ifndef GK_COMMON_ERR_H
#define GK_COMMON_ERR_H

#define GK_ERR_MAP(X)                                                                              \
    X(NOMEM, -1, "out of memory")                                                                  \
    X(INVALID, -2, "invalid argument")                                                             \
    X(LIMIT, -3, "a limit was exceeded")                                                           \
    X(IO, -4, "input or output failed")                                                            \
    X(CORRUPT, -5, "data is damaged")                                                              \
    X(UNSUPPORTED, -6, "not supported")                                                            \
    X(TIMEOUT, -7, "timed out")                                                                    \
    X(AGAIN, -8, "try again")                                                                      \
    X(CLOSED, -9, "closed by the other side")                                                      \
    X(NOTFOUND, -10, "not found")                                                                  \
    X(REFUSED, -11, "refused")                                                                     \
    X(LOST, -12, "a peer or its state is lost")                                                    \
    X(BUSY, -13, "in use")                                                                         \
    X(NONFINITE, -14, "a value is not finite")                                                     \
    X(CONFIG, -15, "configuration is wrong")                                                       \
    X(HELP, -16, "help was asked for and printed")

enum gk_err {
    GK_OK = 0,
#define GK_ERR_ENUM(name, value, text) GK_E_##name = (value),
    GK_ERR_MAP(GK_ERR_ENUM)
#undef GK_ERR_ENUM
};

/* "NOMEM", ..., "OK"; "UNKNOWN" for a number that is not in the list.  Any thread. */
const char *gk_err_name(enum gk_err err);

/* "out of memory", ...  Any thread. */
const char *gk_err_text(enum gk_err err);

#endif
