/* A folder of a test's own, for files of data sets. */
#ifndef GK_TESTS_UNIT_DATA_FOLDER_H
#define GK_TESTS_UNIT_DATA_FOLDER_H

#include <criterion/criterion.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = P_tmpdir "/gkps-data-XXXXXX";

static void path_of(char *path, size_t room, const char *file)
{
    (void)snprintf(path, room, "%s/%s", folder, file);
}

static void empty_folder(void)
{
    DIR *stream = opendir(folder);
    struct dirent *entry;

    cr_assert(stream);
    while ((entry = readdir(stream))) {
        char path[512];

        path_of(path, sizeof(path), entry->d_name);
        (void)(strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && remove(path));
    }
    (void)closedir(stream);
}

static void make_folder(void)
{
    cr_assert(mkdtemp(folder));
}

static void remove_folder(void)
{
    empty_folder();
    (void)rmdir(folder);
}

#endif
