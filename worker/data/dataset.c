#include "worker/data/data.h"

#include "worker/data/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum gk_err gk_dataset_open(const char *name, struct gk_dataset **ret_dataset,
                            struct gk_words *words)
{
    static const char mnist[] = "mnist:";
    struct gk_dataset *dataset;
    enum gk_err err;

    if (!strcmp(name, "digits")) {
        err = gk_dataset_open_digits(&dataset, words);
    } else if (!strncmp(name, mnist, strlen(mnist))) {
        err = gk_dataset_open_mnist(name + strlen(mnist), &dataset, words);
    } else {
        gk_words_set(words, "there is no data set \"%s\"; choose digits or mnist:DIR", name);
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
