#include "tests/sim/disk.h"

#include "common/assert.h"
#include "common/bits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What is behind the end of a file is zero in both views, and pages that are not dirty are equal in
 * both, unless a sync has failed. */
struct gk_sim_inode {
    uint32_t refs; /* names, changes, open files */
    uint8_t *now, *safe;
    bool *dirty; /* a page each */
    uint64_t now_size, safe_size, room;
};

enum change_kind { CREATE, RENAME, REMOVE };

struct gk_sim_change {
    enum change_kind kind;
    char name[GK_SIM_DISK_NAME_BYTES], to[GK_SIM_DISK_NAME_BYTES];
    struct gk_sim_inode *inode; /* CREATE */
};

struct gk_file {
    struct gk_disk *disk;
    struct gk_sim_inode *inode;
};

static struct gk_sim_inode *take(struct gk_sim_inode *inode)
{
    if (inode) {
        inode->refs++;
    }
    return inode;
}

static void drop(struct gk_sim_inode *inode)
{
    if (inode && --inode->refs == 0) {
        free(inode->now);
        free(inode->safe);
        free(inode->dirty);
        free(inode);
    }
}

static void *grown(void *old, uint64_t old_bytes, uint64_t bytes)
{
    uint8_t *memory = realloc(old, bytes);

    GK_ASSERT(memory); /* a test program: no memory is the end of the test */
    memset(memory + old_bytes, 0, bytes - old_bytes);
    return memory;
}

static void make_room(struct gk_sim_inode *inode, uint64_t size)
{
    uint64_t room = gk_max_u64(inode->room, 4 * GK_SIM_PAGE);

    while (room < size) {
        room *= 2;
    }
    if (room > inode->room) {
        inode->now = grown(inode->now, inode->room, room);
        inode->safe = grown(inode->safe, inode->room, room);
        inode->dirty = grown(inode->dirty, inode->room / GK_SIM_PAGE * sizeof(bool),
                             room / GK_SIM_PAGE * sizeof(bool));
        inode->room = room;
    }
}

static void touch(struct gk_sim_inode *inode, uint64_t lo, uint64_t hi)
{
    for (uint64_t p = lo / GK_SIM_PAGE; lo < hi && p <= (hi - 1) / GK_SIM_PAGE; p++) {
        inode->dirty[p] = true;
    }
}

static void resize(struct gk_sim_inode *inode, uint64_t size)
{
    make_room(inode, size);
    if (size < inode->now_size) {
        memset(inode->now + size, 0, inode->now_size - size);
        touch(inode, size, inode->now_size);
    }
    inode->now_size = size;
}

static void put(struct gk_sim_inode *inode, uint64_t offset, const void *data, uint64_t size)
{
    make_room(inode, offset + size);
    memcpy(inode->now + offset, data, size);
    touch(inode, offset, offset + size);
    inode->now_size = gk_max_u64(inode->now_size, offset + size);
}

static struct gk_sim_name *find(struct gk_sim_name *names, const char *text)
{
    for (uint32_t i = 0; i < GK_SIM_DISK_NAMES_MAX; i++) {
        if (names[i].inode && strcmp(names[i].text, text) == 0) {
            return &names[i];
        }
    }
    return NULL;
}

static void set_text(char target[GK_SIM_DISK_NAME_BYTES], const char *text)
{
    GK_ASSERT(strlen(text) < GK_SIM_DISK_NAME_BYTES);
    memset(target, 0, GK_SIM_DISK_NAME_BYTES);
    memcpy(target, text, strlen(text));
}

static void add_name(struct gk_sim_name *names, const char *text, struct gk_sim_inode *inode)
{
    for (uint32_t i = 0; i < GK_SIM_DISK_NAMES_MAX; i++) {
        if (!names[i].inode) {
            set_text(names[i].text, text);
            names[i].inode = take(inode);
            return;
        }
    }
    GK_ASSERT(false && "the store makes more files than it ever should");
}

static void remove_name(struct gk_sim_name *names, const char *text)
{
    struct gk_sim_name *name = find(names, text);

    if (name) {
        drop(name->inode);
        name->inode = NULL;
    }
}

/* A change whose file is not there, because an earlier change was lost, does nothing. */
static void apply_change(struct gk_sim_name *names, const struct gk_sim_change *change)
{
    struct gk_sim_name *name = find(names, change->name);

    if (change->kind == CREATE && !name) {
        add_name(names, change->name, change->inode);
    } else if (change->kind == REMOVE) {
        remove_name(names, change->name);
    } else if (change->kind == RENAME && name) {
        remove_name(names, change->to);
        set_text(name->text, change->to);
    }
}

static void clear_names(struct gk_sim_name *names)
{
    for (uint32_t i = 0; i < GK_SIM_DISK_NAMES_MAX; i++) {
        drop(names[i].inode);
        names[i].inode = NULL;
    }
}

static void clear_changes(struct gk_disk *disk)
{
    for (uint32_t i = 0; i < disk->changes_count; i++) {
        drop(disk->changes[i].inode);
    }
    disk->changes_count = 0;
}

static void copy_names(struct gk_sim_name *target, const struct gk_sim_name *source)
{
    clear_names(target);
    for (uint32_t i = 0; i < GK_SIM_DISK_NAMES_MAX; i++) {
        target[i] = source[i];
        (void)take(target[i].inode);
    }
}

static void change_names(struct gk_disk *disk, const struct gk_sim_change *change)
{
    if (disk->changes_count == disk->changes_room) {
        disk->changes_room = disk->changes_room ? 2 * disk->changes_room : 16;
        disk->changes = realloc(disk->changes, disk->changes_room * sizeof(*disk->changes));
        GK_ASSERT(disk->changes);
    }
    disk->changes[disk->changes_count++] = *change;
    (void)take(change->inode);
    apply_change(disk->names, change);
}

/* False: the process is dead, or dies in this call. */
static bool lives(struct gk_disk *disk, int *ret_errno)
{
    if (!disk->dead && ++disk->calls == disk->die_at) {
        disk->dead = true;
    }
    *ret_errno = EIO;
    return !disk->dead;
}

static enum gk_err no_room(struct gk_disk *disk, int *ret_errno)
{
    disk->refused++;
    *ret_errno = ENOSPC;
    return GK_E_LIMIT;
}

static void disk_close(struct gk_disk *disk)
{
    if (disk) {
        disk->locked = false;
    }
}

static enum gk_err disk_lock(struct gk_disk *disk, const char *path, int *ret_errno)
{
    (void)path;
    GK_ASSERT(!disk->locked); /* one process a shard */
    disk->locked = true;
    *ret_errno = 0;
    return GK_OK;
}

static enum gk_err disk_list(struct gk_disk *disk, bool (*each)(void *context, const char *name),
                             void *context, int *ret_errno)
{
    *ret_errno = EIO;
    for (uint32_t i = 0; i < GK_SIM_DISK_NAMES_MAX && !disk->dead; i++) {
        if (disk->names[i].inode && !each(context, disk->names[i].text)) {
            break;
        }
    }
    return disk->dead ? GK_E_IO : GK_OK;
}

static enum gk_err create(struct gk_disk *disk, const char *path, int *ret_errno)
{
    struct gk_sim_change change = {.kind = CREATE};

    if (!lives(disk, ret_errno)) {
        return GK_E_IO;
    }
    if (disk->full) {
        return no_room(disk, ret_errno);
    }
    set_text(change.name, path);
    change.inode = calloc(1, sizeof(*change.inode));
    GK_ASSERT(change.inode);
    change_names(disk, &change);
    return GK_OK;
}

static enum gk_err disk_open(struct gk_disk *disk, const char *path, bool to_create, bool writable,
                             struct gk_file **ret_file, int *ret_errno)
{
    struct gk_file *file;

    (void)writable;
    *ret_errno = EIO;
    if (disk->dead) {
        return GK_E_IO;
    }
    if (!find(disk->names, path)) {
        enum gk_err err = to_create ? create(disk, path, ret_errno) : GK_E_NOTFOUND;

        if (err) {
            *ret_errno = err == GK_E_NOTFOUND ? ENOENT : *ret_errno;
            return err;
        }
    }
    file = calloc(1, sizeof(*file));
    GK_ASSERT(file);
    file->disk = disk;
    file->inode = take(find(disk->names, path)->inode);
    *ret_file = file;
    return GK_OK;
}

static void disk_close_file(struct gk_file *file)
{
    if (file) {
        drop(file->inode);
        free(file);
    }
}

static enum gk_err disk_size(struct gk_file *file, uint64_t *ret_size, int *ret_errno)
{
    *ret_errno = EIO;
    *ret_size = file->inode->now_size;
    return file->disk->dead ? GK_E_IO : GK_OK;
}

static enum gk_err disk_read(struct gk_file *file, uint64_t offset, void *target, size_t size,
                             int *ret_errno)
{
    const struct gk_sim_inode *inode = file->inode;

    *ret_errno = EIO;
    if (file->disk->dead) {
        return GK_E_IO;
    }
    *ret_errno = 0;
    if (offset > inode->now_size || size > inode->now_size - offset) {
        return GK_E_CORRUPT;
    }
    memcpy(target, inode->now + offset, size);
    return GK_OK;
}

static void put_pieces(struct gk_file *file, uint64_t offset, const struct gk_piece_of_file *pieces,
                       uint32_t count, uint64_t most)
{
    for (uint32_t i = 0; i < count && most > 0; i++) {
        uint64_t size = gk_min_u64(pieces[i].size, most);

        if (size > 0) {
            put(file->inode, offset, pieces[i].data, size);
        }
        offset += size;
        most -= size;
    }
}

/* A write that fails, or in which the process dies, has written a part, perhaps all.  A full disk
 * may also refuse what has its place already: some copy what they write. */
static enum gk_err disk_write(struct gk_file *file, uint64_t offset,
                              const struct gk_piece_of_file *pieces, uint32_t pieces_count,
                              int *ret_errno)
{
    struct gk_disk *disk = file->disk;
    bool was_dead = disk->dead, alive = lives(disk, ret_errno);
    uint64_t size = 0;

    for (uint32_t i = 0; i < pieces_count; i++) {
        size += pieces[i].size;
    }
    if (was_dead) {
        return GK_E_IO;
    }
    if (alive && ++disk->writes == disk->fail_write_at) {
        put_pieces(file, offset, pieces, pieces_count, gk_sim_below(&disk->rng, size + 1));
        return GK_E_IO;
    }
    if (alive && !(disk->full &&
                   (offset + size > file->inode->now_size || gk_sim_chance(&disk->rng, 1, 2)))) {
        put_pieces(file, offset, pieces, pieces_count, size);
        return GK_OK;
    }
    put_pieces(file, offset, pieces, pieces_count, gk_sim_below(&disk->rng, size + 1));
    return alive ? no_room(disk, ret_errno) : GK_E_IO;
}

static enum gk_err disk_reserve(struct gk_file *file, uint64_t size, int *ret_errno)
{
    struct gk_sim_inode *inode = file->inode;

    if (!lives(file->disk, ret_errno)) {
        return GK_E_IO;
    }
    if (size <= inode->now_size) {
        return GK_OK;
    }
    if (file->disk->full) { /* some of it may have been given */
        resize(inode, gk_sim_between(&file->disk->rng, inode->now_size, size - 1));
        return no_room(file->disk, ret_errno);
    }
    resize(inode, size);
    return GK_OK;
}

static enum gk_err disk_cut(struct gk_file *file, uint64_t size, int *ret_errno)
{
    if (!lives(file->disk, ret_errno)) {
        return GK_E_IO;
    }
    resize(file->inode, size);
    return GK_OK;
}

/* Half of the pages count as written from now on, and are not. */
static void fail_sync(struct gk_disk *disk, struct gk_sim_inode *inode)
{
    for (uint64_t p = 0; p < inode->room / GK_SIM_PAGE; p++) {
        inode->dirty[p] = inode->dirty[p] && gk_sim_chance(&disk->rng, 1, 2);
    }
}

static enum gk_err disk_sync(struct gk_file *file, int *ret_errno)
{
    struct gk_disk *disk = file->disk;
    struct gk_sim_inode *inode = file->inode;

    if (!lives(disk, ret_errno)) {
        return GK_E_IO;
    }
    if (++disk->syncs == disk->fail_at) {
        fail_sync(disk, inode);
        return GK_E_IO;
    }
    for (uint64_t p = 0; p < inode->room / GK_SIM_PAGE && !disk->no_sync; p++) {
        if (inode->dirty[p]) {
            inode->dirty[p] = false;
            memcpy(inode->safe + p * GK_SIM_PAGE, inode->now + p * GK_SIM_PAGE, GK_SIM_PAGE);
        }
    }
    inode->safe_size = disk->no_sync ? inode->safe_size : inode->now_size;
    return GK_OK;
}

static enum gk_err disk_sync_directory(struct gk_disk *disk, int *ret_errno)
{
    if (!lives(disk, ret_errno) || ++disk->syncs == disk->fail_at) {
        return GK_E_IO; /* nothing of it is lost: names are in a journal */
    }
    if (!disk->no_sync) {
        copy_names(disk->safe_names, disk->names);
        clear_changes(disk);
    }
    return GK_OK;
}

static enum gk_err change_name(struct gk_disk *disk, enum change_kind kind, const char *name,
                               const char *to, int *ret_errno)
{
    struct gk_sim_change change = {.kind = kind};

    *ret_errno = EIO;
    if (disk->dead) {
        return GK_E_IO;
    }
    if (!find(disk->names, name)) {
        *ret_errno = ENOENT;
        return GK_E_NOTFOUND;
    }
    if (!lives(disk, ret_errno)) {
        return GK_E_IO;
    }
    set_text(change.name, name);
    set_text(change.to, to);
    change_names(disk, &change);
    return GK_OK;
}

static enum gk_err disk_rename(struct gk_disk *disk, const char *from, const char *to,
                               int *ret_errno)
{
    return change_name(disk, RENAME, from, to, ret_errno);
}

static enum gk_err disk_remove(struct gk_disk *disk, const char *path, int *ret_errno)
{
    return change_name(disk, REMOVE, path, "", ret_errno);
}

const struct gk_disk_ops *gk_sim_disk_ops(void)
{
    static const struct gk_disk_ops ops = {
        .close = disk_close,
        .lock = disk_lock,
        .list = disk_list,
        .open = disk_open,
        .close_file = disk_close_file,
        .size = disk_size,
        .read = disk_read,
        .write = disk_write,
        .reserve = disk_reserve,
        .cut = disk_cut,
        .sync = disk_sync,
        .sync_directory = disk_sync_directory,
        .rename = disk_rename,
        .remove = disk_remove,
    };

    return &ops;
}

struct gk_disk *gk_sim_disk_new(uint64_t seed)
{
    struct gk_disk *disk = calloc(1, sizeof(*disk));

    GK_ASSERT(disk);
    disk->rng.state = seed;
    return disk;
}

void gk_sim_disk_free(struct gk_disk *disk)
{
    if (disk) {
        gk_sim_disk_wipe(disk);
        free(disk->changes);
        free(disk);
    }
}

void gk_sim_disk_wipe(struct gk_disk *disk)
{
    clear_names(disk->names);
    clear_names(disk->safe_names);
    clear_changes(disk);
}

void gk_sim_disk_next_life(struct gk_disk *disk)
{
    GK_ASSERT(!disk->locked);
    disk->dead = false;
    disk->die_at = disk->die_again > 0 ? disk->calls + disk->die_again : 0;
    disk->die_again = 0;
}

static bool survives(struct gk_disk *disk, enum gk_sim_loss loss)
{
    return loss == GK_SIM_LOSS_NONE ||
           (loss == GK_SIM_LOSS_SOME && gk_sim_chance(&disk->rng, 1, 2));
}

static void lose_names(struct gk_disk *disk, enum gk_sim_loss loss)
{
    uint64_t prefix = loss == GK_SIM_LOSS_NONE  ? disk->changes_count
                      : loss == GK_SIM_LOSS_ALL ? 0
                                                : gk_sim_below(&disk->rng, disk->changes_count + 1);

    copy_names(disk->names, disk->safe_names);
    for (uint32_t i = 0; i < disk->changes_count; i++) {
        if (disk->unordered ? survives(disk, loss) : i < prefix) {
            apply_change(disk->names, &disk->changes[i]);
        }
    }
    copy_names(disk->safe_names, disk->names);
    clear_changes(disk);
}

static uint64_t draw_size(struct gk_disk *disk, const struct gk_sim_inode *inode,
                          enum gk_sim_loss loss)
{
    uint64_t lo = gk_min_u64(inode->now_size, inode->safe_size);
    uint64_t hi = gk_max_u64(inode->now_size, inode->safe_size);

    if (loss == GK_SIM_LOSS_SOME && gk_sim_chance(&disk->rng, 1, 3)) {
        return gk_sim_between(&disk->rng, lo, hi);
    }
    return survives(disk, loss) ? inode->now_size : inode->safe_size;
}

/* New bytes up to some byte, old ones behind it. */
static void tear(struct gk_disk *disk, struct gk_sim_inode *inode, uint64_t page,
                 enum gk_sim_loss loss)
{
    uint8_t *now = inode->now + page * GK_SIM_PAGE, *safe = inode->safe + page * GK_SIM_PAGE;
    uint64_t from = survives(disk, loss) ? GK_SIM_PAGE : 0;

    if (loss == GK_SIM_LOSS_SOME && gk_sim_chance(&disk->rng, 1, 4)) {
        from = gk_sim_below(&disk->rng, GK_SIM_PAGE);
    }
    memcpy(now + from, safe + from, GK_SIM_PAGE - from);
}

static void lose_pages(struct gk_disk *disk, struct gk_sim_inode *inode, enum gk_sim_loss loss)
{
    uint64_t size = draw_size(disk, inode, loss);

    for (uint64_t p = 0; p < inode->room / GK_SIM_PAGE; p++) {
        if (inode->dirty[p]) {
            tear(disk, inode, p, loss);
        } else {
            memcpy(inode->now + p * GK_SIM_PAGE, inode->safe + p * GK_SIM_PAGE, GK_SIM_PAGE);
        }
        inode->dirty[p] = false;
    }
    make_room(inode, size);
    memset(inode->now + size, 0, inode->room - size);
    memcpy(inode->safe, inode->now, inode->room);
    inode->now_size = inode->safe_size = size;
}

void gk_sim_disk_power_off(struct gk_disk *disk, enum gk_sim_loss loss)
{
    GK_ASSERT(!disk->locked);
    lose_names(disk, loss);
    for (uint32_t i = 0; i < GK_SIM_DISK_NAMES_MAX; i++) {
        if (disk->names[i].inode) {
            lose_pages(disk, disk->names[i].inode, loss);
        }
    }
}

uint64_t gk_sim_disk_unsynced(const struct gk_disk *disk)
{
    uint64_t pages = 0;

    for (uint32_t i = 0; i < GK_SIM_DISK_NAMES_MAX; i++) {
        const struct gk_sim_inode *inode = disk->names[i].inode;

        for (uint64_t p = 0; inode && p < inode->room / GK_SIM_PAGE; p++) {
            pages += inode->dirty[p];
        }
    }
    return pages * GK_SIM_PAGE;
}
