#define _GNU_SOURCE /* O_TMPFILE */
#include "tool/output.h"

#include "tool/state_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LINK_BYTES = 32, LINKS_MAX = 40 };

struct target {
    char path[PATH_BYTES]; /* links followed: the rename must replace the file, not the link */
    char temporary[PATH_BYTES + 32];
    char folder[PATH_BYTES];
};

static enum gk_err failed(const char *what, const char *path, struct gk_words *words)
{
    gk_words_set(words, "cannot %s %.200s: %s", what, path, strerror(errno));
    return GK_E_IO;
}

static void find_folder(struct target *target)
{
    char *slash;

    memcpy(target->folder, target->path, sizeof(target->folder));
    slash = strrchr(target->folder, '/');
    if (!slash) {
        (void)snprintf(target->folder, sizeof(target->folder), ".");
    } else {
        slash[slash == target->folder] = '\0'; /* the root is its own folder */
    }
}

/* Replace a link in target->path by what it points to.  0: it is no link; -1: errno says why. */
static int follow(struct target *target)
{
    char points_to[PATH_BYTES], next[2 * PATH_BYTES];
    ssize_t length = readlink(target->path, points_to, sizeof(points_to) - 1);
    int written;

    if (length < 0) {
        return errno == EINVAL || errno == ENOENT ? 0 : -1;
    }
    points_to[length] = '\0';
    find_folder(target);
    written = points_to[0] == '/'
                  ? snprintf(next, sizeof(next), "%s", points_to)
                  : snprintf(next, sizeof(next), "%s/%s", target->folder, points_to);
    if (written < 0 || (size_t)written >= sizeof(target->path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(target->path, next, (size_t)written + 1);
    return 1;
}

/* A regular file, or a place for one.  Anything else may block the writer for ever (a pipe without
 * a reader), or would be replaced by a file. */
static enum gk_err resolve(const char *path, struct target *ret, struct gk_words *words)
{
    struct stat st;
    int length = snprintf(ret->path, sizeof(ret->path), "%s", path);
    int followed = 1;

    if (length < 0 || (size_t)length >= sizeof(ret->path)) {
        errno = ENAMETOOLONG;
        return failed("write", path, words);
    }
    for (int i = 0; followed == 1; i++) {
        errno = ELOOP;
        followed = i < LINKS_MAX ? follow(ret) : -1;
    }
    if (followed < 0) {
        return failed("write", path, words);
    }
    if (stat(ret->path, &st) == 0) {
        if (!S_ISREG(st.st_mode)) {
            gk_words_set(words, "cannot write %.200s: it is %s", path,
                         S_ISDIR(st.st_mode) ? "a directory" : "no regular file");
            return GK_E_IO;
        }
        if (access(ret->path, W_OK) != 0) {
            return failed("write", path, words);
        }
    }
    (void)snprintf(ret->temporary, sizeof(ret->temporary), "%s.%ld.tmp", ret->path, (long)getpid());
    find_folder(ret);
    return GK_OK;
}

/* A file without a name: nothing is left of it when this process is killed.  -1: not on this file
 * system. */
static int open_unnamed(const struct target *target)
{
    return open(target->folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
}

static int open_new(const char *path)
{
    /* A file of this name can only be left over from a process of the same number that was killed.
     */
    (void)unlink(path);
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

static bool write_all(int fd, const char *text)
{
    size_t left = strlen(text);

    while (left > 0) {
        ssize_t n = write(fd, text, left);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        text += n;
        left -= (size_t)n;
    }
    return true;
}

static const char *name_of(const struct target *target)
{
    const char *slash = strrchr(target->path, '/');

    return slash ? slash + 1 : target->path;
}

enum gk_err gk_output_probe(const char *path, struct gk_words *words)
{
    struct target target;
    enum gk_err err;
    int fd;

    if (strcmp(path, "-") == 0) {
        return GK_OK;
    }
    err = resolve(path, &target, words);
    if (err) {
        return err;
    }
    if (gk_state_owns(target.folder, name_of(&target))) {
        gk_words_set(words, "cannot write %.200s: the state of a job is kept there", path);
        return GK_E_REFUSED;
    }
    fd = open_unnamed(&target);
    if (fd < 0) {
        fd = open_new(target.temporary);
        if (fd < 0) {
            return failed("write", path, words);
        }
        (void)unlink(target.temporary);
    }
    (void)close(fd);
    return GK_OK;
}

/* In one step where there was no file, else under the temporary name and by a rename. */
static bool give_name(int fd, const struct target *target)
{
    char link[LINK_BYTES];

    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, link, AT_FDCWD, target->path, AT_SYMLINK_FOLLOW) == 0) {
        return true;
    }
    (void)unlink(target->temporary);
    return linkat(AT_FDCWD, link, AT_FDCWD, target->temporary, AT_SYMLINK_FOLLOW) == 0 &&
           rename(target->temporary, target->path) == 0;
}

typedef enum gk_err fill_fn(void *context, FILE *out, struct gk_words *words);

/* Takes the descriptor.  Everything, synced, or words. */
static enum gk_err fill_file(int fd, fill_fn *fill, void *context, struct gk_words *words)
{
    FILE *out = fdopen(fd, "wb");
    enum gk_err err;

    if (!out) {
        gk_words_set(words, "%s", strerror(errno));
        (void)close(fd);
        return GK_E_NOMEM;
    }
    err = fill(context, out, words);
    if (!err && (fflush(out) != 0 || fsync(fd) != 0)) {
        gk_words_set(words, "%s", strerror(errno));
        err = GK_E_IO;
    }
    if (fclose(out) != 0 && !err) {
        gk_words_set(words, "%s", strerror(errno));
        err = GK_E_IO;
    }
    return err;
}

/* False: this file system has no files without names, or the name could not be given. */
static bool write_unnamed(const struct target *target, fill_fn *fill, void *context,
                          enum gk_err *ret_err, struct gk_words *words)
{
    int fd = open_unnamed(target);
    int filled = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    bool done = false;

    if (filled >= 0) {
        *ret_err = fill_file(filled, fill, context, words);
        done = *ret_err != GK_OK || give_name(fd, target);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return done;
}

static enum gk_err write_named(const struct target *target, fill_fn *fill, void *context,
                               struct gk_words *words)
{
    int fd = open_new(target->temporary);
    enum gk_err err;

    if (fd < 0) {
        return failed("write", target->temporary, words);
    }
    err = fill_file(fd, fill, context, words);
    if (!err && rename(target->temporary, target->path) != 0) {
        gk_words_set(words, "%s", strerror(errno));
        err = GK_E_IO;
    }
    if (err) {
        (void)unlink(target->temporary);
    }
    return err;
}

/* The name, too, outlives the machine. */
static enum gk_err sync_folder(const struct target *target, struct gk_words *words)
{
    int fd = open(target->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum gk_err err = GK_OK;

    /* A file system that cannot sync a directory says so, and there is nothing more to do. */
    if (fd >= 0 && fsync(fd) != 0 && errno != EINVAL) {
        gk_words_set(words, "%s", strerror(errno));
        err = GK_E_IO;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return err;
}

enum gk_err gk_output_make(const char *path, fill_fn *fill, void *context, struct gk_words *words)
{
    struct target target;
    enum gk_err err = resolve(path, &target, words);

    if (err) {
        return err;
    }
    if (!write_unnamed(&target, fill, context, &err, words)) {
        err = write_named(&target, fill, context, words);
    }
    err = err ? err : sync_folder(&target, words);
    if (err) {
        gk_words_prefix(words, "cannot write %.200s: ", path);
    }
    return err;
}

struct text {
    const char *text;
};

static enum gk_err fill_text(void *context, FILE *out, struct gk_words *words)
{
    const struct text *text = context;

    if (fputs(text->text, out) < 0) {
        gk_words_set(words, "%s", strerror(errno));
        return GK_E_IO;
    }
    return GK_OK;
}

enum gk_err gk_output_write(const char *path, const char *text, struct gk_words *words)
{
    struct text whole = {text};

    if (strcmp(path, "-") == 0) {
        if (write_all(STDOUT_FILENO, text)) {
            return GK_OK;
        }
        return errno == EPIPE ? GK_E_CLOSED : failed("write", "standard output", words);
    }
    return gk_output_make(path, fill_text, &whole, words);
}
