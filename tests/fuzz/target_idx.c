/* IDX arrays, from memory and as the files of a data set.  The first byte says how: bit 0: a data
 * set of two files, the images and, behind them, the labels; bits 1 and 2: images, labels are
 * compressed first.  Then, for a data set, two bytes with the length of the images. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/wire.h"
#include "worker/data/data.h"

#include <zlib.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { AS_FILES = 1 << 0, PACK_IMAGES = 1 << 1, PACK_LABELS = 1 << 2, PATH_BYTES = 4096 };

static char folder[PATH_BYTES];
static struct memory_file images, labels;

static void link_in(const char *name, const struct memory_file *file, bool there)
{
    char path[PATH_BYTES + 64];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    FUZZ_CHECK((there ? symlink(file->path, path) : unlink(path)) == 0);
}

static void leave(void)
{
    link_in("t10k-images-idx3-ubyte", &images, false);
    link_in("t10k-labels-idx1-ubyte", &labels, false);
    (void)rmdir(folder); /* at the end of the process nothing could be done about it */
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *root = getenv("TMPDIR");

    (void)argc;
    (void)argv;
    (void)snprintf(folder, sizeof(folder), "%s/gkps-fuzz-XXXXXX", root ? root : "/tmp");
    FUZZ_CHECK(mkdtemp(folder));
    memory_file_open(&images);
    memory_file_open(&labels);
    link_in("t10k-images-idx3-ubyte", &images, true);
    link_in("t10k-labels-idx1-ubyte", &labels, true);
    FUZZ_CHECK(atexit(leave) == 0);
    return 0;
}

static void put(const struct memory_file *file, const uint8_t *bytes, size_t size, bool pack)
{
    z_stream stream = {.next_in = (z_const Bytef *)(uintptr_t)bytes, .avail_in = (uInt)size};
    uint8_t *packed;
    uLong room;

    if (!pack) {
        memory_file_put(file, bytes, size);
        return;
    }
    FUZZ_CHECK(deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    room = deflateBound(&stream, (uLong)size);
    packed = malloc(room);
    FUZZ_CHECK(packed);
    stream.next_out = packed;
    stream.avail_out = (uInt)room;
    FUZZ_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
    memory_file_put(file, packed, stream.total_out);
    (void)deflateEnd(&stream);
    free(packed);
}

static void parse(const uint8_t *bytes, size_t size)
{
    struct gk_idx idx;
    struct gk_words words = {.text = ""};
    enum gk_err err = gk_idx_parse(bytes, size, &idx, &words);
    uint64_t count = 1;

    if (err) {
        FUZZ_CHECK(err == GK_E_CORRUPT || err == GK_E_LIMIT);
        fuzz_check_words(words.text);
        return;
    }
    FUZZ_CHECK(idx.dims_count >= 1 && idx.dims_count <= 3);
    for (uint32_t i = 0; i < idx.dims_count; i++) {
        FUZZ_CHECK(idx.dims[i] > 0);
        count *= idx.dims[i];
    }
    FUZZ_CHECK(count == idx.count && idx.data >= bytes && idx.data + idx.count == bytes + size);
}

static void check_dataset(const struct gk_dataset *dataset)
{
    FUZZ_CHECK(dataset->train_count > 0 && dataset->test_count > 0);
    FUZZ_CHECK(dataset->features == dataset->rows * dataset->columns && dataset->features > 0);
    for (uint32_t i = 0; i < dataset->train_count; i++) {
        FUZZ_CHECK(dataset->train_labels[i] < dataset->classes);
    }
    for (uint32_t i = 0; i < dataset->test_count; i++) {
        FUZZ_CHECK(dataset->test_labels[i] < dataset->classes);
    }
    for (uint64_t i = 0; i < (uint64_t)dataset->train_count * dataset->features; i++) {
        FUZZ_CHECK(dataset->train[i] >= 0 && dataset->train[i] <= 1);
    }
    for (uint64_t i = 0; i < (uint64_t)dataset->test_count * dataset->features; i++) {
        FUZZ_CHECK(dataset->test[i] >= 0 && dataset->test[i] <= 1);
    }
}

static void open_files(void)
{
    char name[PATH_BYTES + 16];
    struct gk_dataset *dataset = NULL;
    struct gk_words words = {.text = ""};
    enum gk_err err;

    (void)snprintf(name, sizeof(name), "mnist:%s", folder);
    err = gk_dataset_open(name, &dataset, &words);
    if (err) {
        FUZZ_CHECK(err == GK_E_CORRUPT || err == GK_E_LIMIT);
        fuzz_check_words(words.text);
        return;
    }
    check_dataset(dataset);
    gk_dataset_free(dataset);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_bytes in = {.at = data, .left = size};
    uint8_t how = fuzz_take_u8(&in);
    size_t first;

    if (!(how & AS_FILES)) {
        parse(in.at, in.left);
        return 0;
    }
    first = fuzz_take_u8(&in);
    first |= (size_t)fuzz_take_u8(&in) << 8;
    first = first > in.left ? in.left : first;
    put(&images, in.at, first, (how & PACK_IMAGES) != 0);
    put(&labels, in.at + first, in.left - first, (how & PACK_LABELS) != 0);
    open_files();
    return 0;
}
