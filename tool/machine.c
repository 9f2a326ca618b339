#define _GNU_SOURCE /* CPU_COUNT, sched_getaffinity */
#include "tool/machine.h"

#include "tool/json.h"

#include <dirent.h>
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

uint64_t gk_machine_cores(void)
{
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);

    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        return (uint64_t)CPU_COUNT(&set);
    }
    return online > 0 ? (uint64_t)online : 1;
}

/* Entries of the folder that are called so, with a number behind; "": any but hidden ones. */
static uint32_t count_entries(const char *root, const char *folder, const char *name)
{
    char path[512];
    size_t length = strlen(name);
    const struct dirent *entry;
    uint32_t count = 0;
    DIR *dir;

    (void)snprintf(path, sizeof(path), "%s%s", root, folder);
    dir = opendir(path);
    while (dir && (entry = readdir(dir))) {
        const char *number = entry->d_name + length;

        if (length == 0) {
            count += entry->d_name[0] != '.';
        } else if (strncmp(entry->d_name, name, length) == 0) {
            count += *number && strspn(number, "0123456789") == strlen(number);
        }
    }
    if (dir) {
        (void)closedir(dir);
    }
    return count;
}

uint32_t gk_machine_gpus(const char *root)
{
    uint32_t count = count_entries(root, "/proc/driver/nvidia/gpus", "");

    return count > 0 ? count : count_entries(root, "/dev", "nvidia");
}

json_t *gk_machine_json(const char *blas)
{
    char cpu[CPU_BYTES];

    find_cpu(cpu, sizeof(cpu));
    return json_pack("{s:o, s:o, s:o}", "cpu", cpu[0] ? gk_json_string(cpu) : json_null(), "cores",
                     gk_json_integer(gk_machine_cores()), "blas",
                     blas[0] ? gk_json_string(blas) : json_null());
}
