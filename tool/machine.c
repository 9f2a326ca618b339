#define _GNU_SOURCE /* CPU_COUNT, sched_getaffinity */
#include "tool/machine.h"

#include "tool/json.h"

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CPU_BYTES = 128 };

/* The text behind "key : " of the first such line. */
static void find(FILE *file, const char *key, char *ret, size_t ret_bytes)
{
    size_t length = strlen(key);
    char line[512];

    while (fgets(line, sizeof(line), file)) {
        const char *colon = strchr(line, ':');

        if (strncmp(line, key, length) == 0 && colon && strchr(" \t:", line[length])) {
            colon += 1 + strspn(colon + 1, " \t");
            (void)snprintf(ret, ret_bytes, "%.*s", (int)strcspn(colon, "\n"), colon);
            return;
        }
    }
}

/* "" where the system does not name it. */
static void find_cpu(char *ret, size_t ret_bytes)
{
    static const char *const keys[] = {"model name", "Model", "cpu", "CPU part"}; /* by processor */
    FILE *file = fopen("/proc/cpuinfo", "r");

    ret[0] = '\0';
    for (size_t i = 0; file && !ret[0] && i < sizeof(keys) / sizeof(keys[0]); i++) {
        rewind(file);
        find(file, keys[i], ret, ret_bytes);
    }
    if (file) {
        (void)fclose(file); /* nothing was written */
    }
}

static uint64_t count_cores(void)
{
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);

    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        return (uint64_t)CPU_COUNT(&set);
    }
    return online > 0 ? (uint64_t)online : 1;
}

json_t *gk_machine_json(const char *blas)
{
    char cpu[CPU_BYTES];

    find_cpu(cpu, sizeof(cpu));
    return json_pack("{s:o, s:o, s:o}", "cpu", cpu[0] ? gk_json_string(cpu) : json_null(), "cores",
                     gk_json_integer(count_cores()), "blas",
                     blas[0] ? gk_json_string(blas) : json_null());
}
