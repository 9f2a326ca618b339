/* Goal: every barrier of every kernel is needed, and the emulation finds out when it is missing.
 *
 * Method: for each line of the sources of the kernels with a __syncthreads(), a child process runs
 * a workload that takes every kernel through all its branches, without that barrier; it must end
 * with a fault or with results that differ from those of the CPU reference.  A barrier that is
 * never reached, or that nothing depends on, survives and is reported.
 *
 * usage: simt_mutants FOLDER      the folder with the .cu and .cuh files */
#include "tests/simt/simt.h"

extern "C" {
#include "common/backend.h"
#include "common/bits.h"
#include "common/words.h"
#include "cuda/backend.h"
#include "worker/model/model.h"
}

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

struct table {
    const struct gk_vector_ops *ops;
    struct gk_queue *queue;
};

static table tables[2]; /* the reference and the emulated one */
static uint64_t random_state;

static uint64_t draw()
{
    return gk_mix64(++random_state);
}

static float normalish()
{
    return static_cast<float>(static_cast<int64_t>(draw() >> 40) - (1 << 23)) * 0x1p-23f;
}

static void must(bool ok, const char *what)
{
    if (!ok) {
        printf("differs: %s\n", what);
        fflush(stdout);
        _exit(1);
    }
}

static void done(const table &table, struct gk_ticket ticket)
{
    must(table.ops->wait(table.queue, ticket) == GK_OK, "an error");
}

template <typename T>
static bool same(const std::vector<T> &a, const std::vector<T> &b, size_t count)
{
    return memcmp(a.data(), b.data(), count * sizeof(T)) == 0;
}

/* ---- Selection ---- */

struct choice {
    std::vector<float> u, val;
    std::vector<uint32_t> idx;
    struct gk_select_report report;
};

static choice choose(const table &table, const std::vector<float> &g,
                     const std::vector<struct gk_range> &segments, const std::vector<uint64_t> &k,
                     struct gk_select_state *state, const struct gk_select_tune *tune)
{
    choice result;
    struct gk_select_args args = {};

    result.u.resize(g.size());
    result.val.resize(g.size());
    result.idx.resize(g.size());
    args.dst = result.u.data();
    args.g = g.data();
    args.segments = segments.data();
    args.k = k.data();
    args.segments_count = static_cast<uint32_t>(segments.size());
    args.state = state;
    args.policy = GK_NONFINITE_ZERO;
    args.tune = tune;
    args.idx = result.idx.data();
    args.val = result.val.data();
    args.room = g.size();
    args.report = &result.report;
    done(table, table.ops->select(table.queue, &args));
    return result;
}

/* `t` is what the state says of the last threshold; 0: cold. */
static void select_case(const std::vector<float> &g, const std::vector<struct gk_range> &segments,
                        uint64_t k, float t, struct gk_select_tune tune)
{
    std::vector<uint64_t> ks(segments.size(), k);
    choice choices[2];

    for (unsigned i = 0; i < 2; i++) {
        std::vector<struct gk_select_state> states(segments.size(), {t, k, 0.1f});

        choices[i] = choose(tables[i], g, segments, ks, states.data(), &tune);
    }
    must(choices[0].report.n == choices[1].report.n, "number of selected entries");
    must(same(choices[0].u, choices[1].u, g.size()), "u");
    must(same(choices[0].idx, choices[1].idx, choices[0].report.n), "selected indices");
    must(same(choices[0].val, choices[1].val, choices[0].report.n), "selected values");
}

static std::vector<float> random_vector(size_t n, bool ties)
{
    std::vector<float> x(n);

    for (float &value : x) {
        value = ties ? static_cast<float>(static_cast<int>(draw() % 5) - 2) : normalish();
    }
    return x;
}

static void selections()
{
    const struct gk_select_tune small = {32, 0, 1, 0};
    const struct gk_select_tune wide = {96, 0, 1, 0};
    const struct gk_select_tune tight = {64, 0, 1, 1};
    const std::vector<float> g = random_vector(20000, false);
    const std::vector<float> ties = random_vector(20000, true);
    const std::vector<struct gk_range> whole = {{0, 20000}};
    const std::vector<struct gk_range> parts = {
        {0, 700}, {700, 1400}, {1400, 9000}, {9000, 9000}, {9100, 19999}};

    select_case(g, whole, 2000, 0.0f, small); /* a pilot */
    select_case(g, parts, 1100, 0.0f, small); /* some with a pilot */
    select_case(g, whole, 900, 0.95f, small); /* a good guess */
    select_case(g, whole, 900, 1.3f, small);  /* too high */
    select_case(g, parts, 60, 1e6f, small);   /* far too high */
    select_case(g, whole, 900, 0.1f, tight);  /* too low: the candidates do not fit */
    select_case(g, parts, 60, 1.3f, wide);
    select_case(ties, whole, 7000, 0.5f, small);
    select_case(ties, parts, 100, 1.9f, tight);
}

static void thresholds()
{
    const std::vector<float> u = random_vector(40000, false);
    const struct gk_range segments[] = {{0, 100}, {100, 31000}, {31000, 40000}};
    const float t[] = {0.5f, 0.9f, 0.0f};
    std::vector<uint32_t> idx[2];
    std::vector<float> val[2];
    uint64_t n[2][3];

    for (unsigned i = 0; i < 2; i++) {
        struct gk_select_ge_args args = {};

        idx[i].resize(u.size());
        val[i].resize(u.size());
        args.u = u.data();
        args.segments = segments;
        args.t = t;
        args.segments_count = 3;
        args.idx = idx[i].data();
        args.val = val[i].data();
        args.room = u.size();
        args.n = n[i];
        done(tables[i], tables[i].ops->select_ge(tables[i].queue, &args));
    }
    must(memcmp(n[0], n[1], sizeof(n[0])) == 0, "counts above a threshold");
    must(same(idx[0], idx[1], n[0][0] + n[0][1] + n[0][2]), "entries above a threshold");
}

/* ---- The others ---- */

static void moments()
{
    const std::vector<float> u = random_vector(300000, false);
    const struct gk_range segments[] = {{0, 280000}, {280000, 300000}};
    struct gk_stats stats[2][2];

    for (unsigned i = 0; i < 2; i++) {
        struct gk_stats_args args = {};

        args.u = u.data();
        args.segments = segments;
        args.segments_count = 2;
        args.stats = stats[i];
        done(tables[i], tables[i].ops->stats(tables[i].queue, &args));
    }
    for (unsigned s = 0; s < 2; s++) {
        must(memcmp(&stats[0][s], &stats[1][s], offsetof(struct gk_stats, key_max)) == 0,
             "moments");
    }
}

static void sums(size_t len, uint64_t gap)
{
    std::vector<uint32_t> indices[3];
    std::vector<float> values[3];
    struct gk_list lists[3] = {};
    std::vector<uint32_t> idx[2];
    std::vector<float> val[2];
    struct gk_sum_report reports[2];

    for (unsigned l = 0; l < 3; l++) {
        for (uint64_t at = draw() % gap; at < len; at += 1 + draw() % (2 * gap)) {
            indices[l].push_back(static_cast<uint32_t>(at));
            values[l].push_back(normalish());
        }
        lists[l].idx = indices[l].data();
        lists[l].val = values[l].data();
        lists[l].n = indices[l].size();
    }
    for (unsigned i = 0; i < 2; i++) {
        struct gk_sum_args args = {};

        idx[i].resize(len);
        val[i].resize(len);
        args.lists = lists;
        args.lists_count = 3;
        args.len = len;
        args.idx = idx[i].data();
        args.val = val[i].data();
        args.report = &reports[i];
        done(tables[i], tables[i].ops->sum(tables[i].queue, &args));
    }
    must(reports[0].n == reports[1].n && reports[0].dense == reports[1].dense, "form of a sum");
    must(same(val[0], val[1], reports[0].n), "sums");
    must(reports[0].dense || same(idx[0], idx[1], reports[0].n), "indices of sums");
}

static void steps()
{
    const size_t len = 9000;
    std::vector<uint32_t> indices[3];
    std::vector<float> values[3];
    struct gk_update updates[3] = {};
    std::vector<float> p[2], m[2];
    const std::vector<float> p0 = random_vector(len, false);

    for (unsigned u = 0; u < 3; u++) {
        for (uint64_t at = draw() % 5; at < len; at += 1 + draw() % 9) {
            indices[u].push_back(static_cast<uint32_t>(at));
            values[u].push_back(normalish());
        }
        updates[u].idx = indices[u].data();
        updates[u].val = values[u].data();
        updates[u].n = indices[u].size();
        updates[u].samples = 3;
        updates[u].hyper.lr = 0.1f;
        updates[u].hyper.momentum = 0.9f;
    }
    for (unsigned i = 0; i < 2; i++) {
        struct gk_apply_args args = {};

        p[i] = m[i] = p0;
        args.optimizer = GK_OPTIMIZER_MOMENTUM;
        args.p = p[i].data();
        args.m = m[i].data();
        args.len = len;
        args.updates = updates;
        args.updates_count = 3;
        done(tables[i], tables[i].ops->apply(tables[i].queue, &args));
    }
    must(same(p[0], p[1], len) && same(m[0], m[1], len), "parameters");
}

/* ---- Layers ---- */

/* An array for the CPU's layer table, and its copy for the other one. */
struct twin {
    std::vector<float> here;
    float *there;
};

static twin twin_of(const std::vector<float> &x)
{
    const table &cuda = tables[1];
    twin result = {x, nullptr};

    result.there = static_cast<float *>(
        cuda.ops->alloc(cuda.queue, GK_MEMORY_DEVICE, x.size() * sizeof(float)));
    must(result.there, "memory");
    done(cuda, cuda.ops->copy(cuda.queue, result.there, x.data(), x.size() * sizeof(float)));
    return result;
}

/* Both sides have had their slot: the same results; the device's memory goes back. */
static void must_agree(twin &twin, const char *what)
{
    const table &cuda = tables[1];
    std::vector<float> back(twin.here.size());

    done(cuda, cuda.ops->copy(cuda.queue, back.data(), twin.there, back.size() * sizeof(float)));
    must(same(back, twin.here, back.size()), what);
    cuda.ops->free(cuda.queue, GK_MEMORY_DEVICE, twin.there);
}

/* More squares than blocks. */
static void transpositions(const struct gk_layer_ops *layers)
{
    const uint64_t sides[3] = {3, 70, 150};
    const std::vector<float> matrices = random_vector(3 * 70 * 150, false);
    twin x = twin_of(matrices);
    twin y = twin_of(matrices);

    gk_layers_cpu()->transpose(nullptr, y.here.data(), x.here.data(), sides);
    layers->transpose(tables[1].queue, y.there, x.there, sides);
    must_agree(y, "transposed");
    must_agree(x, "what was transposed");
}

/* More tiles than are fetched at a time. */
static void column_sums(const struct gk_layer_ops *layers)
{
    const size_t rows = 40 * GK_LAYER_TILE + 9;
    twin x = twin_of(random_vector(3 * rows, false));
    twin sums = twin_of(random_vector(3, false));

    gk_layers_cpu()->column_sums(nullptr, x.here.data(), rows, 3, sums.here.data());
    layers->column_sums(tables[1].queue, x.there, rows, 3, sums.there);
    must_agree(sums, "column sums");
    must_agree(x, "what was summed");
}

/* More rows than are looked at in one go. */
static void embeddings(const struct gk_layer_ops *layers)
{
    const uint64_t sides[3] = {800, 5, 4};
    twin dy = twin_of(random_vector(800 * 5, false));
    twin dtable = twin_of(random_vector(4 * 5, false));
    std::vector<float> bits(800); /* numbers 0 to 3, whose bits are copied like floats' */
    std::vector<uint32_t> numbers(800);

    for (uint32_t &number : numbers) {
        number = static_cast<uint32_t>(draw() % 4);
    }
    memcpy(bits.data(), numbers.data(), 800 * sizeof(float));
    twin tokens = twin_of(bits);
    gk_layers_cpu()->embedding_backward(nullptr, dy.here.data(), numbers.data(), sides,
                                        dtable.here.data());
    layers->embedding_backward(tables[1].queue, dy.there,
                               reinterpret_cast<const uint32_t *>(tokens.there), sides,
                               dtable.there);
    must_agree(dtable, "gradient of an embedding");
    must_agree(dy, "what was added");
    must_agree(tokens, "tokens");
}

static void workload()
{
    static const enum gk_simt_order orders[] = {GK_SIMT_RANDOM, GK_SIMT_DESCENDING,
                                                GK_SIMT_RANDOM, GK_SIMT_ASCENDING,
                                                GK_SIMT_RANDOM, GK_SIMT_RANDOM};
    const struct gk_layer_ops *layers;
    struct gk_words words = {};

    tables[0].ops = gk_vector_reference();
    tables[1].ops = gk_vector_cuda(&words);
    for (table &table : tables) {
        must(table.ops && table.ops->open(&table.queue, &words) == GK_OK, words.text);
    }
    layers = gk_layers_cuda(&words);
    must(layers, words.text);
    for (unsigned seed = 0; seed < 2; seed++) {
        gk_simt_schedule(orders[seed], seed);
        random_state = seed;
        transpositions(layers);
        column_sums(layers);
        embeddings(layers);
    }
    for (unsigned seed = 0; seed < 6; seed++) {
        gk_simt_schedule(orders[seed], seed);
        random_state = seed;
        selections();
        if (seed < 2) {
            thresholds();
            moments();
            sums(5000, 40);
            sums(5000, 1);
            sums(270000, 30);
            steps();
        }
    }
}

/* ---- Mutants ---- */

struct place {
    std::string file; /* from the folder's parent */
    int line;
};

static std::vector<place> find_barriers(const std::string &folder)
{
    std::vector<place> found;
    DIR *directory = opendir(folder.c_str());
    const std::string name = folder.substr(folder.find_last_of('/') + 1);

    for (struct dirent *entry = directory ? readdir(directory) : nullptr; entry;
         entry = readdir(directory)) {
        const std::string file = entry->d_name;
        FILE *stream = file.find(".cu") == std::string::npos
                           ? nullptr
                           : fopen((folder + "/" + file).c_str(), "r");
        char text[400];

        for (int line = 1; stream && fgets(text, sizeof(text), stream); line++) {
            if (strstr(text, "__syncthreads();")) {
                found.push_back({name + "/" + file, line});
            }
        }
        if (stream) {
            fclose(stream);
        }
    }
    if (directory) {
        closedir(directory);
    }
    std::sort(found.begin(), found.end(), [](const place &a, const place &b) {
        return a.file != b.file ? a.file < b.file : a.line < b.line;
    });
    return found;
}

/* How the workload ended: 0 well. */
static int run_without(const place *place)
{
    int status = 0;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        if (place) {
            gk_simt_skip_barrier(place->file.c_str(), place->line);
        }
        workload();
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return status;
}

int main(int argc, char **argv)
{
    std::vector<place> barriers;
    unsigned survivors = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: simt_mutants FOLDER\n");
        return 2;
    }
    barriers = find_barriers(argv[1]);
    if (barriers.empty() || run_without(nullptr) != 0) {
        printf("%s\n",
               barriers.empty() ? "no barriers found" : "the kernels as they are do not pass");
        return 1;
    }
    for (const place &place : barriers) {
        const bool survives = run_without(&place) == 0;

        survivors += survives;
        if (survives) {
            printf("%s:%d: nothing notices that this barrier is missing\n", place.file.c_str(),
                   place.line);
        }
    }
    printf("%zu barriers, %u of them missed by nobody\n", barriers.size(), survivors);
    return survivors ? 1 : 0;
}
