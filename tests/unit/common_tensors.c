/* Goal: what gk_tensors_write() writes is read back bit for bit in both formats, what others write
 * (deflated archives, unaligned headers, foreign types) is read or refused in words, and no file
 * makes the reader step outside of it.
 * Method: round trips, archives built here with zlib, every truncation and single flipped bits (run
 * under ASan); an npz notices each flipped bit of its values. */
#include "common/bits.h"
#include "common/tensors.h"

#include <criterion/criterion.h>
#include <zlib.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct scratch {
    char path[64];
};

static struct scratch scratch_new(void)
{
    struct scratch scratch;
    int fd;

    (void)snprintf(scratch.path, sizeof(scratch.path), "/tmp/gkps-tensors-XXXXXX");
    fd = mkstemp(scratch.path);
    cr_assert(fd >= 0);
    (void)close(fd);
    return scratch;
}

static void put(const struct scratch *scratch, const void *bytes, size_t size)
{
    FILE *file = fopen(scratch->path, "wb");

    cr_assert(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

static uint8_t *get(const struct scratch *scratch, size_t *ret_size)
{
    FILE *file = fopen(scratch->path, "rb");
    uint8_t *bytes = malloc(1 << 16);

    cr_assert(file && bytes);
    *ret_size = fread(bytes, 1, 1 << 16, file);
    (void)fclose(file);
    return bytes;
}

static float values[40];

static void sample(struct gk_tensors *tensors)
{
    memset(tensors, 0, sizeof(*tensors));
    for (int i = 0; i < 40; i++) {
        values[i] = gk_bits_float((uint32_t)gk_mix64((uint64_t)i));
    }
    tensors->count = 3;
    tensors->list[0] = (struct gk_tensors_entry){
        .name = "fc1.weight", .dims = {4, 5}, .dims_count = 2, .count = 20, .values = values};
    tensors->list[1] = (struct gk_tensors_entry){
        .name = "fc1.bias", .dims = {7}, .dims_count = 1, .count = 7, .values = values + 20};
    tensors->list[2] =
        (struct gk_tensors_entry){.name = "scale", .count = 1, .values = values + 27};
}

static void write_sample(const struct scratch *scratch, enum gk_tensors_format format)
{
    const struct gk_tensors_note note = {"version", "7"};
    const struct gk_tensors_notes notes = {&note, 1};
    static struct gk_tensors tensors;
    struct gk_words words = {""};
    FILE *file = fopen(scratch->path, "wb");

    sample(&tensors);
    cr_assert(file);
    cr_assert(gk_tensors_write(file, format, &tensors, &notes, &words) == GK_OK, "%s", words.text);
    cr_assert(fclose(file) == 0);
}

static void expect_sample(const struct gk_tensors *read)
{
    static struct gk_tensors tensors;

    sample(&tensors);
    cr_assert_eq(read->count, tensors.count);
    for (uint32_t i = 0; i < tensors.count; i++) {
        const struct gk_tensors_entry *want = &tensors.list[i];
        const struct gk_tensors_entry *have = gk_tensors_find(read, want->name);

        cr_assert(have, "%s", want->name);
        cr_assert_eq(have->dims_count, want->dims_count);
        cr_assert(memcmp(have->dims, want->dims, sizeof(have->dims)) == 0, "%s", want->name);
        cr_assert_eq(have->count, want->count);
        cr_assert(memcmp(have->values, want->values, want->count * sizeof(float)) == 0, "%s",
                  want->name);
    }
    cr_assert(!gk_tensors_find(read, "fc1"));
}

Test(tensors, round_trip)
{
    struct scratch scratch = scratch_new();

    for (int format = GK_TENSORS_SAFETENSORS; format <= GK_TENSORS_NPZ; format++) {
        struct gk_tensors *read;
        struct gk_words words = {""};

        write_sample(&scratch, (enum gk_tensors_format)format);
        cr_assert(gk_tensors_read(scratch.path, &read, &words) == GK_OK, "%s", words.text);
        expect_sample(read);
        gk_tensors_free(read);
    }
    (void)unlink(scratch.path);
}

/* One member, packed, with a version 2 header as numpy writes it when names are long. */
static size_t deflated(uint8_t *ret)
{
    static const char header[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }\n";
    uint8_t npy[256] = {0x93, 'N', 'U', 'M', 'P', 'Y', 2, 0};
    uint32_t length = (uint32_t)strlen(header), size, crc;
    z_stream stream = {.next_out = ret + 30 + 5, .avail_out = 500};
    uint8_t *central;

    memcpy(npy + 8, &length, 4);
    memcpy(npy + 12, header, length);
    memcpy(npy + 12 + length, values, 24);
    size = 12 + length + 24;
    crc = (uint32_t)crc32(0, npy, size);
    stream.next_in = npy;
    stream.avail_in = size;
    cr_assert(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    cr_assert(deflate(&stream, Z_FINISH) == Z_STREAM_END);
    memset(ret, 0, 30);
    memcpy(ret, "PK\3\4", 4); /* sizes of a stream: only the directory knows them */
    ret[26] = 5;
    memcpy(ret + 30, "w.npy", 5);
    central = stream.next_out;
    memset(central, 0, 46 + 5 + 22);
    memcpy(central, "PK\1\2", 4);
    central[10] = 8;
    gk_put_u32(central + 16, crc);
    gk_put_u32(central + 20, (uint32_t)stream.total_out);
    gk_put_u32(central + 24, size);
    central[28] = 5;
    memcpy(central + 46, "w.npy", 5);
    memcpy(central + 51, "PK\5\6", 4);
    central[51 + 8] = central[51 + 10] = 1;
    gk_put_u32(central + 51 + 12, 51);
    gk_put_u32(central + 51 + 16, (uint32_t)(central - ret));
    (void)deflateEnd(&stream);
    return (size_t)(central - ret) + 51 + 22;
}

Test(tensors, deflated_archive)
{
    struct scratch scratch = scratch_new();
    static struct gk_tensors unused;
    struct gk_tensors *read;
    struct gk_words words = {""};
    uint8_t bytes[1024];
    size_t size;

    sample(&unused);
    size = deflated(bytes);
    put(&scratch, bytes, size);
    cr_assert(gk_tensors_read(scratch.path, &read, &words) == GK_OK, "%s", words.text);
    cr_assert(read->count == 1 && strcmp(read->list[0].name, "w") == 0);
    cr_assert(read->list[0].dims[0] == 3 && read->list[0].dims[1] == 2);
    cr_assert(memcmp(read->list[0].values, values, 24) == 0);
    gk_tensors_free(read);
    for (size_t at = 30; at < size;
         at++) { /* no bit of it can be lost and not be noticed or idle */
        bytes[at] ^= 1;
        put(&scratch, bytes, size);
        if (gk_tensors_read(scratch.path, &read, &words) == GK_OK) {
            cr_assert(memcmp(read->list[0].values, values, 24) == 0, "byte %zu", at);
            gk_tensors_free(read);
        } else {
            cr_assert(strncmp(words.text, scratch.path, strlen(scratch.path)) == 0);
        }
        bytes[at] ^= 1;
    }
    (void)unlink(scratch.path);
}

Test(tensors, cut_off_and_flipped)
{
    struct scratch scratch = scratch_new();
    struct gk_tensors *read;
    struct gk_words words;

    for (int format = GK_TENSORS_SAFETENSORS; format <= GK_TENSORS_NPZ; format++) {
        uint8_t *bytes;
        size_t size;

        write_sample(&scratch, (enum gk_tensors_format)format);
        bytes = get(&scratch, &size);
        for (size_t length = 0; length < size; length++) {
            put(&scratch, bytes, length);
            cr_assert(gk_tensors_read(scratch.path, &read, &words) < 0, "%zu of %zu bytes", length,
                      size);
        }
        for (size_t at = 0; at < size; at++) {
            bytes[at] ^= (uint8_t)(1 << at % 8);
            put(&scratch, bytes, size);
            if (gk_tensors_read(scratch.path, &read, &words) == GK_OK) {
                gk_tensors_free(read);
            }
            bytes[at] ^= (uint8_t)(1 << at % 8);
        }
        free(bytes);
    }
    (void)unlink(scratch.path);
}

Test(tensors, refusals_in_words)
{
    static const struct {
        const char *header, *words;
        enum gk_err err;
    } cases[] = {
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", "F64",
         GK_E_UNSUPPORTED},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", "2 elements but 4",
         GK_E_CORRUPT},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,800]}}", "of 16 bytes",
         GK_E_CORRUPT},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "cannot be",
         GK_E_CORRUPT},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967295,4294967295,4],\"data_offsets\":[0,8]}}",
         "cannot be", GK_E_CORRUPT},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,4]}}", "shape",
         GK_E_UNSUPPORTED},
        {"{\"a\":1}", "type", GK_E_UNSUPPORTED},
        {"{\"__metadata__\":{}}", "no tensor", GK_E_CORRUPT},
        {"{\"a\":", "byte", GK_E_CORRUPT},
        {"[]", "neither", GK_E_CORRUPT},
    };
    struct scratch scratch = scratch_new();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t bytes[256] = {0};
        size_t length = strlen(cases[i].header);
        struct gk_tensors *read;
        struct gk_words words = {""};

        gk_put_u64(bytes, length);
        memcpy(bytes + 8, cases[i].header, length);
        put(&scratch, bytes, 8 + length + 16);
        cr_assert_eq(gk_tensors_read(scratch.path, &read, &words), cases[i].err, "%s",
                     cases[i].header);
        cr_assert(strstr(words.text, cases[i].words), "%s: %s", cases[i].header, words.text);
    }
    (void)unlink(scratch.path);
    {
        struct gk_tensors *read;
        struct gk_words words = {""};

        cr_assert_eq(gk_tensors_read(scratch.path, &read, &words), GK_E_NOTFOUND);
        cr_assert(strstr(words.text, "cannot be read"));
        cr_assert_eq(gk_tensors_read("/tmp", &read, &words), GK_E_IO);
        cr_assert_str_eq(words.text, "/tmp: is a folder");
        cr_assert_eq(mkfifo(scratch.path, 0600), 0); /* nobody will ever write to it */
        cr_assert_eq(gk_tensors_read(scratch.path, &read, &words), GK_E_IO);
        cr_assert(strstr(words.text, ": is no regular file"));
        (void)unlink(scratch.path);
    }
}
