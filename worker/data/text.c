/* One file as a text: its bytes are its characters, numbered in their order; the first nine tenths
 * train, the rest tests. */
#include "worker/data/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A sample and the character behind it must fit into the tenth that tests. */
enum { TEST_PART = 10, CHARACTERS_MIN = (GK_DATA_SEQUENCE + 1) * TEST_PART };

/* Numbers of the bytes that occur; how many there are. */
static uint32_t number_bytes(const struct gk_bytes *bytes, uint8_t alphabet[256],
                             uint8_t numbers[256])
{
    bool occurs[256] = {false};
    uint32_t count = 0;

    for (size_t i = 0; i < bytes->count; i++) {
        occurs[bytes->at[i]] = true;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        if (occurs[byte]) {
            alphabet[count] = (uint8_t)byte;
            numbers[byte] = (uint8_t)count++;
        }
    }
    return count;
}

static enum gk_err check(const struct gk_bytes *bytes, struct gk_words *words)
{
    if (bytes->count < CHARACTERS_MIN) {
        gk_words_set(words,
                     "%s: %zu bytes are too short a text: at least %d are needed (a tenth of them "
                     "tests, in sequences of %d)",
                     bytes->name, bytes->count, CHARACTERS_MIN, GK_DATA_SEQUENCE);
        return GK_E_CORRUPT;
    }
    for (size_t i = 1; i < bytes->count; i++) {
        if (bytes->at[i] != bytes->at[0]) {
            return GK_OK;
        }
    }
    gk_words_set(words, "%s: all bytes are the same: there is nothing to learn", bytes->name);
    return GK_E_CORRUPT;
}

enum gk_err gk_text_parse(const struct gk_bytes *bytes, struct gk_dataset **ret_dataset,
                          struct gk_words *words)
{
    uint8_t numbers[256] = {0};
    struct gk_dataset *dataset;
    enum gk_err err = check(bytes, words);

    if (err) {
        return err;
    }
    dataset = calloc(1, sizeof(*dataset));
    if (dataset) {
        dataset->text = malloc(bytes->count);
    }
    if (!dataset || !dataset->text) {
        gk_dataset_free(dataset);
        gk_words_set(words, "%s: out of memory for %zu characters", bytes->name, bytes->count);
        return GK_E_NOMEM;
    }
    dataset->classes = number_bytes(bytes, dataset->alphabet, numbers);
    for (size_t i = 0; i < bytes->count; i++) {
        dataset->text[i] = numbers[bytes->at[i]];
    }
    dataset->sequence = GK_DATA_SEQUENCE;
    dataset->test_characters = bytes->count / TEST_PART;
    dataset->train_characters = bytes->count - dataset->test_characters;
    dataset->train_count = (uint32_t)((dataset->train_characters - 1) / GK_DATA_SEQUENCE);
    dataset->test_count = (uint32_t)((dataset->test_characters - 1) / GK_DATA_SEQUENCE);
    (void)snprintf(dataset->note, sizeof(dataset->note),
                   "%zu characters, %u different: the first nine tenths train, the rest tests",
                   bytes->count, (unsigned)dataset->classes);
    *ret_dataset = dataset;
    return GK_OK;
}

enum gk_err gk_dataset_open_text(const char *path, struct gk_dataset **ret_dataset,
                                 struct gk_words *words)
{
    struct gk_bytes bytes = {.name = path};
    uint8_t *read;
    enum gk_err err;

    if (path[0] == '\0') {
        gk_words_set(words, "text: needs a file: text:FILE");
        return GK_E_CONFIG;
    }
    err = gk_file_read(path, GK_DATA_BYTES_MAX, &read, &bytes.count, words);
    if (err) {
        return err;
    }
    bytes.at = read;
    err = gk_text_parse(&bytes, ret_dataset, words);
    free(read);
    return err;
}
