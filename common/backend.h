/* The two backend tables: batch-level functions over whole vectors, so that every operator, model
 * and optimizer is written once and runs on every backend.
 *
 * Contract of every slot that takes a queue: it may return before the work is done; the ticket says
 * when it is (0: already done).  Arguments and everything they point to stay alive and untouched
 * until then; results land in the structs the arguments name.  Work of one queue runs in order.  An
 * error sticks to the queue: later slots do nothing and wait() returns it.  A queue is used by one
 * thread at a time.
 *
 * What must agree bit for bit between all implementations: u, selected sets with ties, take,
 * give, sums, optimizers, hashes, and stats (whose order of summation is specified).  See
 * ARCHITECTURE.md, "Determinism". */
#ifndef GK_COMMON_BACKEND_H
#define GK_COMMON_BACKEND_H

#include "common/err.h"
#include "common/words.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gk_queue; /* one stream of work with its scratch memory */

struct gk_ticket {
    uint64_t v; /* 0: done */
};

/* Kinds of memory. */
enum gk_memory {
    GK_MEMORY_DEVICE, /* where the arithmetic runs */
    GK_MEMORY_PINNED, /* host memory that results and copies may land in */
};

/* Keys order floats by magnitude: key(x) = bits(x) & 0x7fffffff, compared unsigned.  Inf and NaN
 * are the largest. */
#define GK_KEY_MASK UINT32_C(0x7fffffff)
#define GK_KEY_NONFINITE UINT32_C(0x7f800000)

/* [lo, hi), elements. */
struct gk_range {
    uint64_t lo, hi;
};

/* Wire numbers, frozen. */
enum gk_value_encoding {
    GK_VALUE_F32 = 1,
    GK_VALUE_F16 = 2,
    GK_VALUE_BF16 = 3,
    GK_VALUE_Q8 = 4,
    GK_VALUE_Q4 = 5,
    GK_VALUE_Q2 = 6,
};

enum gk_nonfinite_policy { GK_NONFINITE_ABORT = 0, GK_NONFINITE_SKIP = 1, GK_NONFINITE_ZERO = 2 };

/* Speed only, one per segment: the selected set does not depend on it. */
struct gk_select_state {
    float t;      /* magnitude of the last k-th entry; 0: cold */
    uint64_t kp;  /* last k */
    float margin; /* 0: not yet set, taken as 0.10 */
};

/* Sizes that the test build makes small, so that small vectors exercise the whole algorithm. */
struct gk_select_tune {
    uint32_t tile; /* elements; a multiple of 32 */
    /* Segments up to this length, or with 4 k >= n, make every entry a candidate. */
    uint32_t small_segment;
    /* Contiguous parts with a candidate buffer each; the result does not depend on it. */
    uint32_t partitions;
    uint64_t cap; /* candidates per partition; 0: 2k + n/100 + 2 tiles */
};

struct gk_select_report {
    uint64_t n;         /* selected in all */
    uint64_t bad;       /* non-finite entries of u */
    uint64_t bad_first; /* index of the first of them */
    uint64_t appended;  /* candidates appended in the first pass, for tests and benchmarks */
    uint32_t passes;    /* passes over memory: 1, or more after a guess that was too high */
    uint32_t prunes;
};

/* u = g + e into dst, then the k[s] largest magnitudes of segment s, ties to the lower index, zeros
 * never selected, in index order, all segments one after the other.  dst may be g, never e.  e may
 * be NULL (all zeros).
 *
 * state NULL: `topk`, a full selection over all keys.  Otherwise one entry a segment, read and
 * updated.
 *
 * Non-finite u: ABORT and SKIP select nothing (n = 0, bad > 0), and leave state and e untouched,
 * dst undefined; ZERO sets dst to e there (0 if e is NULL) and goes on. */
struct gk_select_args {
    float *dst;
    const float *g;
    const float *e;
    const struct gk_range *segments; /* ascending, disjoint */
    const uint64_t *k;
    uint32_t segments_count;
    struct gk_select_state *state;
    enum gk_nonfinite_policy policy;
    const struct gk_select_tune *tune; /* NULL: defaults */
    uint32_t *idx;                     /* out, room for `room` entries */
    float *val;                        /* out: u at idx */
    uint64_t room;                     /* at least the sum of min(k[s], length of s) */
    struct gk_select_report *report;   /* out */
};

/* All entries of u with |u| >= t[s] in segment s, in index order.  n counts them all, even those
 * above `room`.  NaN compares as the largest.  t <= 0 takes the non-zeros. */
struct gk_select_ge_args {
    const float *u;
    const struct gk_range *segments;
    const float *t;
    uint32_t segments_count;
    uint32_t *idx;
    float *val;
    uint64_t room;
    uint64_t *n; /* out, one per segment */
};

/* u over g (dst may be g): u = g + e without selection.  g is multiplied by
 * `scale` first (local clipping: bound / norm).  With m: m_out = beta m + scale g (fmaf) and
 * u = m_out + e, out of place (momentum correction, DGC). */
struct gk_accumulate_args {
    float *dst;
    const float *g;
    const float *e; /* may be NULL */
    const float *m; /* may be NULL: no momentum correction */
    float *m_out;
    float beta;
    float scale; /* g is multiplied by it first; 1: untouched */
    uint64_t n;
};

enum { GK_STATS_THRESHOLDS_MAX = 8 };

struct gk_stats {
    uint64_t count;     /* |u| >= lo */
    double sum;         /* of u, over those */
    double sum_squares; /* of u */
    double sum_abs;
    uint32_t key_max;
    uint64_t bad; /* non-finite; they enter neither sums nor key_max */
    uint64_t nonzeros;
    uint64_t above[GK_STATS_THRESHOLDS_MAX]; /* |u| > t[i], strictly */
};

/* Moments per segment in double, in a specified order: tiles of 2048 from the segment's start,
 * lane = i mod 32 within a tile, lanes joined by a fixed tree (lane l += lane l + 16, then 8, 4,
 * 2, 1), tiles in order. */
struct gk_stats_args {
    const float *u;
    const struct gk_range *segments;
    const float *lo; /* per segment; NULL: 0, everything */
    uint32_t segments_count;
    const float *t; /* thresholds, common to all segments */
    uint32_t t_count;
    struct gk_stats *stats; /* out, one a segment */
};

/* Keys of every entry g + e at phase, phase + stride, ... */
struct gk_sample_args {
    const float *g;
    const float *e; /* may be NULL */
    uint64_t n, stride, phase;
    uint32_t *keys; /* out */
    uint64_t room;
    uint64_t *count; /* out */
};

/* Gather, encode, keep what was not sent: val = encode(u[idx]); u[idx] -= decode(val) (exact);
 * m[idx] = 0 if m. */
struct gk_take_args {
    float *u;
    float *m; /* may be NULL */
    const uint32_t *idx;
    uint64_t n;
    enum gk_value_encoding encoding; /* F32 for now */
    void *val;                       /* out */
};

/* A returned slice: u[idx + base] += val. */
struct gk_give_args {
    float *u;
    const uint32_t *idx; /* NULL: dense run of n from base */
    uint64_t base;
    const float *val;
    uint64_t n;
};

/* One chunk of a push, as it arrived. */
struct gk_list {
    /* Strictly rising, relative to base; NULL: dense run of n values from base. */
    const uint32_t *idx;
    const float *val;
    uint64_t n;
    uint64_t base; /* relative to the start of the summed range */
};

struct gk_sum_report {
    uint64_t n;  /* entries written */
    bool dense;  /* val holds the whole range, idx was not written */
    bool finite; /* false: the sum overflowed or a value was not finite */
};

/* Sum of the lists, each coordinate in the order of the lists, accumulators starting at +0: the
 * union of the indices and its sums, in index order, zeros included.  Dense (val of `len`, +0
 * where nothing came) when any list is dense or the union holds at least half of the range. */
struct gk_sum_args {
    const struct gk_list *lists; /* ordered by rank, chunks of a rank in order */
    uint32_t lists_count;
    uint64_t len;  /* length of the range */
    uint32_t *idx; /* out, room for len */
    float *val;    /* out, room for len */
    struct gk_sum_report *report;
};

/* Wire numbers, frozen. */
enum gk_optimizer {
    GK_OPTIMIZER_NONE = 1,
    GK_OPTIMIZER_SGD = 2,
    GK_OPTIMIZER_MOMENTUM = 3,
    GK_OPTIMIZER_NESTEROV = 4,
    GK_OPTIMIZER_ADAMW = 5,
};

/* All travel and are logged as float bits; nobody recomputes them. */
struct gk_hyper {
    float lr;
    float momentum; /* or beta1 */
    float beta2;
    float epsilon;
    float bias1, bias2; /* AdamW: 1 - beta^t, t from 1 */
    float weight_decay;
};

/* One version's committed sums. */
struct gk_update {
    const uint32_t *idx; /* relative to the range; NULL: dense */
    const float *val;    /* sums before division */
    uint64_t n;
    uint64_t samples; /* 0: advances the version, no optimizer step */
    struct gk_hyper hyper;
};

/* Apply updates in order to p (and the moments m, v) of a range of `len` elements, tile by tile.
 * Per element, in fp32 with explicit fmaf:  g = sum / (float)samples;  g = fmaf(wd, p, g) where
 * decay covers it;
 *   SGD:      p = fmaf(-lr, g, p)
 *   MOMENTUM: m = fmaf(mu, m, g), +0 if |m| < 2^-100;  p = fmaf(-lr, m, p)
 *   NESTEROV: m as above;  p = fmaf(-lr, fmaf(mu, m, g), p)
 *   ADAMW:    p = fmaf(-(lr wd), p, p) where decay covers it, g without wd;
 *             m = fmaf(beta1, m, (1 - beta1) g), +0 if |m| < 2^-100;
 *             v = fmaf(beta2, v, ((1 - beta2) g) g), +0 if v < 2^-126;
 *             p = fmaf(-(lr / bias1), m / (sqrt(v / bias2) + epsilon), p)
 *   NONE:     p untouched;  m = sum / (float)samples of the last update, +0 if samples is 0.
 *
 * Every product, quotient and root is rounded once to fp32, those in brackets first.  v is flushed
 * where it would be denormal and not at 2^-100, which would show beside a small epsilon.
 *
 * An index that was not pushed has sum +0: it still decays and coasts. */
struct gk_apply_args {
    enum gk_optimizer optimizer;
    float *p, *m, *v; /* m, v NULL where the optimizer has no such plane; NONE has m */
    uint64_t len;
    const struct gk_range *decay; /* relative ranges with weight decay, ascending, disjoint */
    uint32_t decay_count;
    const struct gk_update *updates;
    uint32_t updates_count;
};

/* Sum of gk_hash_term(plane, index0 + i, bits(x[i])) mod 2^64. */
struct gk_hash_args {
    const float *x;
    uint64_t n;
    uint64_t index0;
    uint32_t plane;
    uint64_t *hash; /* out */
};

struct gk_caps {
    const char *name; /* "cpu reference", "cpu avx2", "cuda:0 ..." */
    /* Both kinds of memory are ordinary memory, and slots have finished when they return. */
    bool on_host;
};

struct gk_vector_ops {
    /* Service. */
    enum gk_err (*open)(struct gk_queue **ret_queue, struct gk_words *words);
    void (*close)(struct gk_queue *queue); /* accepts NULL */
    const struct gk_caps *(*caps)(const struct gk_queue *queue);
    /* Zeroed, 64-byte aligned; NULL: none. */
    void *(*alloc)(struct gk_queue *queue, enum gk_memory kind, size_t bytes);
    void (*free)(struct gk_queue *queue, enum gk_memory kind, void *memory); /* accepts NULL */
    struct gk_ticket (*copy)(struct gk_queue *queue, void *target, const void *source,
                             size_t bytes);
    /* Blocks until `stream`, in which somebody else computes on the same device, has done all that
     * it holds; NULL: the device's default stream.  There is none on the host. */
    void (*settle)(struct gk_queue *queue, void *stream);
    /* Blocks; the queue's sticky error, cleared. */
    enum gk_err (*wait)(struct gk_queue *queue, struct gk_ticket ticket);
    bool (*poll)(struct gk_queue *queue, struct gk_ticket ticket); /* true: done */
    /* Selection. */
    struct gk_ticket (*accumulate)(struct gk_queue *queue, const struct gk_accumulate_args *args);
    struct gk_ticket (*select)(struct gk_queue *queue, const struct gk_select_args *args);
    struct gk_ticket (*select_ge)(struct gk_queue *queue, const struct gk_select_ge_args *args);
    struct gk_ticket (*stats)(struct gk_queue *queue, const struct gk_stats_args *args);
    struct gk_ticket (*sample)(struct gk_queue *queue, const struct gk_sample_args *args);
    struct gk_ticket (*take)(struct gk_queue *queue, const struct gk_take_args *args);
    struct gk_ticket (*give)(struct gk_queue *queue, const struct gk_give_args *args);
    /* Server. */
    struct gk_ticket (*sum)(struct gk_queue *queue, const struct gk_sum_args *args);
    struct gk_ticket (*apply)(struct gk_queue *queue, const struct gk_apply_args *args);
    struct gk_ticket (*hash)(struct gk_queue *queue, const struct gk_hash_args *args);
};

/* Plain C, written for clarity: what all others are compared with. */
const struct gk_vector_ops *gk_vector_reference(void);

/* AVX2 paths; NULL when this processor has none. */
const struct gk_vector_ops *gk_vector_avx2(void);

/* Which CPU table: positions in the choices of the option "cpu" (common/option_rows.h). */
enum gk_cpu { GK_CPU_AUTO, GK_CPU_REFERENCE, GK_CPU_AVX2 };

/* The table that is wished for; AUTO: the best for this machine.  GK_E_UNSUPPORTED: this processor
 * cannot run it; words say why. */
enum gk_err gk_vector_cpu(enum gk_cpu wish, const struct gk_vector_ops **ret_ops,
                          struct gk_words *words);

/* The layer table: what models are made of, as batch-level functions on plain arrays of float.
 *
 * Every slot takes a queue, with the contract at the top of this file: work of one queue runs in
 * order and may still run when the slot returns, and errors stick to the queue.  But the argument
 * structs, and `sides`, are the caller's again as soon as it returns.  All arrays lie in memory of
 * GK_MEMORY_DEVICE of the vector table that the queue belongs to, also what a slot writes for the
 * host (gk_loss).  A table with `on_host` takes any memory and NULL for a queue, has finished when
 * a slot returns, and cannot fail.
 *
 * Matrices are row-major.  An image is rows x columns x channels, the channels innermost; so a
 * batch of images is one matrix with a row for every pixel, which is what bias, norm and column
 * sums work on.  A batch of sequences is time-major: a row for every (time, sample), all samples of
 * a time together.
 *
 * The order of every sum is the one stated here; sums inside of gemm are those of the BLAS, and
 * expf, tanhf and logf those of the table's library: see ARCHITECTURE.md, "Determinism".  A NaN
 * passes through every slot, so that a diverged model is seen as one. */
enum gk_activation { GK_ACTIVATION_NONE, GK_ACTIVATION_RELU };

/* "Rows in tiles": sums over the rows of a matrix are taken of GK_LAYER_TILE rows at a time, each
 * from +0 and in the order of the rows, the last tile as long as it comes; then the sums of the
 * tiles are added in their order, from +0 too.  So tiles can be summed at the same time. */
enum { GK_LAYER_TILE = 256 };

/* c = a b + beta c;  a is m x k, b is k x n, c is m x n, transposed as told.  beta = 0 does not
 * read c. */
struct gk_gemm_args {
    bool transpose_a, transpose_b;
    uint64_t m, n, k;
    const float *a, *b;
    float *c;
    float beta;
};

/* x[r][c] = activation(x[r][c] + bias[c]) */
struct gk_bias_args {
    float *x;
    const float *bias;
    uint64_t rows, columns;
    enum gk_activation activation;
};

/* Over the rows of a batch. */
struct gk_loss {
    double loss;   /* sum of the losses, rows in tiles */
    uint64_t hits; /* rows whose label is the first of the largest logits; none among NaNs */
};

/* Logits become `scale` times the gradient of the summed cross-entropy. */
struct gk_softmax_args {
    float *logits; /* rows x classes, in place */
    const uint32_t *labels;
    uint64_t rows, classes;
    float scale;            /* 1: untouched */
    struct gk_loss *result; /* out, written */
};

/* Square windows that slide over images.  Input pixel of window (r, c), place (i, j):
 * (r stride + i - pad_rows, c stride + j - pad_columns), zero outside of the image. */
struct gk_layer_window {
    uint32_t samples, rows, columns, channels; /* of the input */
    uint32_t kernel, stride, pad_rows, pad_columns;
    uint32_t out_rows, out_columns;
};

/* Batch normalisation of the columns, with statistics over the rows. */
struct gk_norm_args {
    const float *x;
    float *y; /* activation(weight (x - mean) scale + bias) */
    uint64_t rows, columns;
    const float *weight, *bias;
    /* training: mean and scale (1 / sqrt(variance + epsilon), variance with rows in the
     * denominator) are those of x, summed in double, rows in tiles, and written for the backward
     * pass; the running ones move by `momentum` (r += momentum (new - r), the variance with rows -
     * 1 in the denominator).  Else the running ones count, and nothing is written but y. */
    bool training;
    float *mean, *scale;
    float *running_mean, *running_variance;
    float momentum, epsilon;
    enum gk_activation activation;
};

/* dx = weight scale (dy - mean of dy - n mean of (dy n)), n = (x - mean) scale; dbias = sum of dy,
 * dweight = sum of dy n: in double, rows in tiles.  dx may be NULL.  The activation is undone
 * before, by activation_backward. */
struct gk_norm_gradient_args {
    const float *x, *dy;
    float *dx;
    uint64_t rows, columns;
    const float *weight, *mean, *scale;
    float *dweight, *dbias;
};

/* y = activation(x + the shortcut of skip).  x and y are samples x rows x columns x channels; skip
 * is samples x skip_rows x skip_columns x skip_channels: its pixel (r stride, c stride), channels
 * from skip_channels on are zero. */
struct gk_residual_args {
    const float *x, *skip;
    float *y;
    uint32_t samples, rows, columns, channels;
    uint32_t skip_rows, skip_columns, skip_channels, stride;
    enum gk_activation activation;
};

/* dskip += dy where the shortcut led; geometry as above. */
struct gk_residual_gradient_args {
    const float *dy;
    float *dskip;
    uint32_t samples, rows, columns, channels;
    uint32_t skip_rows, skip_columns, skip_channels, stride;
};

/* One time step of an LSTM.  Gates in the order input, forget, cell, output:
 * i, f, o = 1 / (1 + e^-a), g = tanh(a), a = gates + bias_x + bias_h;
 * c = f c_before + i g;  h = o tanh(c). */
struct gk_lstm_args {
    float *gates; /* rows x 4 width: products of the weights, replaced by i, f, g, o */
    const float *bias_x, *bias_h;
    const float *c_before; /* rows x width, as c and h */
    float *c, *h;
    uint64_t rows, width;
};

/* dc is that of the later step; it becomes that of the earlier one.  Gates become the gradient of
 * their products. */
struct gk_lstm_gradient_args {
    float *gates;
    const float *c_before, *c, *dh;
    float *dc;
    uint64_t rows, width;
};

struct gk_layer_ops {
    bool on_host; /* arrays are ordinary memory, and slots have finished when they return */
    /* A convolution works on so many samples at a time that its matrix of windows has at least so
     * many rows, within GK_WINDOWS_BYTES: a property of the table, since it decides the order of
     * sums. */
    uint32_t window_rows;
    const char *(*fingerprint)(void); /* BLAS and core: gemm is identical only where this is */
    void (*gemm)(struct gk_queue *queue, const struct gk_gemm_args *args);
    /* y = x, and y = value. */
    void (*copy)(struct gk_queue *queue, float *y, const float *x, uint64_t count);
    void (*fill)(struct gk_queue *queue, float *y, float value, uint64_t count);
    /* Each of `count` matrices of rows x columns, transposed: y is count x columns x rows. */
    void (*transpose)(struct gk_queue *queue, float *y, const float *x, const uint64_t sides[3]);
    void (*bias_forward)(struct gk_queue *queue, const struct gk_bias_args *args);
    /* dx[i] = 0 where y[i] <= 0 (RELU), in place */
    void (*activation_backward)(struct gk_queue *queue, float *dx, const float *y, uint64_t count,
                                enum gk_activation activation);
    /* sums[c] = sum over r of x[r][c], rows in tiles */
    void (*column_sums)(struct gk_queue *queue, const float *x, uint64_t rows, uint64_t columns,
                        float *sums);
    void (*softmax_cross_entropy)(struct gk_queue *queue, const struct gk_softmax_args *args);
    /* windows[(sample, r, c)][(i, j, channel)]: a row for every output pixel. */
    void (*im2col)(struct gk_queue *queue, const struct gk_layer_window *window, const float *x,
                   float *windows);
    /* dx = the sum of the entries of `windows` that were read from there, in the order of (i, j).
     */
    void (*col2im)(struct gk_queue *queue, const struct gk_layer_window *window,
                   const float *windows, float *dx);
    /* The largest of each window and channel, the first of equals; a NaN is the largest.
     * index: i kernel + j.  The padding does not count; no window may lie wholly in it. */
    void (*max_pool_forward)(struct gk_queue *queue, const struct gk_layer_window *window,
                             const float *x, float *y, uint32_t *index);
    /* dx = the sum of dy of the windows that chose this pixel, in the order of (i, j). */
    void (*max_pool_backward)(struct gk_queue *queue, const struct gk_layer_window *window,
                              const float *dy, const uint32_t *index, float *dx);
    /* Sum of the window in the order of (i, j), padding as zeros, divided by kernel^2. */
    void (*average_pool_forward)(struct gk_queue *queue, const struct gk_layer_window *window,
                                 const float *x, float *y);
    void (*average_pool_backward)(struct gk_queue *queue, const struct gk_layer_window *window,
                                  const float *dy, float *dx);
    void (*norm_forward)(struct gk_queue *queue, const struct gk_norm_args *args);
    void (*norm_backward)(struct gk_queue *queue, const struct gk_norm_gradient_args *args);
    void (*residual_forward)(struct gk_queue *queue, const struct gk_residual_args *args);
    void (*residual_backward)(struct gk_queue *queue, const struct gk_residual_gradient_args *args);
    /* y[r] = table[tokens[r]];  sides: rows, width */
    void (*embedding_forward)(struct gk_queue *queue, const float *table, const uint32_t *tokens,
                              const uint64_t sides[2], float *y);
    /* dtable[v] = sum of dy[r] over the rows with token v, in order;  sides: rows, width, tokens in
     * the table */
    void (*embedding_backward)(struct gk_queue *queue, const float *dy, const uint32_t *tokens,
                               const uint64_t sides[3], float *dtable);
    void (*lstm_forward)(struct gk_queue *queue, const struct gk_lstm_args *args);
    void (*lstm_backward)(struct gk_queue *queue, const struct gk_lstm_gradient_args *args);
};

/* Bound of the windows of a convolution, for layers of which one sample needs less. */
#define GK_WINDOWS_BYTES (UINT64_C(16) << 20)

#endif
