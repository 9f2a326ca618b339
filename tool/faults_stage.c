#include "tool/faults_stage.h"

#include "tool/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Takes the object.  Lines are short: a pipe takes each of them whole.  A judge that is gone has no
 * use for them. */
static void tell(const struct gk_faults_stage *stage, json_t *object)
{
    char *text = gk_json_dump(object, false);
    ssize_t written = 0;

    while (text && (written = write(stage->report_fd, text, strlen(text))) < 0 && errno == EINTR) {
    }
    free(text);
    json_decref(object);
}

void gk_faults_stage_done(const struct gk_faults_stage *stage, uint32_t fault)
{
    tell(stage, json_pack("{s:s, s:i}", "event", "done", "fault", (int)fault));
}

void gk_faults_stage_freeze(const struct gk_faults_stage *stage, uint64_t length_us)
{
    tell(stage, json_pack("{s:s, s:o}", "event", "freeze", "us", gk_json_integer(length_us)));
}

void gk_faults_stage_result(const struct gk_faults_stage *stage, const struct gk_tally *tally)
{
    struct gk_tally_total total;

    gk_tally_total(tally, &total);
    tell(stage, json_pack("{s:s, s:b, s:b, s:o, s:o, s:o}", "event", "result", "complete",
                          (int)total.complete, "hashed", (int)total.hashed, "model_hash",
                          gk_json_hash(total.model_hash), "lost", gk_json_integer(total.lost),
                          "restarts", gk_json_integer(total.restarts)));
}
