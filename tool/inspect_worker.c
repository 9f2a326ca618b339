/* The folder of a worker: its slot file, read as the worker would, but from a map that cannot be
 * written to. */
#include "tool/inspect.h"

#include "tool/json.h"
#include "worker/state/format.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LOOKS_MAX = 4, LOOK_MS = 20 };

#define PARAMETERS_MAX (UINT64_C(1) << 40)
#define AUX_BYTES_MAX (UINT64_C(1) << 40)

struct view { /* of the file */
    uint8_t *map;
    uint64_t size;
};

static bool open_view(const char *path, struct view *ret, bool *ret_unreadable,
                      struct gk_words *words)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    bool good = fd >= 0 && fstat(fd, &st) == 0;

    if (good && (!S_ISREG(st.st_mode) || st.st_size < GK_SLOT_RING_AT)) {
        gk_words_set(words, "%.300s is damaged: it is no file of at least %d bytes", path,
                     (int)GK_SLOT_RING_AT);
        good = false;
    } else if (good) {
        ret->size = (uint64_t)st.st_size;
        ret->map = mmap(NULL, (size_t)ret->size, PROT_READ, MAP_SHARED, fd, 0);
        good = ret->map != MAP_FAILED;
    }
    if (!good && !words->text[0]) {
        gk_words_set(words, "%.300s cannot be read: %s", path, strerror(errno));
        *ret_unreadable = true;
    }
    if (fd >= 0) {
        (void)close(fd); /* the map stays */
    }
    return good;
}

/* Whatever the header says of itself must lead to the same layout. */
static bool check_header(struct gk_slot *slot, uint64_t size, struct gk_words *words)
{
    const struct gk_slot_header *header = &slot->header;
    char job[GK_JOB_NAME_BYTES + 1] = "";
    const struct gk_slot_setup setup = {.job = job,
                                        .workers = header->workers,
                                        .servers = header->servers,
                                        .params_count = header->params_count,
                                        .push_max = header->push_max,
                                        .spec_hash = header->spec_hash,
                                        .model_signature = header->model_signature,
                                        .chunk_floats = header->chunk_floats,
                                        .aux_bytes = header->aux_bytes};

    memcpy(job, header->job, sizeof(header->job));
    if (header->workers > GK_WORKERS_MAX || header->servers > GK_SERVERS_MAX ||
        header->params_count > PARAMETERS_MAX || header->chunk_floats == 0 ||
        header->aux_bytes > AUX_BYTES_MAX) {
        gk_words_set(words, "%s is damaged: a header that cannot be", slot->path);
        return false;
    }
    return gk_slot_header_check(slot, &setup, size, words) == GK_OK;
}

static void put_found(const struct gk_slot *slot, const struct gk_slot_found *found, json_t *object)
{
    static const char *const states[] = {[GK_SLOT_NONE] = "none",
                                         [GK_SLOT_LOST] = "lost",
                                         [GK_SLOT_STEP] = "step",
                                         [GK_SLOT_LEFT] = "left"};
    const struct gk_worker_slot *worker = &found->slot;
    const struct gk_worker_identity *identity = &worker->identity;

    (void)json_object_set_new(object, "state", json_string(states[worker->state]));
    (void)json_object_set_new(object, "rank",
                              identity->rank == GK_RANK_ANY ? json_null()
                                                            : gk_json_integer(identity->rank));
    (void)json_object_set_new(object, "incarnation", json_integer(identity->incarnation));
    (void)json_object_set_new(object, "epoch", json_integer(identity->epoch));
    (void)json_object_set_new(object, "left_at", gk_json_integer(gk_left_step(identity->left_at)));
    if (worker->remembers) {
        (void)json_object_set_new(object, "step", gk_json_integer(worker->memory.step));
        (void)json_object_set_new(object, "first_step", gk_json_integer(worker->memory.first_step));
    }
    (void)json_object_set_new(object, "pushes", json_integer(worker->pushes_count));
    (void)json_object_set_new(object, "job", gk_json_string(slot->header.job));
    (void)json_object_set_new(object, "workers", json_integer(slot->header.workers));
    (void)json_object_set_new(object, "servers", json_integer(slot->header.servers));
    (void)json_object_set_new(object, "parameters", gk_json_integer(slot->header.params_count));
}

/* One look; words are empty when all is well. */
static void look(const char *path, json_t *object, struct gk_worker_identity *ret_identity,
                 struct gk_words *words)
{
    char file[PATH_BYTES];
    struct gk_slot slot = {.path = file};
    const struct gk_slot_setup anybody = {.rank = GK_RANK_ANY};
    struct gk_slot_found found;
    struct view view;
    bool unreadable = false;

    (void)snprintf(file, sizeof(file), "%s/slot", path);
    words->text[0] = '\0';
    memset(&found, 0, sizeof(found));
    bool open = open_view(file, &view, &unreadable, words);

    (void)json_object_set_new(object, "unreadable", json_boolean(unreadable));
    if (!open) {
        return;
    }
    slot.map = view.map;
    memcpy(&slot.header, view.map, sizeof(slot.header));
    if (check_header(&slot, view.size, words) &&
        gk_slot_load(&slot, &anybody, &found, words) == GK_OK) {
        *words = found.damage;
        *ret_identity = found.slot.identity;
        put_found(&slot, &found, object);
        (void)json_object_set_new(object, "bytes", gk_json_integer(view.size));
    }
    for (uint32_t i = 0; i < found.slot.pushes_count; i++) {
        gk_push_free(found.slot.pushes[i]);
    }
    (void)munmap(view.map, (size_t)view.size);
}

json_t *gk_inspect_worker(const char *path)
{
    const struct timespec wait = {.tv_nsec = LOOK_MS * 1000000L};
    struct gk_worker_identity identity;
    struct gk_words words = {""};
    json_t *object = json_pack("{s:o, s:s, s:b, s:n}", "path", gk_json_string(path), "kind",
                               "worker", "ok", 1, "problem");

    /* A living worker writes while we read: what is damaged only once is not. */
    for (int looks = 0; looks < LOOKS_MAX; looks++) {
        look(path, object, &identity, &words);
        if (!words.text[0]) {
            return object;
        }
        (void)nanosleep(&wait, NULL); /* sooner does no harm */
    }
    (void)json_object_set_new(object, "ok", json_false());
    (void)json_object_set_new(object, "problem", gk_json_string(words.text));
    return object;
}

bool gk_inspect_identity(const char *path, struct gk_worker_identity *ret)
{
    struct gk_worker_identity identity = {.rank = GK_RANK_ANY};
    json_t *object = json_object();
    struct gk_words words;

    look(path, object, &identity, &words);
    json_decref(object);
    if (identity.rank == GK_RANK_ANY) {
        return false;
    }
    *ret = identity;
    return true;
}
