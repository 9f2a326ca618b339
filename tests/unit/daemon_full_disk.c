/* Goal: the disk of a fault script is full when told so and only then, leaves a part of a write as
 * a real one does, and hands everything else on.  Method: the system's disk beneath, in a folder
 * of its own. */
#include "server/full_disk.h"

#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool count_names(void *context, const char *name)
{
    *(int *)context += name[0] != '.';
    return true;
}

Test(daemon_full_disk, full_and_free)
{
    const struct gk_disk_ops *ops = gk_full_disk_ops();
    const struct gk_piece_of_file piece = {"abcdefgh", 8};
    char path[] = "/tmp/gkps-disk-XXXXXX", text[8];
    struct gk_disk *disk;
    struct gk_file *file;
    uint64_t size = 0;
    int number = 0, names = 0;

    cr_assert_not_null(mkdtemp(path));
    cr_assert_eq(gk_disk_open(path, false, &disk, &number), GK_OK);
    disk = gk_full_disk_new(gk_disk_system(), disk);
    cr_assert_not_null(disk);
    cr_assert_eq(ops->lock(disk, "LOCK", &number), GK_OK);
    cr_assert_eq(ops->open(disk, "none", false, false, &file, &number), GK_E_NOTFOUND);
    cr_assert_eq(ops->open(disk, "a", true, true, &file, &number), GK_OK);
    cr_assert_eq(ops->write(file, 0, &piece, 1, &number), GK_OK);
    cr_assert_eq(ops->reserve(file, 4096, &number), GK_OK);

    gk_full_disk_set(disk, true);
    number = 0;
    cr_assert_eq(ops->write(file, 8, &piece, 1, &number), GK_E_LIMIT);
    cr_assert_eq(number, ENOSPC);
    cr_assert_eq(ops->reserve(file, 8192, &number), GK_E_LIMIT);
    cr_assert_eq(ops->read(file, 8, text, 4, &number), GK_OK);
    cr_assert_arr_eq(text, "abcd", 4, "no part of the write is there");
    cr_assert_eq(ops->cut(file, 8, &number), GK_OK);
    cr_assert_eq(ops->sync(file, &number), GK_OK);

    gk_full_disk_set(disk, false);
    cr_assert_eq(ops->write(file, 8, &piece, 1, &number), GK_OK);
    cr_assert_eq(ops->size(file, &size, &number), GK_OK);
    cr_assert_eq(size, 16);
    ops->close_file(file);
    ops->close_file(NULL);
    cr_assert_eq(ops->rename(disk, "a", "b", &number), GK_OK);
    cr_assert_eq(ops->sync_directory(disk, &number), GK_OK);
    cr_assert_eq(ops->list(disk, count_names, &names, &number), GK_OK);
    cr_assert_eq(names, 2);
    cr_assert_eq(ops->remove(disk, "b", &number), GK_OK);
    cr_assert_eq(ops->remove(disk, "LOCK", &number), GK_OK);
    ops->close(disk);
    ops->close(NULL);
    cr_assert_eq(rmdir(path), 0);
}
