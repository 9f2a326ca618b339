/* Goal: answers to STATUS are put together and shown right, faults stand out, and no JSON of a peer
 * can do harm. Method: samples as servers write them; then every value of a sample is replaced by
 * values of every other type. */
#include "common/exit.h"
#include "tool/json.h"
#include "tool/status_view.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

static const char *const samples[2] = {
    "{\"job\":\"j1\",\"job_uid\":\"00ff\",\"shard\":0,\"servers\":2,\"workers\":2,\"state\":"
    "\"running\","
    "\"version\":12,\"durable_version\":12,\"model_hash\":\"ffffffffffffffff\",\"hash_version\":10,"
    "\"params\":96,"
    "\"lo\":0,\"hi\":96,\"uptime_s\":12.5,\"ranks\":["
    "{\"rank\":0,\"state\":\"present\",\"incarnation\":1,\"step\":13,\"last_heard_s\":0.25,"
    "\"contributed\":true,"
    "\"waits_for\":\"shard 1 version 13\"},"
    "{\"rank\":1,\"state\":\"absent\",\"incarnation\":2,\"step\":12,\"last_heard_s\":null,"
    "\"contributed\":false,"
    "\"waits_for\":null}],"
    "\"round\":{\"step\":12,\"missing\":[1],\"open_s\":3.5},"
    "\"ledger\":{\"pushes\":25,\"applied\":24,\"returned\":0,\"skipped\":0,\"lost\":0,\"pending\":"
    "1,"
    "\"duplicates\":2,\"nacks\":3,\"bad_messages\":4},"
    "\"bytes\":{\"in\":2048,\"out\":4096},\"memory\":{\"reserved\":1048576}}",
    "{\"job\":\"j1\",\"job_uid\":\"00ff\",\"shard\":1,\"servers\":2,\"workers\":2,\"state\":"
    "\"running\","
    "\"version\":13,\"durable_version\":12,\"model_hash\":\"0000000000000003\",\"hash_version\":10,"
    "\"params\":100,"
    "\"lo\":96,\"hi\":196,\"uptime_s\":12.5,\"ranks\":["
    "{\"rank\":0,\"state\":\"present\",\"incarnation\":1,\"step\":14,\"last_heard_s\":0.5,"
    "\"contributed\":false,"
    "\"waits_for\":null},"
    "{\"rank\":1,\"state\":\"present\",\"incarnation\":2,\"step\":13,\"last_heard_s\":2.0,"
    "\"contributed\":false,"
    "\"waits_for\":null}],\"round\":null,"
    "\"ledger\":{\"pushes\":26,\"applied\":26,\"returned\":0,\"skipped\":0,\"lost\":0,\"pending\":"
    "0,"
    "\"duplicates\":0,\"nacks\":0,\"bad_messages\":0},"
    "\"bytes\":{\"in\":2048,\"out\":4096},\"memory\":{\"reserved\":1048576}}",
};

static struct gk_status_server servers[2];
static json_t *answers[2];

static void setup(void)
{
    for (int i = 0; i < 2; i++) {
        answers[i] = json_loads(samples[i], 0, NULL);
        cr_assert_not_null(answers[i]);
        servers[i].address = i ? "tcp://h:2" : "tcp://h:1";
        servers[i].status = answers[i];
        servers[i].words = "it is gone";
    }
}

static void teardown(void)
{
    json_decref(answers[0]);
    json_decref(answers[1]);
}

static char *print(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    gk_status_print(servers, 2, out);
    fclose(out);
    return text;
}

static void expect(const char *wanted)
{
    char *text = print();

    cr_assert_not_null(strstr(text, wanted), "no \"%s\" in:\n%s", wanted, text);
    free(text);
}

TestSuite(view, .init = setup, .fini = teardown);

Test(view, whole_job)
{
    struct gk_status_total total;

    gk_status_total(servers, 2, &total);
    cr_assert(total.one_job && total.whole && total.hashed && total.balanced);
    cr_assert_eq(total.answers, 2);
    cr_assert_eq(total.model_hash, 2); /* wraps */
    cr_assert_eq(total.hash_version, 10);
    cr_assert_eq(gk_status_code(servers, 2), GK_EXIT_OK);
    expect("job j1 (00ff): 2 servers, 2 workers\nmodel hash 0000000000000002 at version 10\n");
    expect("    0  tcp://h:1  running       12       12          96  ffffffffffffffff  2.0 KiB");
    expect("   0  present            1      13-14      250 ms          1/2  shard 1 version 13\n");
    expect("   1  absent/present     2      12-13       2.0 s          0/2  -\n");
    expect("shard 0: round of step 12 is open for 3.5 s, waits for rank 1\n");
    expect("    0      25       24         0        0     0        1           2      3            "
           " 4  ok\n");
}

Test(view, faults_stand_out)
{
    struct gk_status_total total;

    json_object_set_new(json_object_get(answers[0], "ledger"), "applied", json_integer(23));
    cr_assert_eq(gk_status_imbalance(answers[0]), 1);
    cr_assert_eq(gk_status_code(servers, 2), GK_EXIT_INTERNAL);
    expect("OFF BY 1\n");
    json_object_set_new(json_object_get(answers[0], "ledger"), "applied", json_integer(30));
    cr_assert_eq(gk_status_imbalance(answers[0]), -6);

    json_object_set_new(answers[1], "hash_version", json_integer(11));
    gk_status_total(servers, 2, &total);
    cr_assert(total.whole && !total.hashed);

    json_object_set_new(answers[1], "shard",
                        json_integer(0)); /* the same shard twice is not the whole job */
    gk_status_total(servers, 2, &total);
    cr_assert(!total.whole);

    json_object_set_new(answers[1], "job_uid", json_string("0100"));
    gk_status_total(servers, 2, &total);
    cr_assert(!total.one_job);
    expect("different jobs");
}

Test(view, a_server_that_is_away)
{
    json_t *object;

    servers[0].status = NULL;
    cr_assert_eq(gk_status_code(servers, 2), GK_EXIT_PEER);
    expect("tcp://h:1  no answer");
    expect("job j1");
    object = gk_status_json(servers, 2);
    cr_assert(!gk_json_bool(object, "complete") && !gk_json_bool(object, "whole_job"));
    cr_assert(json_is_null(json_object_get(object, "model_hash")));
    cr_assert_str_eq(json_string_value(json_object_get(
                         json_array_get(json_object_get(object, "servers"), 0), "error")),
                     "it is gone");
    json_decref(object);
    servers[1].status = NULL;
    object = gk_status_json(servers, 2);
    cr_assert(!gk_json_bool(object, "whole_job"));
    json_decref(object);
    free(print());
}

Test(view, json)
{
    json_t *object = gk_status_json(servers, 2);
    json_t *first = json_array_get(json_object_get(object, "servers"), 0);

    cr_assert(gk_json_bool(object, "complete") && gk_json_bool(object, "balanced"));
    cr_assert_str_eq(json_string_value(json_object_get(object, "model_hash")), "0000000000000002");
    cr_assert(json_equal(json_object_get(first, "status"), answers[0]));
    cr_assert_eq(gk_json_u64(first, "imbalance", 9), 0);
    json_decref(object);
}

static void show_all(void)
{
    struct gk_status_total total;
    json_t *object;

    free(print());
    gk_status_total(servers, 2, &total);
    object = gk_status_json(servers, 2);
    cr_assert_not_null(object);
    json_decref(object);
}

/* The value at `key` of `parent` in turn is of every other type, an extreme number, or missing. */
static void replace(json_t *parent, const char *key)
{
    static const char *const odd[] = {"null",  "true",           "-1", "9223372036854775807",
                                      "1e300", "\"\\u001b[2J\"", "[]", "[[[]],{},\"x\",-5,null]",
                                      "{}",    "{\"rank\":[]}"};
    json_t *before = json_incref(json_object_get(parent, key));

    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        json_object_set_new(parent, key, json_loads(odd[i], JSON_DECODE_ANY, NULL));
        show_all();
    }
    json_object_del(parent, key);
    show_all();
    json_object_set_new(parent, key, before);
}

static void replace_each(json_t *parent)
{
    json_t *keys = json_array();
    const char *key;
    json_t *value;
    size_t i;

    json_object_foreach(parent, key, value)
    {
        json_array_append_new(keys, json_string(key));
    }
    json_array_foreach(keys, i, value)
    {
        replace(parent, json_string_value(value));
    }
    json_decref(keys);
}

Test(view, any_json_is_survived)
{
    json_t *before;

    replace_each(answers[0]);
    replace_each(json_object_get(answers[0], "ledger"));
    replace_each(json_object_get(answers[0], "round"));
    replace_each(json_array_get(json_object_get(answers[0], "ranks"), 1));
    before = json_loads(samples[0], 0, NULL);
    cr_assert(json_equal(answers[0], before));
    json_decref(before);
}

Test(view, terminals_get_no_control_characters)
{
    static const char *const keys[] = {"job", "job_uid", "state", "model_hash"};
    char *text;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        json_object_set_new(answers[0], keys[i], json_string("\x1b[2J\x07"));
    }
    json_object_set_new(json_array_get(json_object_get(answers[0], "ranks"), 0), "waits_for",
                        json_string("\x1b"));
    text = print();
    for (const char *at = text; *at; at++) {
        cr_assert(*at == '\n' || (unsigned char)*at >= 32);
    }
    free(text);
}
