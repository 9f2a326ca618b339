/* `gkps run -- COMMAND ...`: the workers are copies of a program of the user's.  What it is told,
 * it finds in its environment: which process it is (also by the names of torchrun), and those
 * options that were given, so that no default of ours overrides a setting of its own. */
#ifndef GK_TOOL_RUN_COMMAND_H
#define GK_TOOL_RUN_COMMAND_H

#include "tool/run_child.h"
#include "tool/run_options.h"

/* Is there a command, and not gkps-worker? */
bool gk_run_is_command(const struct gk_run_config *run);

/* An option that was given and has no meaning for a program of the user's; NULL: none. */
const char *gk_run_command_refuses(const struct gk_run_config *run);

/* Is it a program that can be started, as far as that is known before?  GK_E_CONFIG, words and
 * *ret_exit. */
enum gk_err gk_run_command_check(const struct gk_run_config *run, int *ret_exit,
                                 struct gk_words *words);

/* The command as one line for people, in the notation of a shell, cut where it is too long. */
void gk_run_command_text(const struct gk_run_config *run, char *ret, size_t ret_bytes);

/* Is the option a matter of the program, as long as nobody has said otherwise? */
bool gk_run_command_leaves_open(const struct gk_run_config *run, const struct gk_option *option);

/* A list of its words; null when there is no command.  NULL: out of memory. */
json_t *gk_run_command_json(const struct gk_run_config *run);

/* The options that it finds in its environment: "compressor topk, density 0.001"; "" when none was
 * given. */
void gk_run_command_options(const struct gk_run_config *run, char *ret, size_t ret_bytes);

/* `environment` (of this process) as a copy of the program sees it. */
void gk_run_command_environment(const struct gk_run_config *run, const struct gk_run_place *place,
                                const char *const *environment, struct gk_args *ret);

#endif
