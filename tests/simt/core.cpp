/* The scheduler of one launch.
 *
 * Some blocks are resident at once and take turns; when one has ended the next comes.  Each has a
 * bit a thread that could run, and a schedule picks among them.  Threads switch to the scheduler
 * and nowhere else.
 *
 * Shared memory is checked access by access: an element that one thread wrote may be touched by
 * another of the same block only after a barrier (or, within a warp, after a collective of that
 * warp).  So a missing barrier is found in every schedule, not only in those where the values
 * differ. */
#include "tests/simt/core.h"

#include "tests/simt/fiber.h"
#include "tests/simt/simt.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

namespace simt
{
place current;

static const unsigned warp_lanes = 32;
static const unsigned threads_max = 1024;
static const unsigned warps_max = threads_max / warp_lanes;
static const unsigned resident_max = 4;
static const size_t shared_bytes_max = 48 * 1024;

enum thread_state { READY, AT_WARP, AT_BARRIER, ENDED };

struct tag {
    operation op;
    unsigned mask;
    simt::site site;
};

struct thread {
    simt::fiber fiber;
    simt::block *block;
    unsigned number;
    thread_state state;
    simt::tag tag; /* AT_WARP */
    simt::site at; /* AT_BARRIER */
    uint64_t value;
    unsigned argument;
    uint64_t result;
};

struct warp {
    unsigned live;
    unsigned waiting; /* lanes at a collective */
    uint32_t epoch;   /* collectives so far */
};

struct block {
    unsigned number, threads_count, ended, waiting;
    uint32_t epoch; /* another one after each barrier; no two blocks share one */
    uint64_t ready[threads_max / 64];
    unsigned ready_count;
    thread threads[threads_max];
    warp warps[warps_max];
    unsigned turn_rank;       /* of the schedule that goes by rank: among the blocks, */
    unsigned rank[warps_max]; /* and of the warps */
    std::vector<shared_storage *> shared;
    size_t shared_bytes;
};

static struct {
    gk_simt_order order = GK_SIMT_RANDOM;
    uint64_t seed = 1;
    uint64_t state = 1;
} schedule;

static simt::fiber scheduler;
static const launch *running;
static thread *self;
static uint32_t epochs;
static site skipped;                /* file NULL: none */
static block *blocks[resident_max]; /* memory is kept between launches */
static unsigned resident;           /* how many of them are used in this launch */
static bool by_rank;                /* of this launch, when the order is random */
static unsigned turn;               /* whose turn it is, when the order is not */

static uint64_t draw()
{
    uint64_t x = schedule.state += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

void fault(const char *format, ...)
{
    va_list args;

    fflush(stdout);
    fprintf(stderr, "simt: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    if (running) {
        fprintf(stderr, " [kernel %s, order %d, seed %llu", running->name, schedule.order,
                static_cast<unsigned long long>(schedule.seed));
        if (self) {
            fprintf(stderr, ", block %u, thread %u", self->block->number, self->number);
        }
        fprintf(stderr, "]");
    }
    fprintf(stderr, "\n");
    fflush(stderr);
    abort();
}

/* ---- Threads that could run ---- */

static void make_ready(thread *t)
{
    t->state = READY;
    t->block->ready[t->number / 64] |= UINT64_C(1) << t->number % 64;
    t->block->ready_count++;
}

static thread *take(block *block, unsigned number)
{
    block->ready[number / 64] &= ~(UINT64_C(1) << number % 64);
    block->ready_count--;
    return &block->threads[number];
}

static unsigned first_ready(const block *block, unsigned from)
{
    unsigned word = from / 64;
    uint64_t bits = block->ready[word] >> from % 64 << from % 64;

    while (bits == 0) {
        word = (word + 1) % (threads_max / 64);
        bits = block->ready[word];
    }
    return word * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
}

static unsigned last_ready(const block *block)
{
    unsigned word = threads_max / 64 - 1;

    while (block->ready[word] == 0) {
        word--;
    }
    return word * 64 + 63 - static_cast<unsigned>(__builtin_clzll(block->ready[word]));
}

/* A warp of the highest rank, any of its lanes. */
static unsigned ranked_ready(const block *block)
{
    unsigned best = 0;
    unsigned best_rank = 0;

    for (unsigned w = 0; w * warp_lanes < block->threads_count; w++) {
        uint32_t lanes = static_cast<uint32_t>(block->ready[w / 2] >> w % 2 * 32);

        if (lanes != 0 && block->rank[w] >= best_rank) {
            best_rank = block->rank[w];
            best = w * warp_lanes + static_cast<unsigned>(__builtin_ctz(lanes));
        }
    }
    return best;
}

static thread *pick(block *block)
{
    switch (schedule.order) {
    case GK_SIMT_ASCENDING:
        return take(block, first_ready(block, 0));
    case GK_SIMT_DESCENDING:
        return take(block, last_ready(block));
    case GK_SIMT_RANDOM:
        break;
    }
    if (by_rank) {
        return take(block, ranked_ready(block));
    }
    return take(block, first_ready(block, static_cast<unsigned>(draw() % block->threads_count)));
}

/* ---- Waiting ---- */

static const char *operation_name(operation op)
{
    static const char *const names[OPERATIONS] = {"ballot",       "shuffle",     "shuffle up",
                                                  "shuffle down", "shuffle xor", "syncwarp"};

    return names[op];
}

static bool same_site(site a, site b)
{
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

static bool same_tag(const tag &a, const tag &b)
{
    return a.op == b.op && a.mask == b.mask && same_site(a.site, b.site);
}

static unsigned source_lane(const thread &t)
{
    const unsigned lane = t.number % warp_lanes;

    switch (t.tag.op) {
    case SHUFFLE:
        return t.argument % warp_lanes;
    case SHUFFLE_UP:
        return lane >= t.argument ? lane - t.argument : lane;
    case SHUFFLE_DOWN:
        return lane + t.argument < warp_lanes ? lane + t.argument : lane;
    case SHUFFLE_XOR:
        return (lane ^ t.argument) % warp_lanes;
    case BALLOT:
    case SYNC_WARP:
    case OPERATIONS:
        break;
    }
    return lane;
}

/* All lanes of the operation are here: their results. */
static void finish_collective(block *block, unsigned w, unsigned lanes, operation op)
{
    thread *first = &block->threads[w * warp_lanes];
    uint64_t ballot = 0;

    block->warps[w].epoch++;
    for (unsigned lane = 0; lane < warp_lanes; lane++) {
        if (lanes >> lane & 1 && first[lane].value != 0) {
            ballot |= UINT64_C(1) << lane;
        }
    }
    for (unsigned lane = 0; lane < warp_lanes; lane++) {
        thread *t = &first[lane];

        if (!(lanes >> lane & 1)) {
            continue;
        }
        if (op == BALLOT) {
            t->result = ballot;
        } else if (op != SYNC_WARP) {
            unsigned source = source_lane(*t);

            if (!(lanes >> source & 1)) {
                fault("%s at %s:%d: lane %u reads lane %u, which takes no part", operation_name(op),
                      t->tag.site.file, t->tag.site.line, lane, source);
            }
            t->result = first[source].value;
        }
        block->warps[w].waiting--;
        make_ready(t);
    }
}

/* The operation that lane `like` waits for, if it is complete. */
static void try_collective(block *block, unsigned w, unsigned like)
{
    thread *first = &block->threads[w * warp_lanes];
    const tag tag = first[like].tag;
    unsigned lanes = 0;

    if (block->warps[w].waiting < static_cast<unsigned>(__builtin_popcount(tag.mask))) {
        return;
    }
    for (unsigned lane = 0; lane < warp_lanes; lane++) {
        if (block->warps[w].live >> lane & 1 && first[lane].state == AT_WARP &&
            same_tag(first[lane].tag, tag)) {
            lanes |= 1u << lane;
        }
    }
    if (tag.mask == lanes) {
        finish_collective(block, w, lanes, tag.op);
    }
}

static void try_barrier(block *block)
{
    const thread *like = nullptr;

    if (block->waiting == 0 || block->waiting + block->ended < block->threads_count) {
        return;
    }
    for (unsigned i = 0; i < block->threads_count; i++) {
        thread *t = &block->threads[i];

        if (t->state != AT_BARRIER) {
            continue;
        }
        if (block->ended > 0) {
            fault("barrier at %s:%d after %u threads of the block had ended", t->at.file,
                  t->at.line, block->ended);
        }
        if (like && !same_site(like->at, t->at)) {
            fault("barriers at %s:%d and %s:%d at once", like->at.file, like->at.line, t->at.file,
                  t->at.line);
        }
        like = t;
    }
    block->waiting = 0;
    block->epoch = ++epochs;
    for (unsigned i = 0; i < block->threads_count; i++) {
        make_ready(&block->threads[i]);
    }
}

/* Nobody can run and not everybody has ended: say who waits where. */
[[noreturn]] static void deadlock(const block *block)
{
    self = nullptr;
    for (unsigned i = 0; i < block->threads_count; i++) {
        const thread &t = block->threads[i];

        if (t.state == AT_WARP) {
            unsigned w = i / warp_lanes;
            unsigned lanes = 0;

            for (unsigned lane = 0; lane < warp_lanes; lane++) {
                const thread &other = block->threads[w * warp_lanes + lane];

                if (other.state == AT_WARP && same_tag(other.tag, t.tag)) {
                    lanes |= 1u << lane;
                }
            }
            fault("block %u, warp %u: %s at %s:%d has mask %08x, and only lanes %08x of the live "
                  "%08x reach it",
                  block->number, w, operation_name(t.tag.op), t.tag.site.file, t.tag.site.line,
                  t.tag.mask, lanes, block->warps[w].live);
        }
    }
    fault("block %u: %u threads wait at a barrier that the others never reach", block->number,
          block->waiting);
}

static void leave()
{
    fiber_switch(&self->fiber, &scheduler);
}

uint64_t collective(operation op, unsigned mask, uint64_t value, unsigned argument, site site)
{
    thread *me = self;
    const unsigned lane = me->number % warp_lanes;

    if (!(mask >> lane & 1)) {
        fault("%s at %s:%d: mask %08x does not name lane %u, which is here", operation_name(op),
              site.file, site.line, mask, lane);
    }
    me->tag = {op, mask, site};
    me->value = value;
    me->argument = argument;
    me->state = AT_WARP;
    me->block->warps[me->number / warp_lanes].waiting++;
    try_collective(me->block, me->number / warp_lanes, lane);
    leave();
    return me->result;
}

static bool is_skipped(site site)
{
    const size_t bytes = strlen(site.file);
    const size_t end_bytes = skipped.file ? strlen(skipped.file) : 0;

    return skipped.file && site.line == skipped.line && bytes >= end_bytes &&
           strcmp(site.file + bytes - end_bytes, skipped.file) == 0;
}

void barrier(site site)
{
    if (is_skipped(site)) {
        return;
    }
    self->at = site;
    self->state = AT_BARRIER;
    self->block->waiting++;
    try_barrier(self->block);
    leave();
}

void atomic_point()
{
    /* In the orders that are not random every fourth atomic hands over; at random one in eight. */
    if (!self || draw() % (schedule.order == GK_SIMT_RANDOM ? 8 : 4) != 0) {
        return;
    }
    turn = (turn + 1) % resident;
    self->block->turn_rank = static_cast<unsigned>(draw() % 1024);
    make_ready(self);
    leave();
}

/* ---- Shared memory ---- */

/* Storage that no block has now.  What its cells remember is of epochs that never come again. */
static std::vector<shared_storage *> &shared_spare = *new std::vector<shared_storage *>;

static shared_storage *shared_take(size_t element_bytes, size_t count)
{
    shared_storage *storage;

    for (size_t i = shared_spare.size(); i > 0; i--) {
        storage = shared_spare[i - 1];
        if (storage->count == count && storage->element_bytes == element_bytes) {
            shared_spare.erase(shared_spare.begin() + static_cast<long>(i - 1));
            return storage;
        }
    }
    storage = new shared_storage{};
    storage->data = malloc(element_bytes * count);
    storage->cells = static_cast<shared_cell *>(calloc(count, sizeof(shared_cell)));
    storage->count = count;
    storage->element_bytes = element_bytes;
    return storage;
}

shared_storage *shared_find(size_t element_bytes, size_t count, site site)
{
    block *block = self->block;
    shared_storage *storage;

    for (shared_storage *known : block->shared) {
        if (same_site(known->where, site)) {
            return known;
        }
    }
    block->shared_bytes += element_bytes * count;
    if (block->shared_bytes > shared_bytes_max) {
        fault("%zu bytes of shared memory; a block has %zu", block->shared_bytes, shared_bytes_max);
    }
    storage = shared_take(element_bytes, count);
    storage->where = site;
    memset(storage->data, 0xa5, element_bytes * count);
    block->shared.push_back(storage);
    return storage;
}

static void shared_drop(block *block)
{
    for (shared_storage *storage : block->shared) {
        shared_spare.push_back(storage);
    }
    block->shared.clear();
    block->shared_bytes = 0;
}

static bool same_warp(int32_t a, int32_t b)
{
    return a / static_cast<int32_t>(warp_lanes) == b / static_cast<int32_t>(warp_lanes);
}

[[noreturn]] static void race(const shared_storage *storage, size_t index, const char *what,
                              int32_t other)
{
    fault("race: %s element %zu of the shared array declared at %s:%d, which thread %d %s since "
          "the last barrier",
          what, index, storage->where.file, storage->where.line, other,
          strcmp(what, "reads") == 0 ? "wrote" : "touched");
}

void shared_access(shared_storage *storage, size_t index, access access)
{
    const int32_t me = static_cast<int32_t>(self->number);
    const uint32_t block_epoch = self->block->epoch;
    const uint32_t warp_epoch = self->block->warps[self->number / warp_lanes].epoch;
    shared_cell *cell;

    if (index >= storage->count) {
        fault("out of bounds: element %zu of the shared array of %zu declared at %s:%d", index,
              storage->count, storage->where.file, storage->where.line);
    }
    cell = &storage->cells[index];
    if (cell->block_epoch_write == block_epoch && cell->writer != me &&
        !(access == ATOMIC && cell->write_atomic) &&
        !(same_warp(cell->writer, me) && cell->warp_epoch_write != warp_epoch)) {
        race(storage, index, access == READ ? "reads" : "writes", cell->writer);
    }
    if (access == READ) {
        bool again = cell->block_epoch_read == block_epoch;

        cell->warps = again && (cell->warps || !same_warp(cell->reader, me));
        cell->many_readers = again && cell->warp_epoch_read == warp_epoch &&
                             (cell->many_readers || cell->reader != me);
        cell->reader = me;
        cell->block_epoch_read = block_epoch;
        cell->warp_epoch_read = warp_epoch;
        return;
    }
    if (cell->block_epoch_read == block_epoch &&
        (cell->warps || !same_warp(cell->reader, me) ||
         (cell->warp_epoch_read == warp_epoch && (cell->many_readers || cell->reader != me)))) {
        race(storage, index, "writes", cell->reader);
    }
    cell->writer = me;
    cell->write_atomic = access == ATOMIC;
    cell->block_epoch_write = block_epoch;
    cell->warp_epoch_write = warp_epoch;
}

/* ---- A launch ---- */

/* The scheduler is told by the state; a thread that has ended is never switched to again. */
static void thread_main()
{
    fiber_entered(&scheduler);
    running->body(running->context);
    self->state = ENDED;
    leave();
    abort();
}

static void thread_ended(thread *t)
{
    block *block = t->block;
    const unsigned w = t->number / warp_lanes;

    block->ended++;
    block->warps[w].live &= ~(1u << t->number % warp_lanes);
    try_barrier(block);
}

static void start_block(block *block, unsigned number)
{
    const unsigned count = running->block.x;

    block->number = number;
    block->threads_count = count;
    block->ended = block->waiting = block->ready_count = 0;
    block->epoch = ++epochs;
    block->turn_rank = static_cast<unsigned>(draw() % 1024);
    memset(block->ready, 0, sizeof(block->ready));
    for (unsigned w = 0; w < warps_max; w++) {
        block->warps[w] = {0, 0, 1};
        block->rank[w] = static_cast<unsigned>(draw() % 1024);
    }
    for (unsigned i = 0; i < count; i++) {
        thread *t = &block->threads[i];

        if (!t->fiber.stack) {
            fiber_init(&t->fiber);
        }
        fiber_prepare(&t->fiber, thread_main);
        t->block = block;
        t->number = i;
        block->warps[i / warp_lanes].live |= 1u << i % warp_lanes;
        make_ready(t);
    }
}

static void run_thread(thread *t)
{
    self = t;
    current.thread = {t->number, 0, 0};
    current.block = {t->block->number, 0, 0};
    fiber_switch(&scheduler, &t->fiber);
    self = nullptr;
    if (t->state == ENDED) {
        thread_ended(t);
    }
}

/* The block of the highest rank that could go on; NULL: none. */
static block *ranked_block(const unsigned *used)
{
    block *best = nullptr;

    for (unsigned b = 0; b < resident; b++) {
        if (used[b] && blocks[b]->ready_count > 0 &&
            (!best || blocks[b]->turn_rank > best->turn_rank)) {
            best = blocks[b];
        }
    }
    return best;
}

/* A resident block that could go on; NULL: none. */
static block *next_block(const unsigned *used)
{
    const bool random = schedule.order == GK_SIMT_RANDOM;
    unsigned at = random ? static_cast<unsigned>(draw() % resident) : turn % resident;

    if (random && by_rank) {
        return ranked_block(used);
    }
    for (unsigned i = 0; i < resident; i++) {
        unsigned b = (at + i) % resident;

        if (used[b] && blocks[b]->ready_count > 0) {
            return blocks[b];
        }
    }
    return nullptr;
}

static unsigned how_many_resident(unsigned grid)
{
    unsigned most = schedule.order == GK_SIMT_RANDOM
                        ? 2 + static_cast<unsigned>(draw() % (resident_max - 1))
                        : 2;

    return grid < most ? grid : most;
}

/* The order in which blocks become resident. */
static unsigned block_number(unsigned i, unsigned grid, unsigned offset)
{
    switch (schedule.order) {
    case GK_SIMT_ASCENDING:
        return i;
    case GK_SIMT_DESCENDING:
        return grid - 1 - i;
    case GK_SIMT_RANDOM:
        break;
    }
    i = offset % 2 ? i : grid - 1 - i;
    return (i + offset / 2 % grid) % grid;
}

void run(const launch &launch)
{
    const unsigned grid = launch.grid.x;
    const unsigned offset = static_cast<unsigned>(draw());
    unsigned used[resident_max] = {};
    unsigned begun = 0;
    unsigned done = 0;

    running = &launch;
    current.block_dim = launch.block;
    current.grid_dim = launch.grid;
    resident = how_many_resident(grid);
    by_rank = draw() % 2 != 0;
    turn = 0;
    while (done < grid) {
        block *block;

        for (unsigned b = 0; b < resident; b++) {
            if (!blocks[b]) {
                blocks[b] = new simt::block();
            }
            if (used[b] && blocks[b]->ended == blocks[b]->threads_count) {
                shared_drop(blocks[b]);
                used[b] = 0;
                done++;
            }
            if (!used[b] && begun < grid) {
                start_block(blocks[b], block_number(begun++, grid, offset));
                used[b] = 1;
            }
        }
        block = next_block(used);
        if (block) {
            run_thread(pick(block));
            continue;
        }
        for (unsigned b = 0; b < resident; b++) {
            if (used[b] && blocks[b]->ended < blocks[b]->threads_count) {
                deadlock(blocks[b]);
            }
        }
    }
    running = nullptr;
}
} // namespace simt

extern "C" void gk_simt_schedule(enum gk_simt_order order, uint64_t seed)
{
    simt::schedule.order = order;
    simt::schedule.seed = simt::schedule.state = seed;
}

extern "C" void gk_simt_skip_barrier(const char *file, int line)
{
    simt::skipped = {file, line};
}
