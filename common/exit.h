/* Exit codes of the programs (sysexits).  130, 141 and 143 are the signals' own. */
#ifndef GK_COMMON_EXIT_H
#define GK_COMMON_EXIT_H

enum gk_exit {
    GK_EXIT_OK = 0,
    GK_EXIT_USAGE = 64,    /* wrong flags */
    GK_EXIT_DATA = 65,     /* a data file is missing or damaged */
    GK_EXIT_PEER = 69,     /* a peer was missing at the deadline, or is lost */
    GK_EXIT_INTERNAL = 70, /* our own bug, or no memory */
    GK_EXIT_IO = 74,       /* what was printed could not be written */
    GK_EXIT_RETRY = 75,    /* the same command may succeed later (busy port) */
    GK_EXIT_FENCED = 76,   /* a newer life of this rank or shard exists */
    GK_EXIT_REFUSED = 77,  /* the peer refused: other job, model, rank */
    GK_EXIT_CONFIG = 78,   /* configuration or state is wrong */
    GK_EXIT_SIGINT = 130,
    GK_EXIT_SIGPIPE = 141, /* the reader of what we print has gone */
    GK_EXIT_SIGTERM = 143,
};

#endif
