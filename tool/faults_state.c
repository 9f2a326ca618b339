#include "tool/faults_state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static enum gk_err failed(const char *path, struct gk_words *words)
{
    gk_words_set(words, "cannot remove %s: %s", path, strerror(errno));
    return GK_E_IO;
}

enum gk_err gk_faults_state_remove(const char *dir, enum gk_role role, uint32_t index,
                                   struct gk_words *words)
{
    char path[PATH_BYTES];
    const struct dirent *entry;
    enum gk_err err = GK_OK;
    DIR *folder;

    (void)snprintf(path, sizeof(path), "%s/%s-%u", dir, gk_role_name(role), index);
    folder = opendir(path);
    if (!folder) {
        return errno == ENOENT ? GK_OK : failed(path, words);
    }
    while (!err && (entry = readdir(folder))) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            unlinkat(dirfd(folder), entry->d_name, 0) != 0) {
            err = failed(path, words);
        }
    }
    (void)closedir(folder);
    if (!err && rmdir(path) != 0) {
        err = failed(path, words);
    }
    return err;
}
