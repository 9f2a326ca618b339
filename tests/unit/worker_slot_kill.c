/* Goal: a worker that is killed at any instant leaves the state before a change or the one behind
 * it, whole; and what it confirmed is there.
 * Method: a hook between the stores copies the file, and the copy is opened as a new process would;
 * and processes that are killed by SIGKILL while they write as fast as they can. */
#include "worker_slot_rig.h"

#include <signal.h>
#include <sys/wait.h>

struct state { /* what a reader may find */
    bool remembers;
    uint64_t step, first_step;
    uint32_t incarnation;
    uint64_t left_at;
};

struct witness { /* of every instant */
    struct slot_rig rig, copy;
    struct state before, after;
    uint32_t looks, old, new;
    bool opened;
};

static void copy_file(const struct slot_rig *from, const struct slot_rig *to, const char *name)
{
    char source[2 * SLOT_PATH_BYTES], target[2 * SLOT_PATH_BYTES], bytes[65536];
    int in, out;
    ssize_t size;

    slot_path(from, name, source);
    slot_path(to, name, target);
    (void)unlink(target);
    in = open(source, O_RDONLY);
    if (in < 0) {
        return;
    }
    out = open(target, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    cr_assert(out >= 0);
    while ((size = read(in, bytes, sizeof(bytes))) > 0) {
        cr_assert(write(out, bytes, (size_t)size) == size);
    }
    (void)close(in);
    (void)close(out);
}

static bool is(const struct slot_rig *rig, const struct state *state)
{
    const struct gk_worker_slot *found = &rig->found.slot;

    return found->remembers == state->remembers &&
           found->identity.incarnation == state->incarnation &&
           found->identity.left_at == state->left_at &&
           (!state->remembers ||
            (found->memory.step == state->step && found->memory.first_step == state->first_step));
}

static void look(void *context, const char *where)
{
    struct witness *w = context;
    bool old, new;

    copy_file(&w->rig, &w->copy, "slot");
    copy_file(&w->rig, &w->copy, "slot.tmp");
    cr_assert(slot_rig_open(&w->copy) == GK_OK, "%s: %s", where, w->copy.words.text);
    cr_assert_str_empty(w->copy.found.damage.text, "%s: %s", where, w->copy.found.damage.text);
    old = is(&w->copy, &w->before);
    new = is(&w->copy, &w->after);
    cr_assert(old || new, "%s: step %llu, incarnation %u", where,
              (unsigned long long)w->copy.found.slot.memory.step,
              w->copy.found.slot.identity.incarnation);
    slot_judge(&w->copy);
    w->looks++;
    w->old += old;
    w->new += new;
    slot_rig_close(&w->copy);
}

/* The change has happened: only the new state may be seen. */
static void settle(struct witness *w)
{
    w->before = w->after;
    look(w, "settled");
}

static void step_to(struct witness *w, uint64_t step, uint64_t first_step)
{
    w->after.remembers = true;
    w->after.step = step;
    w->after.first_step = first_step;
    slot_step(&w->rig, step, first_step);
    settle(w);
}

static void remember(struct witness *w, uint32_t incarnation, uint64_t left_at)
{
    struct gk_worker_identity identity = slot_identity(incarnation);

    identity.left_at = left_at;
    w->after.incarnation = incarnation;
    w->after.left_at = left_at;
    cr_assert(gk_slot_remember(w->rig.slot, &identity, &w->rig.words) == GK_OK);
    settle(w);
}

static void forget(struct witness *w)
{
    w->after.remembers = false;
    cr_assert(gk_slot_void(w->rig.slot, &w->rig.words) == GK_OK);
    settle(w);
}

/* Twelve steps, so that every place of the ring and both residuals are written again and again. */
static void live(bool sync)
{
    struct witness w = {.looks = 0};

    slot_rig_init(&w.rig);
    slot_rig_init(&w.copy);
    w.rig.setup.hook = look;
    w.rig.setup.hook_context = &w;
    w.rig.setup.sync = sync;
    cr_assert(slot_rig_open(&w.rig) == GK_OK, "%s", w.rig.words.text);
    cr_assert(w.rig.found.created && w.looks > 0);
    settle(&w);
    remember(&w, 1, 0);
    for (uint64_t t = 0; t < 7; t++) {
        step_to(&w, t, 0);
        remember(&w, 2 + (uint32_t)t, 0);
    }
    forget(&w);
    for (uint64_t t = 20; t < 25; t++) {
        step_to(&w, t, 20);
    }
    forget(&w); /* now the newer residual is the other one */
    remember(&w, 30, 25);
    cr_assert_gt(w.looks, 150);
    cr_assert_gt(w.old, 50);
    slot_rig_fini(&w.rig);
    slot_rig_fini(&w.copy);
}

Test(slot_kill, at_every_store)
{
    live(false);
}

Test(slot_kill, at_every_store_with_syncs)
{
    live(true);
}

/* A step whose push was written but that never counted, then another memory: nothing of it comes
 * back. */
Test(slot_kill, step_that_never_counted)
{
    struct slot_rig rig;
    struct gk_push *push = slot_push(3);

    slot_rig_init(&rig);
    cr_assert(slot_rig_open(&rig) == GK_OK);
    slot_remember(&rig, 1);
    for (uint64_t t = 0; t < 3; t++) {
        slot_step(&rig, t, 0);
    }
    gk_slot_begin(rig.slot, 3);
    cr_assert(gk_slot_put(rig.slot, push, &rig.words) == GK_OK);
    gk_push_free(push);
    cr_assert(gk_slot_void(rig.slot, &rig.words) == GK_OK);
    for (uint64_t t = 4; t < 6; t++) {
        slot_step(&rig, t, 4);
        slot_rig_close(&rig);
        cr_assert(slot_rig_open(&rig) == GK_OK);
        cr_assert(rig.found.slot.remembers && rig.found.slot.memory.step == t);
        cr_assert_eq(rig.found.slot.pushes_count, t - 3);
        slot_judge(&rig);
    }
    slot_rig_fini(&rig);
}

/* Steps as fast as they go, one byte to the parent behind each. */
static void write_for_ever(struct slot_rig *rig, int pipe)
{
    uint64_t step;

    if (slot_rig_open(rig) != GK_OK) {
        _exit(1);
    }
    step = rig->found.slot.remembers ? rig->found.slot.memory.step + 1 : 0;
    for (uint32_t n = 0;; n++, step++) {
        slot_remember(rig, (uint32_t)step + 1);
        slot_step(rig, step, 0);
        if (write(pipe, "", 1) != 1) {
            _exit(2);
        }
    }
}

Test(slot_kill, by_sigkill)
{
    struct slot_rig rig;
    uint64_t confirmed = 0;

    slot_rig_init(&rig);
    for (uint32_t round = 0; round < 30; round++) {
        uint32_t wanted = 1 + round * 7 % 23;
        int ends[2], status;
        char byte;
        pid_t child;

        cr_assert(pipe(ends) == 0);
        child = fork();
        cr_assert(child >= 0);
        if (child == 0) {
            write_for_ever(&rig, ends[1]);
        }
        (void)close(ends[1]);
        for (uint32_t i = 0; i < wanted; i++) {
            cr_assert(read(ends[0], &byte, 1) == 1);
            confirmed++;
        }
        cr_assert(kill(child, SIGKILL) == 0);
        cr_assert(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        while (read(ends[0], &byte, 1) == 1) {
            confirmed++;
        }
        (void)close(ends[0]);
        cr_assert(slot_rig_open(&rig) == GK_OK, "%s", rig.words.text);
        cr_assert_str_empty(rig.found.damage.text);
        cr_assert(rig.found.slot.remembers);
        cr_assert_geq(rig.found.slot.memory.step + 1, confirmed);
        cr_assert_leq(rig.found.slot.memory.step + 1, confirmed + 1);
        slot_judge(&rig);
        confirmed = rig.found.slot.memory.step + 1;
        slot_rig_close(&rig);
    }
    slot_rig_fini(&rig);
}
