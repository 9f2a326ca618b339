/* Rows that several programs have in their option tables: written once, so that they mean and say
 * the same everywhere.  `at` is the offset of the value in the program's options struct. */
#ifndef GK_COMMON_OPTION_ROWS_H
#define GK_COMMON_OPTION_ROWS_H

#include "common/config.h"

/* enum gk_log_format */
#define GK_OPTION_LOG_FORMAT(at, group)                                                            \
    {                                                                                              \
        "log-format", GK_OPTION_CHOICE, at, "text", "text|json", 0, 0, "FORMAT",                   \
            "Log lines for people or for machines.", NULL, group                                   \
    }

/* enum gk_log_level */
#define GK_OPTION_LOG_LEVEL(at, level, group)                                                      \
    {                                                                                              \
        "log-level", GK_OPTION_CHOICE, at, level, "debug|info|warn|error", 0, 0, "LEVEL",          \
            "Least level that is logged.", NULL, group                                             \
    }

#define GK_OPTION_LAUNCHER_FD(at)                                                                  \
    {                                                                                              \
        "launcher-fd", GK_OPTION_UINT, at, "0", NULL, 0, 65536, "FD",                              \
            "Descriptor inherited from the launcher; 0: none.", NULL, "Log"                        \
    }

#define GK_OPTION_ALLOW_FAULTS(at)                                                                 \
    {                                                                                              \
        "allow-faults", GK_OPTION_BOOL, at, "false", NULL, 0, 0, NULL,                             \
            "Let the launcher lose and damage messages, and fill disks, on purpose: gkps run "     \
            "--faults sets it.",                                                                   \
            NULL, "Log"                                                                            \
    }

/* Defaults that are compared, to tell a value that would be idle. */
#define GK_OPTION_MOMENTUM "0.9"
#define GK_OPTION_BETA1 "0.9"
#define GK_OPTION_BETA2 "0.999"
#define GK_OPTION_EPSILON "1e-8"

/* enum gk_cpu */
#define GK_OPTION_CPU(at)                                                                          \
    {                                                                                              \
        "cpu", GK_OPTION_CHOICE, at, "auto", "auto|reference|avx2", 0, 0, "TABLE",                 \
            "Arithmetic on vectors: the fastest of this processor, or one by name; the bits are "  \
            "the same.",                                                                           \
            NULL, "Resources"                                                                      \
    }

#endif
