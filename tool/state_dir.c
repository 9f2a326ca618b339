/* What has not exactly a name that gkps gives is somebody else's, and makes the folder one that
 * nothing is removed from.  Looking and removing are the same walk, so that they agree on what is
 * ours. */
#include "tool/state_dir.h"

#include "common/limits.h"
#include "server/store/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { LINE_BYTES = 256 };

static enum gk_err failed(const char *what, const char *dir, const char *name,
                          struct gk_words *words)
{
    enum gk_err err = errno == ENOENT ? GK_E_NOTFOUND : GK_E_IO;

    gk_words_set(words, "cannot %s %.200s%s%s: %s", what, dir, *name ? "/" : "", name,
                 strerror(errno));
    return err;
}

void gk_state_path(const char *dir, enum gk_role role, uint32_t index, char *ret, size_t ret_bytes)
{
    (void)snprintf(ret, ret_bytes, "%s/%s-%u", dir, gk_role_name(role), index);
}

enum gk_err gk_state_check(const char *dir, struct gk_words *words)
{
    struct stat st;

    if (stat(dir, &st) == 0) {
        if (S_ISDIR(st.st_mode)) {
            return GK_OK;
        }
        gk_words_set(words, "--state-dir: %.200s is no folder", dir);
    } else if (errno != ENOENT) {
        gk_words_set(words, "--state-dir: %.200s cannot be a folder: %s", dir, strerror(errno));
    } else if (lstat(dir, &st) == 0) {
        gk_words_set(words, "--state-dir: %.200s is a link to nothing that is there", dir);
    } else {
        return GK_OK;
    }
    return GK_E_REFUSED;
}

/* "server-3": exactly what gk_state_path() would write. */
static bool parse_folder(const char *name, struct gk_state_folder *ret)
{
    static const enum gk_role roles[] = {GK_ROLE_SERVER, GK_ROLE_WORKER};

    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        size_t length = strlen(gk_role_name(roles[i]));
        unsigned long index;
        char again[32];

        if (strncmp(name, gk_role_name(roles[i]), length) != 0 || name[length] != '-') {
            continue;
        }
        index = strtoul(name + length + 1, NULL, 10);
        (void)snprintf(again, sizeof(again), "%s-%lu", gk_role_name(roles[i]), index);
        if (strcmp(again, name) == 0 && index < GK_WORKERS_MAX) {
            *ret = (struct gk_state_folder){.server = roles[i] == GK_ROLE_SERVER,
                                            .index = (uint32_t)index};
            return true;
        }
    }
    return false;
}

/* `before`, digits, a dash, digits, `behind`. */
static bool is_numbered(const char *name, const char *before, const char *behind)
{
    size_t length = strlen(before);
    const char *end;

    if (strncmp(name, before, length) != 0) {
        return false;
    }
    name += length;
    end = name + strspn(name, "0123456789");
    if (end == name || *end != '-') {
        return false;
    }
    name = end + 1;
    end = name + strspn(name, "0123456789");
    return end > name && strcmp(end, behind) == 0;
}

static bool is_server_file(const char *name)
{
    static const char *const names[] = {
        GK_STORE_LOCK,           GK_STORE_JOB, GK_STORE_JOB_TEMPORARY, GK_STORE_INIT_TEMPORARY,
        GK_STORE_FOLD_TEMPORARY,
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return is_numbered(name, "wal-", ".log") || is_numbered(name, "snap-", "") ||
           is_numbered(name, "snap-", ".damaged");
}

static bool is_worker_file(const char *name)
{
    static const char *const names[] = {"LOCK", "slot", "slot.tmp"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Calls `each` with every name but . and ..; stops at its first error. */
static enum gk_err each_name(const char *dir,
                             enum gk_err (*each)(void *context, const char *dir, const char *name,
                                                 struct gk_words *words),
                             void *context, struct gk_words *words)
{
    DIR *folder = opendir(dir);
    const struct dirent *entry;
    enum gk_err err = GK_OK;

    if (!folder) {
        return failed("open", dir, "", words);
    }
    while (!err && (entry = readdir(folder))) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            err = each(context, dir, entry->d_name, words);
        }
    }
    (void)closedir(folder);
    return err;
}

struct search {
    struct gk_state_folders *folders;
    bool is_server, is_worker; /* the folder itself */
};

static enum gk_err add_folder(struct gk_state_folders *folders, const char *dir, const char *name,
                              const struct gk_state_folder *folder)
{
    size_t bytes = strlen(dir) + strlen(name) + 2;

    if (folders->count == folders->room) {
        size_t room = folders->room ? 2 * folders->room : 16;
        struct gk_state_folder *list = realloc(folders->list, room * sizeof(*list));

        if (!list) {
            return GK_E_NOMEM;
        }
        folders->list = list;
        folders->room = room;
    }
    folders->list[folders->count] = *folder;
    folders->list[folders->count].path = malloc(bytes);
    if (!folders->list[folders->count].path) {
        return GK_E_NOMEM;
    }
    (void)snprintf(folders->list[folders->count].path, bytes, "%s%s%s", dir, *name ? "/" : "",
                   name);
    folders->count++;
    return GK_OK;
}

static enum gk_err search_name(void *context, const char *dir, const char *name,
                               struct gk_words *words)
{
    struct search *search = context;
    struct gk_state_folder folder;
    enum gk_err err = GK_OK;

    search->is_server = search->is_server || strcmp(name, GK_STORE_JOB) == 0;
    search->is_worker = search->is_worker || strcmp(name, "slot") == 0;
    if (parse_folder(name, &folder)) {
        err = add_folder(search->folders, dir, name, &folder);
    }
    if (err) {
        gk_words_set(words, "%s", gk_err_text(err));
    }
    return err;
}

static int by_index(const void *a, const void *b)
{
    const struct gk_state_folder *x = a, *y = b;

    if (x->server != y->server) {
        return x->server ? -1 : 1;
    }
    return x->index < y->index ? -1 : x->index > y->index;
}

enum gk_err gk_state_find(const char *dir, struct gk_state_folders *folders, struct gk_words *words)
{
    struct search search = {.folders = folders};
    size_t before = folders->count;
    struct gk_state_folder itself = {0};
    enum gk_err err = each_name(dir, search_name, &search, words);

    if (err) {
        return err;
    }
    if (folders->count > before) {
        qsort(folders->list + before, folders->count - before, sizeof(folders->list[0]), by_index);
        return GK_OK;
    }
    if (!search.is_server && !search.is_worker) {
        gk_words_set(words, "%.200s holds no state of a server, a worker or a run", dir);
        return GK_E_NOTFOUND;
    }
    itself.server = search.is_server;
    err = add_folder(folders, dir, "", &itself);
    if (err) {
        gk_words_set(words, "%s", gk_err_text(err));
    }
    return err;
}

struct owns {
    bool daemon, run; /* whose folder it is */
};

static enum gk_err owns_name(void *context, const char *dir, const char *name,
                             struct gk_words *words)
{
    struct owns *owns = context;
    struct gk_state_folder folder;

    (void)dir;
    (void)words;
    if (strcmp(name, GK_STATE_LOCK) == 0 || parse_folder(name, &folder)) {
        owns->run = true; /* a lock alone may be of anybody, and is not written over then either */
    } else if (is_server_file(name) || is_worker_file(name)) {
        owns->daemon = true;
    }
    return GK_OK;
}

bool gk_state_owns(const char *dir, const char *name)
{
    struct owns owns = {0};
    struct gk_words words;

    if (each_name(dir, owns_name, &owns, &words) != GK_OK) {
        return false;
    }
    return owns.daemon ||
           (owns.run && (strcmp(name, GK_STATE_JOB) == 0 || strcmp(name, GK_STATE_LOCK) == 0));
}

void gk_state_folders_fini(struct gk_state_folders *folders)
{
    for (size_t i = 0; i < folders->count; i++) {
        free(folders->list[i].path);
    }
    free(folders->list);
    memset(folders, 0, sizeof(*folders));
}

struct look {
    struct gk_state_content *content;
    const char *folder; /* name of the daemon's folder; NULL: in the run's */
    bool server;
    bool remove;
};

static void not_ours(const struct look *look, const char *name)
{
    (void)snprintf(look->content->unknown, sizeof(look->content->unknown), "%.80s%s%.80s",
                   look->folder ? look->folder : "", look->folder ? "/" : "", name);
}

static enum gk_err look_at_file(struct look *look, const char *dir, const char *name,
                                struct gk_words *words)
{
    char path[GK_STATE_PATH_BYTES];
    struct stat st;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (look->remove) {
        return unlink(path) == 0 ? GK_OK : failed("remove", dir, name, words);
    }
    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? GK_OK : failed("look at", dir, name, words);
    }
    if (!S_ISREG(st.st_mode)) {
        not_ours(look, name);
    }
    look->content->files++;
    look->content->bytes += (uint64_t)st.st_size;
    return GK_OK;
}

static enum gk_err look_in_folder(void *context, const char *dir, const char *name,
                                  struct gk_words *words)
{
    struct look *look = context;

    if (look->server ? !is_server_file(name) : !is_worker_file(name)) {
        not_ours(look, name);
        return GK_OK;
    }
    return look_at_file(look, dir, name, words);
}

static enum gk_err look_at_folder(const struct look *look, const char *dir, const char *name,
                                  const struct gk_state_folder *folder, struct gk_words *words)
{
    struct look inner = {look->content, name, folder->server, look->remove};
    char path[GK_STATE_PATH_BYTES];
    struct stat st;
    enum gk_err err;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        not_ours(look, name);
        return GK_OK;
    }
    if (folder->server) {
        look->content->servers++;
    } else {
        look->content->workers++;
    }
    err = each_name(path, look_in_folder, &inner, words);
    if (!err && look->remove && rmdir(path) != 0) {
        err = failed("remove", dir, name, words);
    }
    return err;
}

static enum gk_err look_at_name(void *context, const char *dir, const char *name,
                                struct gk_words *words)
{
    struct look *look = context;
    struct gk_state_folder folder;

    if (parse_folder(name, &folder)) {
        return look_at_folder(look, dir, name, &folder, words);
    }
    if (strcmp(name, GK_STATE_JOB) == 0) {
        look->content->job = true;
        return look_at_file(look, dir, name, words);
    }
    if (strcmp(name, GK_STATE_LOCK) != 0) {
        not_ours(look, name);
    }
    return GK_OK;
}

enum gk_err gk_state_look(const char *dir, struct gk_state_content *ret, struct gk_words *words)
{
    struct gk_state_content content = {0};
    struct look look = {.content = &content};
    enum gk_err err = each_name(dir, look_at_name, &look, words);

    if (!err) {
        *ret = content;
    }
    return err;
}

enum gk_err gk_state_remove(const char *dir, struct gk_words *words)
{
    struct gk_state_content content = {0};
    struct look look = {.content = &content, .remove = true};

    return each_name(dir, look_at_name, &look, words);
}

static int lock_file(const char *dir, int flags)
{
    char path[GK_STATE_PATH_BYTES];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, GK_STATE_LOCK);
    return open(path, flags | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);
}

enum gk_err gk_state_lock(const char *dir, int *ret_fd, struct gk_words *words)
{
    int fd = lock_file(dir, O_CREAT);

    if (fd < 0) {
        return failed("open", dir, GK_STATE_LOCK, words);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        enum gk_err err = errno == EWOULDBLOCK ? GK_E_BUSY : GK_E_IO;

        if (err == GK_E_BUSY) {
            gk_words_set(words, "%.200s is in use by another gkps run", dir);
        } else {
            (void)failed("lock", dir, GK_STATE_LOCK, words);
        }
        (void)close(fd);
        return err;
    }
    *ret_fd = fd;
    return GK_OK;
}

bool gk_state_is_locked(const char *dir)
{
    int fd = lock_file(dir, 0);
    bool locked;

    if (fd < 0) {
        return false;
    }
    locked = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    (void)close(fd); /* and the lock, if we got it */
    return locked;
}

/* "1: FLOCK  ADVISORY  WRITE 4711 fe:01:396 0 EOF", of our file? */
static long locker_of(const char *line, const struct stat *st)
{
    unsigned device_major, device_minor;
    unsigned long long inode;
    long pid;

    if (sscanf(line, "%*s FLOCK %*s %*s %ld %x:%x:%llu", &pid, &device_major, &device_minor,
               &inode) == 4 &&
        device_major == major(st->st_dev) && device_minor == minor(st->st_dev) &&
        inode == st->st_ino && pid > 0) {
        return pid;
    }
    return 0;
}

long gk_state_locker(const char *dir)
{
    FILE *locks = fopen("/proc/locks", "re");
    int fd = lock_file(dir, 0);
    char line[LINE_BYTES];
    struct stat st;
    long pid = 0;

    if (locks && fd >= 0 && fstat(fd, &st) == 0) {
        while (pid == 0 && fgets(line, sizeof(line), locks)) {
            pid = locker_of(line, &st);
        }
    }
    if (locks) {
        (void)fclose(locks); /* only read */
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return pid;
}
