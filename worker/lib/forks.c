#include "worker/lib/forks.h"

#include "worker/lib/engine_internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct gk_engine *first;

static void before_fork(void)
{
    (void)pthread_mutex_lock(&lock); /* fails for a broken mutex only */
}

static void in_parent(void)
{
    (void)pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    while (first) {
        struct gk_engine *engine = first;

        first = engine->next_open;
        gk_engine_forget(engine);
    }
    (void)pthread_mutex_unlock(&lock);
}

static void watch(void)
{
    (void)pthread_atfork(before_fork, in_parent, in_child); /* fails without memory only */
}

void gk_forks_begin(struct gk_engine *engine)
{
    (void)pthread_once(&once, watch);
    (void)pthread_mutex_lock(&lock);
    engine->next_open = first;
    first = engine;
    (void)pthread_mutex_unlock(&lock);
}

void gk_forks_end(struct gk_engine *engine)
{
    (void)pthread_mutex_lock(&lock);
    for (struct gk_engine **at = &first; *at; at = &(*at)->next_open) {
        if (*at == engine) {
            *at = engine->next_open;
            break;
        }
    }
    (void)pthread_mutex_unlock(&lock);
}
