/* Goal: what the children tell is summed correctly, odd lines do no harm, and the summary is valid
 * JSON whatever the numbers are. Method: lines as the daemons write them, totals worked out by
 * hand. */
#include "tool/json.h"
#include "tool/tally.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct gk_tally tally;
static struct gk_tally_total total;

static enum gk_tally_event tell(enum gk_role role, uint32_t index, const char *line)
{
    json_t *object = json_loads(line, 0, NULL);
    enum gk_tally_event event;

    cr_assert_not_null(object, "%s", line);
    event = gk_tally_line(&tally, role, index, object);
    json_decref(object);
    return event;
}

static void tell_good_run(void)
{
    cr_assert_eq(gk_tally_init(&tally, 2, 2), GK_OK);
    tell(GK_ROLE_WORKER, 0,
         "{\"event\":\"summary\",\"role\":\"worker\",\"rank\":0,\"steps\":100,\"samples\":3200,"
         "\"seconds\":2.0,"
         "\"loss\":0.5,\"accuracy\":0.9,\"test_loss\":0.25,\"bytes_pushed\":1000,\"bytes_pulled\":"
         "2000,"
         "\"bytes_headers\":30,\"bytes_dense\":40000,\"selected\":500,\"retries\":1,"
         "\"parameters\":55210,\"blas\":\"SomeBLAS 1\","
         "\"time\":{\"compute\":1.0,\"select\":0.5,\"push\":0.25,\"wait\":0.125,\"pull\":0}}");
    tell(GK_ROLE_WORKER, 1,
         "{\"event\":\"summary\",\"role\":\"worker\",\"rank\":1,\"steps\":100,\"samples\":3200,"
         "\"seconds\":2.5,"
         "\"loss\":1.0,\"bytes_pushed\":3000,\"bytes_pulled\":4000,\"bytes_headers\":10,\"bytes_"
         "dense\":40000,"
         "\"selected\":700,\"retries\":0,\"residuals_lost\":2,"
         "\"time\":{\"compute\":2.0,\"select\":0.5,\"push\":0.75,\"wait\":0.375,\"pull\":1}}");
    tell(GK_ROLE_SERVER, 0,
         "{\"event\":\"summary\",\"role\":\"server\",\"shard\":0,\"version\":100,\"model_hash\":"
         "\"ffffffffffffffff\",\"pushes\":200,\"applied\":190,\"returned\":5,\"skipped\":3,"
         "\"lost\":2}");
    tell(GK_ROLE_SERVER, 1,
         "{\"event\":\"summary\",\"role\":\"server\",\"shard\":1,\"version\":100,\"model_hash\":"
         "\"0000000000000003\",\"pushes\":200,\"applied\":200,\"returned\":0,\"skipped\":0,"
         "\"lost\":0}");
    gk_tally_total(&tally, &total);
}

static char *print(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    gk_tally_print(&total, "job-1", out);
    fclose(out);
    return text;
}

Test(tally, totals)
{
    char *text;

    tell_good_run();
    cr_assert(total.complete && total.hashed && total.one_version && total.balanced);
    cr_assert_eq(total.model_hash, 2); /* the sum wraps */
    cr_assert_eq(total.version, 100);
    cr_assert_eq(total.steps, 100);
    cr_assert_eq(total.samples, 6400);
    cr_assert_float_eq(total.seconds, 2.5, 0.0);
    cr_assert_float_eq(total.steps_per_s, 40.0, 1e-9);
    cr_assert_float_eq(total.samples_per_s, 2560.0, 1e-9);
    cr_assert_float_eq(total.loss, 0.75, 1e-9);
    cr_assert_float_eq(total.accuracy, 0.9, 1e-9);
    cr_assert_float_eq(total.test_loss, 0.25, 1e-9);
    cr_assert_eq(total.bytes_pushed, 4000);
    cr_assert_eq(total.bytes_pulled, 6000);
    cr_assert_eq(total.bytes_headers, 40);
    cr_assert_eq(total.bytes_dense, 80000);
    cr_assert_eq(total.selected, 1200);
    cr_assert_eq(total.retries, 1);
    cr_assert_eq(total.residuals_lost, 2);
    text = print();
    cr_assert_not_null(strstr(text, "  residuals lost    2 (a worker went on with an empty one"),
                       "%s", text);
    free(text);
    cr_assert_float_eq(total.time[0], 1.5, 1e-9);
    cr_assert_float_eq(total.time[4], 0.5, 1e-9);
    cr_assert_eq(total.pushes, 400);
    cr_assert_eq(total.applied, 390);
    cr_assert_eq(total.returned + total.skipped + total.lost, 10);
    gk_tally_fini(&tally);
}

Test(tally, who_ended_too_early)
{
    cr_assert_eq(gk_tally_init(&tally, 1, 2), GK_OK);
    tally.steps = 100;
    cr_assert(!gk_tally_short(&tally, 0), "it has not ended");
    tell(GK_ROLE_WORKER, 0, "{\"event\":\"summary\",\"steps\":100,\"left_before\":false}");
    cr_assert(!gk_tally_short(&tally, 0));
    tell(GK_ROLE_WORKER, 0, "{\"event\":\"summary\",\"steps\":99}");
    cr_assert(gk_tally_short(&tally, 0));
    tally.resumed = true;
    tally.resumed_from = 40;
    tell(GK_ROLE_WORKER, 0, "{\"event\":\"summary\",\"steps\":60,\"left_before\":false}");
    cr_assert(!gk_tally_short(&tally, 0));
    tell(GK_ROLE_WORKER, 0, "{\"event\":\"summary\",\"steps\":0,\"left_before\":true}");
    cr_assert(gk_tally_short(&tally, 0));
    tally.resumed_from = 100; /* the others have nothing left to do but to leave, too */
    cr_assert(!gk_tally_short(&tally, 0));
    gk_tally_fini(&tally);
}

Test(tally, faults_are_seen)
{
    tell_good_run();
    tell(GK_ROLE_SERVER, 1,
         "{\"event\":\"summary\",\"version\":99,\"model_hash\":\"3\",\"pushes\":200,\"applied\":"
         "199}");
    gk_tally_total(&tally, &total);
    cr_assert(!total.one_version && !total.hashed && !total.balanced);
    gk_tally_fini(&tally);

    cr_assert_eq(gk_tally_init(&tally, 1, 2), GK_OK);
    tell(GK_ROLE_SERVER, 0, "{\"event\":\"summary\",\"version\":1}");
    gk_tally_total(&tally, &total);
    cr_assert(!total.complete && !total.hashed);
    gk_tally_fini(&tally);
}

Test(tally, later_lives)
{
    json_t *config = json_object();
    json_t *json;
    char *text = NULL;

    cr_assert_eq(gk_tally_init(&tally, 1, 2), GK_OK);
    tally.steps = 100;
    tell(GK_ROLE_WORKER, 0, "{\"event\":\"progress\",\"step\":90,\"loss\":1.0}");
    tell(GK_ROLE_WORKER, 1, "{\"event\":\"progress\",\"step\":91,\"loss\":1.0}");
    gk_tally_restart(&tally, GK_ROLE_WORKER, 1);
    gk_tally_restart(&tally, GK_ROLE_WORKER, 0);
    gk_tally_restart(&tally, GK_ROLE_SERVER, 0);
    tell(GK_ROLE_WORKER, 1, "{\"event\":\"summary\",\"steps\":8,\"seconds\":0.5}");
    cr_assert_eq(gk_tally_step(&tally), 90);
    tell(GK_ROLE_WORKER, 0, "{\"event\":\"summary\",\"steps\":9,\"seconds\":0.25}");
    cr_assert_eq(gk_tally_step(&tally), 100);
    tell(GK_ROLE_SERVER, 0,
         "{\"event\":\"summary\",\"version\":100,\"pushes\":200,"
         "\"applied\":198,\"lost\":2}");
    tally.seconds = 4.0; /* no life of a worker was so long */
    gk_tally_total(&tally, &total);
    cr_assert_eq(total.steps, 100);
    cr_assert_eq(total.restarts, 3);
    cr_assert_float_eq(total.seconds, 4.0, 0.0);
    cr_assert_float_eq(total.steps_per_s, 25.0, 1e-9);
    cr_assert(total.balanced && total.complete);
    json = gk_tally_json(&total, "j", config);
    cr_assert_eq(json_integer_value(json_object_get(json, "restarts")), 3);
    json_decref(json);
    json_decref(config);
    text = print();
    cr_assert_not_null(strstr(text, "  restarts          3 (samples, times and bytes are"), "%s",
                       text);
    free(text);
    gk_tally_fini(&tally);
}

/* Copies of a user's program: nobody knows the number of steps, and one may have fewer. */
Test(tally, a_program_may_leave_when_it_likes)
{
    cr_assert_eq(gk_tally_init(&tally, 1, 3), GK_OK);
    tally.uneven = true;
    tell(GK_ROLE_WORKER, 0, "{\"event\":\"progress\",\"step\":50,\"loss\":1.0}");
    cr_assert(tally.workers[0].opened && !tally.workers[1].opened);
    tell(GK_ROLE_WORKER, 1, "{\"event\":\"note\",\"words\":\"x\"}");
    cr_assert(tally.workers[1].opened);
    tell(GK_ROLE_WORKER, 1, "{\"event\":\"summary\",\"steps\":40,\"seconds\":1}");
    tell(GK_ROLE_WORKER, 2, "{\"event\":\"progress\",\"step\":60,\"loss\":1.0}");
    cr_assert(!gk_tally_short(&tally, 1));
    cr_assert_eq(gk_tally_step(&tally), 50, "who has left holds nobody up");
    gk_tally_restart(&tally, GK_ROLE_WORKER, 0);
    tell(GK_ROLE_WORKER, 0, "{\"event\":\"eval\",\"step\":70,\"accuracy\":0.5}");
    tell(GK_ROLE_WORKER, 0, "{\"event\":\"summary\",\"steps\":30,\"seconds\":1}");
    tell(GK_ROLE_WORKER, 2, "{\"event\":\"summary\",\"steps\":80,\"seconds\":1}");
    cr_assert_eq(gk_tally_step(&tally), 80);
    tell(GK_ROLE_SERVER, 0, "{\"event\":\"summary\",\"version\":81}");
    gk_tally_total(&tally, &total);
    cr_assert_eq(total.steps, 81, "counted over all lives");
    cr_assert_float_eq(total.accuracy, 0.5, 0.0, "of the last evaluation");
    tally.resumed = true;
    tell(GK_ROLE_WORKER, 1, "{\"event\":\"summary\",\"steps\":0,\"left_before\":true}");
    cr_assert(gk_tally_short(&tally, 1));
    gk_tally_fini(&tally);
}

Test(tally, progress_is_that_of_the_slowest)
{
    cr_assert_eq(gk_tally_init(&tally, 1, 3), GK_OK);
    cr_assert_eq(gk_tally_step(&tally), 0);
    cr_assert(isnan(gk_tally_loss(&tally)));
    cr_assert_eq(tell(GK_ROLE_WORKER, 0, "{\"event\":\"progress\",\"step\":10,\"loss\":1.0}"),
                 GK_TALLY_PROGRESS);
    cr_assert_eq(tell(GK_ROLE_WORKER, 2, "{\"event\":\"progress\",\"step\":12,\"loss\":3}"),
                 GK_TALLY_PROGRESS);
    cr_assert_eq(gk_tally_step(&tally), 0);
    cr_assert_float_eq(gk_tally_loss(&tally), 2.0, 1e-9);
    tell(GK_ROLE_WORKER, 1, "{\"event\":\"progress\",\"step\":11,\"loss\":null}");
    cr_assert_eq(gk_tally_step(&tally), 10);
    cr_assert_float_eq(gk_tally_loss(&tally), 2.0, 1e-9);
    cr_assert_eq(
        tell(GK_ROLE_WORKER, 0, "{\"event\":\"eval\",\"step\":10,\"accuracy\":0.5,\"loss\":0.25}"),
        GK_TALLY_EVAL);
    cr_assert(tally.evaluated);
    cr_assert_float_eq(tally.accuracy, 0.5, 0.0);
    gk_tally_fini(&tally);
}

Test(tally, odd_lines_do_no_harm)
{
    static const char *const lines[] = {
        "{}",
        "{\"event\":7}",
        "{\"event\":\"something new\",\"x\":1}",
        "{\"event\":\"progress\"}",
        "{\"event\":\"progress\",\"step\":-4,\"loss\":\"x\"}",
        "{\"event\":\"progress\",\"step\":1e30}",
        "{\"event\":\"eval\",\"accuracy\":[]}",
        "{\"event\":\"endpoint\",\"address\":{}}",
        "{\"event\":\"summary\",\"time\":3,\"steps\":\"many\",\"model_hash\":12,\"pushes\":-1}",
        "{\"event\":\"summary\",\"time\":{\"compute\":null}}",
        "[1,2]",
    };

    cr_assert_eq(gk_tally_init(&tally, 1, 1), GK_OK);
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        tell(GK_ROLE_WORKER, 0, lines[i]);
        tell(GK_ROLE_SERVER, 0, lines[i]);
        gk_tally_total(&tally, &total);
        cr_assert(!total.hashed);
    }
    cr_assert_eq(tell(GK_ROLE_WORKER, 0, "{\"event\":\"death\"}"), GK_TALLY_DEATH);
    cr_assert_eq(tell(GK_ROLE_WORKER, 0, "{\"event\":\"note\"}"), GK_TALLY_NOTE);
    cr_assert_eq(tell(GK_ROLE_SERVER, 0, "{\"event\":\"endpoint\"}"), GK_TALLY_ENDPOINT);
    cr_assert_eq(tell(GK_ROLE_WORKER, 0, "{\"event\":\"endpoint\"}"), GK_TALLY_OTHER);
    gk_tally_fini(&tally);
}

Test(tally, summary_is_valid_json)
{
    json_t *config = json_pack("{s:i, s:s}", "servers", 2, "compressor", "topk");
    json_t *object, *back;
    char *text;

    tell_good_run();
    total.loss = NAN;
    total.steps_per_s = INFINITY;
    object = gk_tally_json(&total, "job-1", config);
    text = gk_json_dump(object, true);
    back = json_loads(text, 0, NULL);
    cr_assert_not_null(back);
    cr_assert(json_is_null(json_object_get(back, "loss")));
    cr_assert(json_is_null(json_object_get(back, "steps_per_s")));
    cr_assert_str_eq(json_string_value(json_object_get(back, "model_hash")), "0000000000000002");
    cr_assert_float_eq(gk_json_double(back, "accuracy"), 0.9, 1e-12);
    cr_assert_eq(gk_json_u64(back, "bytes_pushed", 0), 4000);
    cr_assert_eq(gk_json_u64(json_object_get(back, "config"), "servers", 0), 2);
    cr_assert_float_eq(gk_json_double(json_object_get(back, "time"), "push"), 0.5, 1e-12);
    cr_assert(gk_json_bool(json_object_get(back, "ledger"), "balanced"));
    cr_assert_eq(gk_json_u64(back, "parameters", 0), 55210);
    cr_assert_str_eq(json_string_value(json_object_get(back, "compressor")), "topk");
    cr_assert(json_is_null(json_object_get(back, "seed"))); /* not in this configuration */
    cr_assert_str_eq(total.blas, "SomeBLAS 1");
    json_decref(back);
    json_decref(object);
    free(text);
    total.hashed = false;
    object = gk_tally_json(&total, "job-1", config);
    cr_assert(json_is_null(json_object_get(object, "model_hash")));
    json_decref(object);
    json_decref(config);
    gk_tally_fini(&tally);
}

Test(tally, table_for_people)
{
    char *text;

    tell_good_run();
    text = print();
    cr_assert_not_null(strstr(text, "job job-1: 100 steps, 6 400 samples in 2.5 s\n"), "%s", text);
    cr_assert_not_null(strstr(text, "  accuracy          90.00 %\n"), "%s", text);
    cr_assert_not_null(strstr(text, "bytes pushed      3.9 KiB\n"), "%s", text);
    cr_assert_not_null(strstr(text, "bytes if dense    78.1 KiB (7.97 times as many)\n"), "%s",
                       text);
    cr_assert_not_null(strstr(text, "400 = 390 applied + 5 returned + 3 skipped + 2 lost\n"), "%s",
                       text);
    cr_assert_not_null(
        strstr(text, "compute 15 ms, select 5 ms, push 5 ms, wait 2.5 ms, pull 5 ms"), "%s", text);
    cr_assert_not_null(strstr(text, "0000000000000002\n"), "%s", text);
    free(text);
    total.bytes_dense = 2000; /* honest when compression costs more */
    total.hashed = total.balanced = false;
    text = print();
    cr_assert_not_null(strstr(text, "compression does not pay"), "%s", text);
    cr_assert_not_null(strstr(text, "DOES NOT BALANCE"), "%s", text);
    cr_assert_not_null(strstr(text, "model hash        -\n"), "%s", text);
    free(text);
    gk_tally_fini(&tally);
}
