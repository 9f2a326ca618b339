/* What stories are told with: rules about messages, and "go on until". */
#ifndef GK_TESTS_SIM_STORY_H
#define GK_TESTS_SIM_STORY_H

#include "tests/sim/sim.h"

enum { GK_STORY_RULES_MAX = 8 };

#define GK_STORY_ANY UINT64_MAX

struct gk_story_rule { /* the first that fits decides */
    uint32_t kind;
    bool to_shard;
    uint64_t proc, shard, step, chunk; /* GK_STORY_ANY: all; step of PULL_DENSE is its version */
    enum gk_sim_fate fate;
    uint32_t seen; /* out */
};

struct gk_story {
    struct gk_story_rule rules[GK_STORY_RULES_MAX];
    uint32_t rules_count;
};

/* Replaces all rules by none. */
void gk_story_rules_clear(struct gk_sim *sim);
struct gk_story_rule *gk_story_rule(struct gk_sim *sim, const struct gk_story_rule *rule);

/* One event; false: the story is over, one way or another. */
bool gk_story_turn(struct gk_sim *sim);
void gk_story_pass_us(struct gk_sim *sim, uint64_t length_us);
void gk_story_until_version(struct gk_sim *sim, uint32_t shard, uint64_t version);
void gk_story_until_kept(struct gk_sim *sim, uint32_t count);
void gk_story_until_seen(struct gk_sim *sim, const struct gk_story_rule *rule, uint32_t count);
void gk_story_until_phase(struct gk_sim *sim, uint32_t proc, enum gk_worker_phase phase,
                          uint64_t version);
void gk_story_until_session(struct gk_sim *sim, uint32_t proc, uint32_t shard);
void gk_story_until_ended(struct gk_sim *sim, uint32_t proc);

/* All that is kept arrives, or never does. */
void gk_story_release(struct gk_sim *sim, uint32_t kind);
void gk_story_release_all(struct gk_sim *sim);
void gk_story_drop_all(struct gk_sim *sim);

/* The work of a node that is under way ends later; false: there is none. */
bool gk_story_delay(struct gk_sim *sim, uint32_t node, enum gk_sim_work work, uint64_t length_us);

/* From now on nothing is in the way, and the job must end. */
void gk_story_end(struct gk_sim *sim);

void gk_story_expect(struct gk_sim *sim, bool holds, const char *what);

/* story_network.c */
void gk_story_old_ack(struct gk_sim *sim);
void gk_story_before_hello(struct gk_sim *sim);
void gk_story_another_job(struct gk_sim *sim);
void gk_story_another_epoch(struct gk_sim *sim);
void gk_story_late_verdict(struct gk_sim *sim);
void gk_story_half_sent(struct gk_sim *sim);
void gk_story_torn_pull(struct gk_sim *sim);
void gk_story_mixed_chunks(struct gk_sim *sim);
void gk_story_leave_logged(struct gk_sim *sim);

/* story_lives.c */
void gk_story_half_residual(struct gk_sim *sim);
void gk_story_before_flip(struct gk_sim *sim);
void gk_story_lost_worker(struct gk_sim *sim);
void gk_story_lost_shard(struct gk_sim *sim);
void gk_story_lost_shard_and_rank_0(struct gk_sim *sim);
void gk_story_init_dies(struct gk_sim *sim);
void gk_story_zombie(struct gk_sim *sim);
void gk_story_no_disk(struct gk_sim *sim);
void gk_story_fenced(struct gk_sim *sim);
void gk_story_stopped(struct gk_sim *sim);
void gk_story_all_asleep(struct gk_sim *sim);
void gk_story_no_server(struct gk_sim *sim);

/* story_clients.c */
void gk_story_with_rates(struct gk_sim_options *options);
void gk_story_with_sums(struct gk_sim_options *options);
void gk_story_rates_differ(struct gk_sim *sim);
void gk_story_parameters_lost(struct gk_sim *sim);

/* story_disks.c */
void gk_story_with_disks(struct gk_sim_options *options);
void gk_story_long_with_disks(struct gk_sim_options *options);
void gk_story_large_records(struct gk_sim_options *options);
void gk_story_twelve_steps(struct gk_sim_options *options);
void gk_story_interval(struct gk_sim_options *options);
void gk_story_never(struct gk_sim_options *options);
void gk_story_full_disk(struct gk_sim *sim);
void gk_story_sync_fails(struct gk_sim *sim);
void gk_story_sync_fails_at_start(struct gk_sim *sim);
void gk_story_page_cache(struct gk_sim *sim);
void gk_story_torn_tail(struct gk_sim *sim);
void gk_story_tail_again(struct gk_sim *sim);
void gk_story_lost_tail(struct gk_sim *sim);
void gk_story_never_killed(struct gk_sim *sim);
void gk_story_leave_synced(struct gk_sim *sim);
void gk_story_half_rewind(struct gk_sim *sim);
void gk_story_fold_dies(struct gk_sim *sim);

#endif
