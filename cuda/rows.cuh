/* Sums over the rows of a matrix, in the order of common/backend.h: a thread a tile and a column,
 * where neighbours read neighbouring columns; then the sums of the tiles are added in their order.
 *
 * What is summed is a type with
 *   number              float or double: what the sums are taken in
 *   item                what a thread fetches of an element, several rows ahead
 *   SUMS                how many sums of each column
 *   fetch(at)           the item of an element
 *   add(item, c, sums)  adds it to the SUMS sums of column c
 *   finish(s, c, sum)   takes the s-th sum of column c */
#ifndef GK_CUDA_ROWS_CUH
#define GK_CUDA_ROWS_CUH

#include "cuda/queue.cuh"

enum {
    JOIN_BLOCKS = 8,        /* per multiprocessor */
    AHEAD_BYTES = 128,      /* of items that a thread fetches before it adds them */
    JOIN_COLUMNS = 8,       /* sums of a block, */
    JOIN_TILES = BLOCK / 2, /* and tiles that it fetches at a time */
};

struct tiled_rows {
    uint64_t rows, columns, tiles;
};

static __device__ inline float add_number(float a, float b)
{
    return __fadd_rn(a, b);
}

static __device__ inline double add_number(double a, double b)
{
    return __dadd_rn(a, b);
}

template <typename Sum>
static __device__ inline void sum_tile(const Sum &sum, const tiled_rows &matrix, uint64_t tile,
                                       uint64_t column, typename Sum::number *sums)
{
    enum { AHEAD = AHEAD_BYTES / sizeof(typename Sum::item) };
    const uint64_t end = min_u64(matrix.rows, (tile + 1) * GK_LAYER_TILE);
    typename Sum::item items[AHEAD];
    uint64_t row = tile * GK_LAYER_TILE;

    for (; row + AHEAD <= end; row += AHEAD) {
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            items[i] = sum.fetch((row + i) * matrix.columns + column);
        }
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            sum.add(items[i], column, sums);
        }
    }
    for (; row < end; row++) {
        sum.add(sum.fetch(row * matrix.columns + column), column, sums);
    }
}

/* With one tile there is nothing to join: +0 and its sum are its sum, which is never -0. */
template <typename Sum>
static __global__ void __launch_bounds__(BLOCK)
    sum_tiles(Sum sum, tiled_rows matrix, typename Sum::number *tiles)
{
    for (uint64_t i = thread_number(); i < matrix.tiles * matrix.columns; i += threads_count()) {
        const uint64_t tile = i / matrix.columns;
        const uint64_t column = i % matrix.columns;
        typename Sum::number sums[Sum::SUMS] = {};

        sum_tile(sum, matrix, tile, column, sums);
#pragma unroll
        for (uint32_t s = 0; s < Sum::SUMS; s++) {
            if (matrix.tiles == 1) {
                sum.finish(s, column, sums[s]);
            } else {
                tiles[(tile * Sum::SUMS + s) * matrix.columns + column] = sums[s];
            }
        }
    }
}

/* A block a few columns: all threads fetch, and a thread a column adds. */
template <typename Sum>
static __global__ void __launch_bounds__(BLOCK)
    join_tiles(Sum sum, tiled_rows matrix, const typename Sum::number *tiles)
{
    const uint64_t width = Sum::SUMS * matrix.columns;
    GK_SHARED_ARRAY(typename Sum::number, fetched, JOIN_COLUMNS * JOIN_TILES);

    for (uint64_t first = static_cast<uint64_t>(blockIdx.x) * JOIN_COLUMNS; first < width;
         first += static_cast<uint64_t>(gridDim.x) * JOIN_COLUMNS) {
        const uint64_t mine = first + threadIdx.x;
        const bool adds = threadIdx.x < JOIN_COLUMNS && mine < width;
        typename Sum::number total = 0;

        for (uint64_t base = 0; base < matrix.tiles; base += JOIN_TILES) {
            const uint64_t count = min_u64(JOIN_TILES, matrix.tiles - base);

            for (uint32_t i = threadIdx.x; i < count * JOIN_COLUMNS; i += BLOCK) {
                const uint64_t column = first + i % JOIN_COLUMNS;

                if (column < width) {
                    fetched[i] = tiles[(base + i / JOIN_COLUMNS) * width + column];
                }
            }
            __syncthreads();
            for (uint32_t tile = 0; adds && tile < count; tile++) {
                total = add_number(total, fetched[tile * JOIN_COLUMNS + threadIdx.x]);
            }
            __syncthreads();
        }
        if (adds) {
            sum.finish(static_cast<uint32_t>(mine / matrix.columns), mine % matrix.columns, total);
        }
    }
}

/* All sums of all columns. */
template <typename Sum>
static inline void sum_rows(struct slot *slot, const Sum &sum, uint64_t rows, uint64_t columns)
{
    const uint64_t tiles_count = (rows + GK_LAYER_TILE - 1) / GK_LAYER_TILE;
    const tiled_rows matrix = {rows, columns, tiles_count};
    const uint64_t width = Sum::SUMS * columns;
    typename Sum::number *tiles = nullptr;

    if (tiles_count > 1) {
        tiles = static_cast<typename Sum::number *>(
            gk_cuda_scratch(slot, tiles_count * width * sizeof(*tiles)));
    }
    gk_cuda_launch(slot, gk_cuda_grid_for(slot, tiles_count * columns), sum_tiles<Sum>, sum, matrix,
                   tiles);
    if (tiles_count > 1) {
        gk_cuda_launch(slot,
                       gk_cuda_grid(slot, (width + JOIN_COLUMNS - 1) / JOIN_COLUMNS, JOIN_BLOCKS),
                       join_tiles<Sum>, sum, matrix, tiles);
    }
}

/* The elements of a matrix that a thread visits, with their places: no division on the way. */
struct walk {
    uint64_t at, row, column;
    uint64_t step, step_rows, step_columns;
};

static __device__ inline walk walk_from_here(uint64_t columns)
{
    const uint64_t at = thread_number();
    const uint64_t step = threads_count();

    return walk{at, at / columns, at % columns, step, step / columns, step % columns};
}

static __device__ inline void walk_on(walk *walk, uint64_t columns)
{
    walk->at += walk->step;
    walk->row += walk->step_rows;
    walk->column += walk->step_columns;
    if (walk->column >= columns) {
        walk->column -= columns;
        walk->row++;
    }
}

#endif
