#include "worker/data/data.h"

#include "worker/data/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sets that are read from somewhere: "<name>:<where>". */
struct reader {
    const char *prefix;
    enum gk_err (*open)(const char *where, struct gk_dataset **ret_dataset, struct gk_words *words);
};

static const struct reader *find_reader(const char *name, const char **ret_where)
{
    static const struct reader readers[] = {{"mnist:", gk_dataset_open_mnist},
                                            {"cifar10:", gk_dataset_open_cifar10},
                                            {"text:", gk_dataset_open_text}};

    for (size_t i = 0; i < sizeof(readers) / sizeof(readers[0]); i++) {
        size_t length = strlen(readers[i].prefix);

        if (!strncmp(name, readers[i].prefix, length)) {
            *ret_where = name + length;
            return &readers[i];
        }
    }
    return NULL;
}

enum gk_err gk_dataset_open(const char *name, struct gk_dataset **ret_dataset,
                            struct gk_words *words)
{
    struct gk_dataset *dataset;
    const char *where;
    const struct reader *reader = find_reader(name, &where);
    enum gk_err err;

    if (!strcmp(name, "digits")) {
        err = gk_dataset_open_digits(&dataset, words);
    } else if (reader) {
        err = reader->open(where, &dataset, words);
    } else {
        gk_words_set(words,
                     "there is no data set \"%s\"; choose digits, mnist:DIR, cifar10:DIR or "
                     "text:FILE",
                     name);
        err = GK_E_CONFIG;
    }
    if (err) {
        return err;
    }
    (void)snprintf(dataset->name, sizeof(dataset->name), "%s", name);
    *ret_dataset = dataset;
    return GK_OK;
}

void gk_dataset_free(struct gk_dataset *dataset)
{
    if (!dataset) {
        return;
    }
    free(dataset->train);
    free(dataset->train_labels);
    free(dataset->test);
    free(dataset->test_labels);
    free(dataset->train_pixels);
    free(dataset->test_pixels);
    free(dataset->text);
    free(dataset);
}

void gk_dataset_gather(const struct gk_dataset *dataset, const uint32_t *samples, uint32_t count,
                       float *x, uint32_t *labels)
{
    size_t features = dataset->features;

    for (uint32_t i = 0; i < count; i++) {
        memcpy(x + i * features, dataset->train + samples[i] * features, features * sizeof(*x));
        labels[i] = dataset->train_labels[samples[i]];
    }
}
