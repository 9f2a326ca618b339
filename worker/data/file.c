#include "worker/data/source.h"

#include <zlib.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_ROOM_MIN = 64 * 1024, FILE_ROOM_STEP_MAX = 64 * 1024 * 1024 };

struct growing {
    uint8_t *bytes;
    size_t count, room;
};

enum gk_err gk_folder_check(const char *kind, const char *name, struct gk_words *words)
{
    struct stat status;

    if (name[0] == '\0') {
        gk_words_set(words, "%s: needs a folder: %s:DIR", kind, kind);
        return GK_E_CONFIG;
    }
    if (strlen(name) > GK_FOLDER_PATH_BYTES - 64) {
        gk_words_set(words, "the name of the folder is longer than %d bytes",
                     GK_FOLDER_PATH_BYTES - 64);
        return GK_E_LIMIT;
    }
    if (stat(name, &status)) {
        gk_words_set(words, "folder %s: %s", name, strerror(errno));
        return errno == ENOENT || errno == ENOTDIR ? GK_E_NOTFOUND : GK_E_IO;
    }
    if (!S_ISDIR(status.st_mode)) {
        gk_words_set(words, "%s is not a folder", name);
        return GK_E_NOTFOUND;
    }
    return GK_OK;
}

/* Not blocking, and regular files only: a name that is a pipe must not hang the daemon. */
static enum gk_err open_regular(const char *path, int *ret_fd, struct gk_words *words)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) {
        gk_words_set(words, "%s: %s", path, strerror(errno));
        return errno == ENOENT || errno == ENOTDIR ? GK_E_NOTFOUND : GK_E_IO;
    }
    if (fstat(fd, &status) || !S_ISREG(status.st_mode)) {
        gk_words_set(words, "%s: not a regular file", path);
        (void)close(fd); /* Nothing was written. */
        return GK_E_IO;
    }
    *ret_fd = fd;
    return GK_OK;
}

static enum gk_err gzip_error(gzFile file, const char *path, struct gk_words *words)
{
    int code = Z_OK;
    int saved = errno;

    (void)gzerror(file, &code);
    switch (code) {
    case Z_OK:
        return GK_OK;
    case Z_MEM_ERROR:
        gk_words_set(words, "%s: out of memory while decompressing", path);
        return GK_E_NOMEM;
    case Z_ERRNO:
        gk_words_set(words, "%s: %s", path, strerror(saved));
        return GK_E_IO;
    case Z_BUF_ERROR:
        gk_words_set(words, "%s: truncated: the gzip data ends early", path);
        return GK_E_CORRUPT;
    default:
        gk_words_set(words, "%s: damaged gzip data", path);
        return GK_E_CORRUPT;
    }
}

/* Room for at least one byte more, and never for more than bytes_max + 1: the last one shows that
 * there is too much. */
static enum gk_err grow(struct growing *text, size_t bytes_max)
{
    size_t room = text->room < FILE_ROOM_MIN ? FILE_ROOM_MIN : text->room;
    uint8_t *bytes;

    if (text->room > 0) {
        room += room < FILE_ROOM_STEP_MAX ? room : FILE_ROOM_STEP_MAX;
    }
    if (room > bytes_max + 1) {
        room = bytes_max + 1;
    }
    bytes = realloc(text->bytes, room);
    if (!bytes) {
        return GK_E_NOMEM;
    }
    text->bytes = bytes;
    text->room = room;
    return GK_OK;
}

static enum gk_err read_all(gzFile file, const char *path, size_t bytes_max, struct growing *text,
                            struct gk_words *words)
{
    for (;;) {
        int got;

        if (text->count == text->room) {
            enum gk_err err = grow(text, bytes_max);

            if (err) {
                gk_words_set(words, "%s: out of memory after %zu bytes", path, text->count);
                return err;
            }
        }
        got = gzread(file, text->bytes + text->count, (unsigned)(text->room - text->count));
        if (got > 0) {
            text->count += (size_t)got;
        }
        if (text->count > bytes_max) {
            gk_words_set(words, "%s: more than %zu bytes", path, bytes_max);
            return GK_E_LIMIT;
        }
        if (got <= 0) {
            return gzip_error(file, path, words);
        }
    }
}

enum gk_err gk_file_read(const char *path, size_t bytes_max, uint8_t **ret_bytes, size_t *ret_count,
                         struct gk_words *words)
{
    struct growing text = {0};
    gzFile file;
    enum gk_err err;
    int fd;

    err = open_regular(path, &fd, words);
    if (err) {
        return err;
    }
    file = gzdopen(fd, "rb");
    if (!file) {
        gk_words_set(words, "%s: out of memory", path);
        (void)close(fd); /* Nothing was written. */
        return GK_E_NOMEM;
    }
    err = read_all(file, path, bytes_max, &text, words);
    (void)gzclose_r(file); /* Every error of reading was seen by read_all. */
    if (err) {
        free(text.bytes);
        return err;
    }
    *ret_bytes = text.bytes;
    *ret_count = text.count;
    return GK_OK;
}
