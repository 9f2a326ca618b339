#include "common/regular.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum gk_err unreadable(struct gk_words *words)
{
    enum gk_err err = errno == ENOENT ? GK_E_NOTFOUND : GK_E_IO;

    gk_words_set(words, "cannot be read: %s", strerror(errno));
    return err;
}

enum gk_err gk_regular_open(const char *path, FILE **ret_file, struct gk_words *words)
{
    /* Without O_NONBLOCK the open itself would wait for the other end of a pipe. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    enum gk_err err = GK_OK;
    struct stat status;
    FILE *file = NULL;

    if (fd < 0) {
        return unreadable(words);
    }
    if (fstat(fd, &status) != 0) {
        err = unreadable(words);
    } else if (!S_ISREG(status.st_mode)) {
        gk_words_set(words, "%s", S_ISDIR(status.st_mode) ? "is a folder" : "is no regular file");
        err = GK_E_IO;
    } else if (fcntl(fd, F_SETFL, 0) != 0) {
        err = unreadable(words);
    } else {
        file = fdopen(fd, "rb");
        if (!file) {
            gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
            err = GK_E_NOMEM;
        }
    }
    if (err) {
        (void)close(fd); /* nothing was written */
        return err;
    }
    *ret_file = file;
    return GK_OK;
}
