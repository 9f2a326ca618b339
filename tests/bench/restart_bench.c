/* What durable state costs: a restart beside reading the same bytes, a commit's record beside the
 * arithmetic that a shard without a log does anyway, a fold beside copying a snapshot.
 *
 * usage: gk_bench_restart [--params N] [--records N] [--density F] [--optimizer sgd|momentum]
 *                         [--directory DIR]
 *
 * Everything is measured in the same run, in DIR (a fresh folder of it), with a warm cache. */
#include "common/backend.h"
#include "common/bits.h"
#include "proto/spec.h"
#include "server/core/snapshot.h"
#include "server/store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct bench {
    uint64_t params, records;
    double density;
    uint32_t optimizer;
    char directory[256];

    const struct gk_vector_ops *ops;
    struct gk_queue *queue;
    struct gk_spec spec;
    struct gk_tensor tensor;
    uint8_t spec_bytes[GK_SPEC_BYTES_MAX];
    size_t spec_bytes_count;
    struct gk_image *image;
    float *planes[3];
    uint32_t *idx;
    float *val;
    uint64_t entries;
    struct gk_contribution contribution;
    struct gk_server_memory memory; /* of the store that was opened last */
};

static double now(void)
{
    struct timespec at;

    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* Of all threads; on a busy machine the better measure. */
static double cpu_time(void)
{
    struct timespec at;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static int failed(const char *what, const struct gk_words *words)
{
    (void)fprintf(stderr, "gk_bench_restart: %s: %s\n", what, words->text);
    return 1;
}

static enum gk_err allocate(void *context, const struct gk_image *image,
                            struct gk_server_memory *ret_memory, struct gk_words *words)
{
    struct bench *bench = context;
    size_t bytes = (size_t)(image->hi - image->lo) * sizeof(float);

    memset(&bench->memory, 0, sizeof(bench->memory));
    for (uint32_t p = 0; p < gk_image_planes(image); p++) {
        bench->memory.planes[p] = bench->ops->alloc(bench->queue, GK_MEMORY_DEVICE, bytes);
        if (!bench->memory.planes[p]) {
            gk_words_set(words, "no memory");
            return GK_E_NOMEM;
        }
    }
    *ret_memory = bench->memory;
    return GK_OK;
}

static void release(struct bench *bench)
{
    for (uint32_t p = 0; p < 3; p++) {
        bench->ops->free(bench->queue, GK_MEMORY_DEVICE, bench->memory.planes[p]);
    }
    memset(&bench->memory, 0, sizeof(bench->memory));
}

static enum gk_err open_store(struct bench *bench, enum gk_sync_policy sync,
                              struct gk_store **ret_store, struct gk_recovered *ret_recovered,
                              struct gk_words *words)
{
    struct gk_store_setup setup = {
        .disk_ops = gk_disk_system(),
        .directory = bench->directory,
        .job = "bench",
        .servers = 1,
        .workers = 1,
        .sync = sync,
        .fold_every = 0,
        .ops = bench->ops,
        .allocate = allocate,
        .context = bench,
    };
    int number = 0;
    enum gk_err err = gk_disk_open(bench->directory, true, &setup.disk, &number);

    if (err) {
        gk_words_set(words, "cannot open %s (error %d)", bench->directory, number);
        return err;
    }
    return gk_store_open(&setup, ret_store, ret_recovered, words);
}

static bool remove_name(void *context, const char *name)
{
    struct bench *bench = context;
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/%s", bench->directory, name);
    if (name[0] != '.') {
        (void)unlink(path);
    }
    return true;
}

static void remove_files(struct bench *bench)
{
    struct gk_disk *disk;
    int number;

    if (gk_disk_open(bench->directory, false, &disk, &number) == GK_OK) {
        (void)gk_disk_system()->list(disk, remove_name, bench, &number);
        gk_disk_system()->close(disk);
    }
}

static int prepare(struct bench *bench)
{
    struct gk_words words = {""};

    if (gk_vector_cpu(GK_CPU_AUTO, &bench->ops, &words) != GK_OK ||
        bench->ops->open(&bench->queue, &words) != GK_OK) {
        return failed("vector table", &words);
    }
    (void)snprintf(bench->tensor.name, sizeof(bench->tensor.name), "all");
    bench->tensor.count = bench->params;
    bench->tensor.dims[0] = (uint32_t)bench->params;
    bench->tensor.dims_count = 1;
    bench->spec = (struct gk_spec){
        .workers = 1,
        .servers = 1,
        .mode = GK_MODE_BSP,
        .lost_policy = GK_LOST_WAIT,
        .nonfinite_policy = GK_NONFINITE_ABORT,
        .steps = 1000000,
        .push_max = bench->params,
        .optimizer = bench->optimizer,
        .lr = 0.1f,
        .momentum = bench->optimizer == GK_OPTIMIZER_SGD ? 0 : 0.9f,
        .schedule = GK_SCHEDULE_CONSTANT,
        .model = "bench",
        .params_count = bench->params,
        .tensors = &bench->tensor,
        .tensors_count = 1,
    };
    if (gk_spec_encode(&bench->spec, bench->spec_bytes, &bench->spec_bytes_count, &words) !=
            GK_OK ||
        gk_image_new(0, 1, 1, &bench->image) != GK_OK) {
        return failed("spec", &words);
    }
    for (int p = 0; p < 3; p++) {
        bench->planes[p] = bench->ops->alloc(bench->queue, GK_MEMORY_DEVICE,
                                             (size_t)bench->params * sizeof(float));
    }
    bench->idx =
        bench->ops->alloc(bench->queue, GK_MEMORY_PINNED, (size_t)bench->params * sizeof(float));
    bench->val =
        bench->ops->alloc(bench->queue, GK_MEMORY_PINNED, (size_t)bench->params * sizeof(float));
    if (!bench->planes[2] || !bench->idx || !bench->val) {
        (void)fprintf(stderr, "gk_bench_restart: no memory\n");
        return 1;
    }
    for (uint64_t i = 0; i < bench->params; i++) {
        bench->planes[0][i] = (float)(gk_mix64(i) % 2000) / 1000 - 1;
    }
    return 0;
}

/* Another set of indices for each record, as the union of some pushes would be. */
static void draw_round(struct bench *bench, uint64_t version, struct gk_record *record)
{
    uint64_t stride = (uint64_t)(1 / bench->density);

    bench->entries = 0;
    for (uint64_t i = gk_mix64(version) % stride; i < bench->params;
         i += 1 + gk_mix64(i ^ version) % (2 * stride - 1)) {
        bench->idx[bench->entries] = (uint32_t)i;
        bench->val[bench->entries++] = (float)(i % 17) - 8;
    }
    bench->contribution =
        (struct gk_contribution){.step = version, .samples = 32, .verdict = GK_VERDICT_APPLIED};
    *record = (struct gk_record){
        .type = GK_RECORD_ROUND,
        .job_uid = bench->image->job_uid,
        .version = version + 1,
        .step = version,
        .optimizer_step = version,
        .optimizer = bench->optimizer,
        .hyper = {.lr = 0.1f, .momentum = bench->spec.momentum},
        .samples = 32,
        .contributions = &bench->contribution,
        .contributions_count = 1,
        .idx = bench->density >= 1 ? NULL : bench->idx,
        .val = bench->val,
        .count = bench->density >= 1 ? bench->params : bench->entries,
    };
}

/* What a shard does with the round without a log. */
static enum gk_err apply(struct bench *bench, const struct gk_record *record)
{
    struct gk_update update = {
        .idx = record->idx,
        .val = record->val,
        .n = record->count,
        .samples = record->samples,
        .hyper = record->hyper,
    };
    struct gk_apply_args args = {
        .optimizer = (enum gk_optimizer)bench->optimizer,
        .p = bench->planes[0],
        .m = bench->optimizer == GK_OPTIMIZER_SGD ? NULL : bench->planes[1],
        .len = bench->params,
        .updates = &update,
        .updates_count = 1,
    };

    return bench->ops->wait(bench->queue, bench->ops->apply(bench->queue, &args));
}

static uint64_t state_hash(struct bench *bench)
{
    uint64_t sum = 0;

    for (uint32_t p = 0; p < gk_image_planes(bench->image); p++) {
        uint64_t hash = 0;
        struct gk_hash_args args = {
            .x = bench->planes[p], .n = bench->params, .plane = p, .hash = &hash};

        (void)bench->ops->wait(bench->queue, bench->ops->hash(bench->queue, &args)); /* no error */
        sum += hash;
    }
    return sum;
}

static enum gk_err write_history(struct bench *bench, enum gk_sync_policy sync,
                                 struct gk_words *words)
{
    struct gk_record record = {
        .type = GK_RECORD_INIT,
        .job_uid = {1, 2},
        .init_id = 3,
        .optimizer = bench->optimizer,
        .hi = bench->params,
        .spec = bench->spec_bytes,
        .spec_bytes = bench->spec_bytes_count,
        .params = bench->planes[0],
    };
    struct gk_recovered recovered;
    struct gk_store *store;
    uint64_t durable;
    double applying = 0, logging = 0;
    enum gk_err err;

    remove_files(bench);
    err = open_store(bench, sync, &store, &recovered, words);
    if (err) {
        return err;
    }
    bench->image->job_uid = record.job_uid;
    bench->image->optimizer = bench->optimizer;
    err = gk_store_append(store, &record, &durable, words);
    for (uint64_t v = 0; v < bench->records && !err; v++) {
        double from;

        draw_round(bench, v, &record);
        record.hashed = v % GK_HASH_EVERY == 0;
        record.state_hash = record.hashed ? state_hash(bench) : 0;
        from = now();
        err = gk_store_append(store, &record, &durable, words);
        logging += now() - from;
        from = now();
        err = err ? err : apply(bench, &record);
        applying += now() - from;
    }
    gk_store_close(store);
    release(bench);
    if (!err) {
        (void)printf(
            "append, sync %-7s %8.3f ms a record of %" PRIu64
            " entries; optimizer step %8.3f ms; with the log %.2f x without\n",
            sync == GK_SYNC_NEVER ? "never:" : "always:", 1e3 * logging / (double)bench->records,
            record.count, 1e3 * applying / (double)bench->records, (applying + logging) / applying);
    }
    return err;
}

struct reading {
    struct bench *bench;
    uint8_t *buffer;
    uint64_t bytes;
};

enum { READ_BYTES = 4 << 20 };

static bool read_file(void *context, const char *name)
{
    struct reading *reading = context;
    char path[512];
    size_t got;
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", reading->bench->directory, name);
    file = name[0] == '.' ? NULL : fopen(path, "rb");
    if (!file) {
        return true;
    }
    (void)setvbuf(file, NULL, _IONBF, 0);
    do {
        got = fread(reading->buffer, 1, READ_BYTES, file);
        reading->bytes += got;
    } while (got > 0);
    (void)fclose(file);
    return true;
}

/* Read all files of the directory into one buffer. */
static double read_time(struct bench *bench, uint8_t *buffer, uint64_t *ret_bytes)
{
    struct reading reading = {bench, buffer, 0};
    struct gk_disk *disk;
    double from = now();
    int number;

    if (gk_disk_open(bench->directory, false, &disk, &number) == GK_OK) {
        (void)gk_disk_system()->list(disk, read_file, &reading, &number);
        gk_disk_system()->close(disk);
    }
    *ret_bytes = reading.bytes;
    return now() - from;
}

enum { REPEATS = 5 };

static double least(const double *list)
{
    double best = list[0];

    for (int i = 1; i < REPEATS; i++) {
        best = list[i] < best ? list[i] : best;
    }
    return best;
}

static int measure_restart(struct bench *bench)
{
    double reads[REPEATS], restarts[REPEATS], cpu[REPEATS];
    uint8_t *buffer = malloc(READ_BYTES);
    struct gk_words words = {""};
    uint64_t bytes = 0;

    for (int i = 0; i < REPEATS; i++) {
        struct gk_recovered recovered;
        struct gk_store *store;
        double from;
        bool same;

        reads[i] = read_time(bench, buffer, &bytes);
        cpu[i] = cpu_time();
        from = now();
        if (open_store(bench, GK_SYNC_ALWAYS, &store, &recovered, &words) != GK_OK) {
            free(buffer);
            return failed("restart", &words);
        }
        restarts[i] = now() - from;
        cpu[i] = cpu_time() - cpu[i];
        same = memcmp(recovered.memory.planes[0], bench->planes[0],
                      (size_t)bench->params * sizeof(float)) == 0;
        gk_store_close(store);
        release(bench);
        if (!same) {
            (void)fprintf(stderr, "gk_bench_restart: the restart gives other parameters\n");
            free(buffer);
            return 1;
        }
    }
    free(buffer);
    (void)printf("restart: %8.1f ms (%.1f ms of a processor) for %" PRIu64
                 " parameters and %" PRIu64 " records; reading the same %" PRIu64
                 " MiB: %8.1f ms; ratio %.2f\n",
                 1e3 * least(restarts), 1e3 * least(cpu), bench->params, bench->records,
                 bytes >> 20, 1e3 * least(reads), least(restarts) / least(reads));
    return 0;
}

static bool option(struct bench *bench, const char *name, const char *value)
{
    if (strcmp(name, "--params") == 0) {
        bench->params = strtoull(value, NULL, 10);
    } else if (strcmp(name, "--records") == 0) {
        bench->records = strtoull(value, NULL, 10);
    } else if (strcmp(name, "--density") == 0) {
        bench->density = strtod(value, NULL);
    } else if (strcmp(name, "--directory") == 0) {
        (void)snprintf(bench->directory, sizeof(bench->directory), "%s/gk-bench-XXXXXX", value);
    } else if (strcmp(name, "--optimizer") == 0) {
        bench->optimizer = strcmp(value, "sgd") == 0 ? GK_OPTIMIZER_SGD : GK_OPTIMIZER_MOMENTUM;
    } else {
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static struct bench bench = {
        .params = 25000000,
        .records = 100,
        .density = 0.001,
        .optimizer = GK_OPTIMIZER_MOMENTUM,
        .directory = "/tmp/gk-bench-XXXXXX",
    };
    struct gk_words words = {""};
    int result = 0;

    for (int i = 1; i < argc; i += 2) {
        if (i + 1 >= argc || !option(&bench, argv[i], argv[i + 1])) {
            (void)fprintf(stderr, "usage: gk_bench_restart [--params N] [--records N] [--density F]"
                                  " [--optimizer sgd|momentum] [--directory DIR]\n");
            return 64;
        }
    }
    if (bench.params < 16 || bench.params > UINT32_MAX || bench.records < 1 ||
        !(bench.density > 0 && bench.density <= 1) || !mkdtemp(bench.directory)) {
        (void)fprintf(stderr, "gk_bench_restart: nothing to measure there\n");
        return 64;
    }
    result = prepare(&bench);
    for (int never = 0; never < 2 && result == 0; never++) {
        for (uint64_t i = 0; i < bench.params; i++) {
            bench.planes[0][i] = (float)(gk_mix64(i) % 2000) / 1000 - 1;
        }
        memset(bench.planes[1], 0, (size_t)bench.params * sizeof(float));
        if (write_history(&bench, never ? GK_SYNC_NEVER : GK_SYNC_ALWAYS, &words) != GK_OK) {
            result = failed("history", &words);
        }
    }
    result = result ? result : measure_restart(&bench);
    remove_files(&bench);
    (void)rmdir(bench.directory);
    return result;
}
