/* Sums of columns, batch normalisation, and the loss: what adds over the rows of a batch.  The
 * operations of an element are those of the CPU's slots, one by one. */
#include "cuda/layers.cuh"
#include "cuda/rows.cuh"

#include <math.h>

enum { BLOCKS_PER_PROCESSOR = 8 };

/* ---- Column sums ---- */

struct column_sum {
    typedef float number;
    typedef float item;
    enum { SUMS = 1 };
    const float *x;
    float *sums;

    __device__ item fetch(uint64_t at) const { return x[at]; }

    __device__ void add(item value, uint64_t, float *sum) const
    {
        sum[0] = __fadd_rn(sum[0], value);
    }

    __device__ void finish(uint32_t, uint64_t column, float sum) const { sums[column] = sum; }
};

void gk_cuda_layer_column_sums(struct gk_queue *queue, const float *x, uint64_t rows,
                               uint64_t columns, float *sums)
{
    struct slot slot;

    if (gk_cuda_begin(&slot, queue)) {
        sum_rows(&slot, column_sum{x, sums}, rows, columns);
    }
}

/* ---- Batch normalisation ---- */

/* The mean is kept in double too, for the variance. */
struct mean_sum {
    typedef double number;
    typedef float item;
    enum { SUMS = 1 };
    const float *x;
    double rows;
    double *exact;
    float *mean;

    __device__ item fetch(uint64_t at) const { return x[at]; }

    __device__ void add(item value, uint64_t, double *sum) const
    {
        sum[0] = __dadd_rn(sum[0], static_cast<double>(value));
    }

    __device__ void finish(uint32_t, uint64_t column, double sum) const
    {
        exact[column] = __ddiv_rn(sum, rows);
        mean[column] = static_cast<float>(exact[column]);
    }
};

static __device__ inline void move_towards(float *running, float momentum, float fresh)
{
    *running = __fadd_rn(*running, __fmul_rn(momentum, __fsub_rn(fresh, *running)));
}

struct square_sum {
    typedef double number;
    typedef float item;
    enum { SUMS = 1 };
    struct gk_norm_args args;
    double rows, others; /* others: rows - 1, or 1 */
    const double *mean;

    __device__ item fetch(uint64_t at) const { return args.x[at]; }

    __device__ void add(item value, uint64_t column, double *sum) const
    {
        const double distance = __dsub_rn(static_cast<double>(value), mean[column]);

        sum[0] = __dadd_rn(sum[0], __dmul_rn(distance, distance));
    }

    __device__ void finish(uint32_t, uint64_t column, double sum) const
    {
        const float variance = static_cast<float>(__ddiv_rn(sum, others));
        const double spread = __dadd_rn(__ddiv_rn(sum, rows), static_cast<double>(args.epsilon));

        args.scale[column] = static_cast<float>(__ddiv_rn(1.0, __dsqrt_rn(spread)));
        move_towards(&args.running_mean[column], args.momentum, args.mean[column]);
        move_towards(&args.running_variance[column], args.momentum, variance);
    }
};

static __global__ void __launch_bounds__(BLOCK) normalise(struct gk_norm_args args)
{
    const bool is_relu = args.activation == GK_ACTIVATION_RELU;

    for (walk walk = walk_from_here(args.columns); walk.row < args.rows;
         walk_on(&walk, args.columns)) {
        const uint64_t c = walk.column;
        const float mean = args.training ? args.mean[c] : args.running_mean[c];
        const float scale =
            args.training
                ? args.scale[c]
                : __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(args.running_variance[c], args.epsilon)));
        const float factor = __fmul_rn(args.weight[c], scale);
        const float value =
            __fadd_rn(__fmul_rn(__fsub_rn(args.x[walk.at], mean), factor), args.bias[c]);

        args.y[walk.at] = is_relu && value <= 0.0f ? 0.0f : value;
    }
}

static void measure(struct slot *slot, const struct gk_norm_args *args)
{
    const double rows = static_cast<double>(args->rows);
    double *mean = static_cast<double *>(gk_cuda_scratch(slot, args->columns * sizeof(*mean)));

    sum_rows(slot, mean_sum{args->x, rows, mean, args->mean}, args->rows, args->columns);
    sum_rows(slot, square_sum{*args, rows, args->rows > 1 ? rows - 1.0 : 1.0, mean}, args->rows,
             args->columns);
}

void gk_cuda_layer_norm_forward(struct gk_queue *queue, const struct gk_norm_args *args)
{
    struct slot slot;

    if (!gk_cuda_begin(&slot, queue)) {
        return;
    }
    if (args->training) {
        measure(&slot, args);
    }
    gk_cuda_launch(&slot, gk_cuda_grid_for(&slot, args->rows * args->columns), normalise, *args);
}

static __device__ inline float normal_of(const struct gk_norm_gradient_args &args, float x,
                                         uint64_t column)
{
    return __fmul_rn(__fsub_rn(x, args.mean[column]), args.scale[column]);
}

/* Of dy, and of dy times the normalised x. */
struct gradient_sum {
    typedef double number;
    struct item {
        float x, dy;
    };
    enum { SUMS = 2 };
    struct gk_norm_gradient_args args;
    double rows;
    float *means; /* of both, 2 x columns */

    __device__ item fetch(uint64_t at) const { return item{args.x[at], args.dy[at]}; }

    __device__ void add(const item &place, uint64_t column, double *sums) const
    {
        const double dy = place.dy;
        const double normal = normal_of(args, place.x, column);

        sums[0] = __dadd_rn(sums[0], dy);
        sums[1] = __dadd_rn(sums[1], __dmul_rn(dy, normal));
    }

    __device__ void finish(uint32_t which, uint64_t column, double sum) const
    {
        float *to = which == 0 ? args.dbias : args.dweight;

        to[column] = static_cast<float>(sum);
        means[which * args.columns + column] = static_cast<float>(__ddiv_rn(sum, rows));
    }
};

static __global__ void __launch_bounds__(BLOCK)
    normalise_backward(struct gk_norm_gradient_args args, const float *means)
{
    for (walk walk = walk_from_here(args.columns); walk.row < args.rows;
         walk_on(&walk, args.columns)) {
        const uint64_t c = walk.column;
        const float factor = __fmul_rn(args.weight[c], args.scale[c]);
        const float normal = normal_of(args, args.x[walk.at], c);
        const float centred = __fsub_rn(args.dy[walk.at], means[c]);

        args.dx[walk.at] =
            __fmul_rn(factor, __fsub_rn(centred, __fmul_rn(normal, means[args.columns + c])));
    }
}

void gk_cuda_layer_norm_backward(struct gk_queue *queue, const struct gk_norm_gradient_args *args)
{
    struct slot slot;
    float *means;

    if (!gk_cuda_begin(&slot, queue)) {
        return;
    }
    means = static_cast<float *>(gk_cuda_scratch(&slot, 2 * args->columns * sizeof(*means)));
    sum_rows(&slot, gradient_sum{*args, static_cast<double>(args->rows), means}, args->rows,
             args->columns);
    if (args->dx) {
        gk_cuda_launch(&slot, gk_cuda_grid_for(&slot, args->rows * args->columns),
                       normalise_backward, *args, static_cast<const float *>(means));
    }
}

/* ---- Softmax and the loss ---- */

/* Of a row; hit: 1 or 0, so that sums of hits are exact. */
struct row_score {
    double loss, hit;
};

struct score_sum {
    typedef double number;
    typedef row_score item;
    enum { SUMS = 2 };
    const row_score *scores;
    struct gk_loss *result;

    __device__ item fetch(uint64_t at) const { return scores[at]; }

    __device__ void add(const item &score, uint64_t, double *sums) const
    {
        sums[0] = __dadd_rn(sums[0], score.loss);
        sums[1] = __dadd_rn(sums[1], score.hit);
    }

    __device__ void finish(uint32_t which, uint64_t, double sum) const
    {
        if (which == 0) {
            result->loss = sum;
        } else {
            result->hits = static_cast<uint64_t>(sum);
        }
    }
};

/* The largest of a row: a NaN at its beginning, and no other.  Which of +0 and -0 it is does not
 * matter to any result. */
static __device__ inline float largest_of(const float *row, uint64_t classes)
{
    float largest = row[0];

    for (uint64_t c = lane_id(); c < classes; c += LANES) {
        largest = row[c] > largest ? row[c] : largest;
    }
    for (int by = LANES / 2; by > 0; by /= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, largest, by);

        largest = other > largest ? other : largest;
    }
    return largest;
}

/* The right answer must be the first of the largest; nothing is right among NaNs. */
static __device__ inline bool is_hit(const float *row, uint64_t classes, uint32_t label)
{
    const float right = row[label];
    bool beaten = false;

    for (uint64_t c = lane_id(); c < classes; c += LANES) {
        beaten = beaten || (c < label ? !(right > row[c]) : !(right >= row[c]));
    }
    return __ballot_sync(ALL_LANES, beaten) == 0;
}

/* Logits become their exponentials; the sum of these, in the order of the classes. */
static __device__ inline float exponentials(float *row, uint64_t classes, float largest)
{
    float sum = 0.0f;

    for (uint64_t base = 0; base < classes; base += LANES) {
        const uint32_t count = static_cast<uint32_t>(min_u64(LANES, classes - base));
        float value = 0.0f;

        if (lane_id() < count) {
            value = expf(__fsub_rn(row[base + lane_id()], largest));
            row[base + lane_id()] = value;
        }
        for (uint32_t i = 0; i < count; i++) {
            sum = __fadd_rn(sum, __shfl_sync(ALL_LANES, value, static_cast<int>(i)));
        }
    }
    return sum;
}

/* A warp a row.  Labels are below the number of classes: the data set saw to that. */
static __global__ void __launch_bounds__(BLOCK)
    softmax_rows(struct gk_softmax_args args, row_score *scores)
{
    for (uint64_t r = static_cast<uint64_t>(blockIdx.x) * WARPS + warp_id(); r < args.rows;
         r += static_cast<uint64_t>(gridDim.x) * WARPS) {
        float *row = args.logits + r * args.classes;
        const uint32_t label = args.labels[r];
        const float largest = largest_of(row, args.classes);
        const float right = __fsub_rn(row[label], largest);
        const bool hit = is_hit(row, args.classes, label);
        float sum;

        __syncwarp(); /* all lanes have read the label's logit */
        sum = exponentials(row, args.classes, largest);
        for (uint64_t c = lane_id(); c < args.classes; c += LANES) {
            float value = __fdiv_rn(row[c], sum);

            value = c == label ? __fsub_rn(value, 1.0f) : value;
            row[c] = args.scale != 1.0f ? __fmul_rn(value, args.scale) : value;
        }
        if (lane_id() == 0) {
            scores[r].loss = __dsub_rn(static_cast<double>(logf(sum)), static_cast<double>(right));
            scores[r].hit = hit ? 1.0 : 0.0;
        }
    }
}

void gk_cuda_layer_softmax_cross_entropy(struct gk_queue *queue, const struct gk_softmax_args *args)
{
    struct slot slot;
    row_score *scores;

    if (!gk_cuda_begin(&slot, queue)) {
        return;
    }
    scores = static_cast<row_score *>(gk_cuda_scratch(&slot, args->rows * sizeof(*scores)));
    gk_cuda_launch(&slot,
                   gk_cuda_grid(&slot, (args->rows + WARPS - 1) / WARPS, BLOCKS_PER_PROCESSOR),
                   softmax_rows, *args, scores);
    sum_rows(&slot, score_sum{scores, args->result}, args->rows, 1);
}
