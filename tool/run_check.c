/* What no option table can say: values that are wrong beside others, or in a way of their own.  The
 * daemons know these rules as well, but they would tell them after the start, and by the names that
 * the values have inside. */
#include "tool/run_options.h"

#include "common/device.h"
#include "common/limits.h"
#include "common/option_rows.h"
#include "common/shown.h"
#include "proto/msg.h"
#include "tool/run_command.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Digits up to the next comma or the end; 0: there are none, or too many. */
static uint64_t read_step(const char **at)
{
    uint64_t step = 0;
    const char *text = *at;

    for (; *text >= '0' && *text <= '9' && step <= UINT32_MAX; text++) {
        step = step * 10 + (uint64_t)(*text - '0');
    }
    if (text == *at || step > UINT32_MAX || (*text && *text != ',') || (*text && !text[1])) {
        return 0;
    }
    *at = *text ? text + 1 : text;
    return step;
}

static const char *check_milestones(const struct gk_run_options *options, struct gk_words *words)
{
    const char *at = options->milestones;
    uint64_t last = 0;
    uint32_t count = 0;

    if (options->schedule != GK_RUN_MILESTONES) {
        if (!*at) {
            return NULL;
        }
        gk_words_set(words, "'%s' needs --schedule milestones", gk_shown(at).text);
        return "milestones";
    }
    if (!*at) {
        gk_words_set(words, "milestones needs steps: --milestones 500,750");
        return "schedule";
    }
    while (*at) {
        uint64_t step = read_step(&at);

        if (step <= last) {
            gk_words_set(words,
                         "'%s' is no list of rising steps from 1 to %" PRIu32 ", like 500,750",
                         gk_shown(options->milestones).text, UINT32_MAX);
            return "milestones";
        }
        last = step;
        count++;
    }
    if (count > GK_MILESTONES_MAX) {
        gk_words_set(words, "%u steps; at most %d", count, GK_MILESTONES_MAX);
        return "milestones";
    }
    return NULL;
}

/* The servers compute in single precision: a number must not become another one there. */
static const char *check_floats(const struct gk_run_options *options, struct gk_words *words)
{
    const struct {
        const char *name;
        double value;
    } floats[] = {
        {"lr", options->lr},
        {"momentum", options->momentum},
        {"beta1", options->beta1},
        {"beta2", options->beta2},
        {"weight-decay", options->weight_decay},
        {"lr-gamma", options->lr_gamma},
        {"lr-min", options->lr_min},
        {"clip", options->clip},
    };
    const struct {
        const char *name;
        double value;
    } shares[] = {
        {"momentum", options->momentum},
        {"beta1", options->beta1},
        {"beta2", options->beta2},
    };

    for (size_t i = 0; i < sizeof(floats) / sizeof(floats[0]); i++) {
        if (floats[i].value > 0.0 && !((float)floats[i].value > 0.0F)) {
            gk_words_set(words, "%g is too small: in single precision it is 0", floats[i].value);
            return floats[i].name;
        }
    }
    for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
        if (!((float)shares[i].value < 1.0F)) {
            gk_words_set(words,
                         "must be less than 1 (in single precision): nothing would ever settle");
            return shares[i].name;
        }
    }
    if (!((float)options->epsilon >= 1e-30F)) {
        gk_words_set(words, "%g is less than 1e-30 in single precision", options->epsilon);
        return "epsilon";
    }
    return NULL;
}

/* What is set, and the optimizer has no use for. */
static const char *check_optimizer(const struct gk_run_options *options, struct gk_words *words)
{
    bool adamw = options->optimizer == GK_RUN_ADAMW;
    bool moment = options->optimizer == GK_RUN_MOMENTUM || options->optimizer == GK_RUN_NESTEROV;
    const struct {
        const char *name, *usual;
        double value;
        bool used;
    } all[] = {
        {"momentum", GK_OPTION_MOMENTUM, options->momentum, moment},
        {"beta1", GK_OPTION_BETA1, options->beta1, adamw},
        {"beta2", GK_OPTION_BETA2, options->beta2, adamw},
        {"epsilon", GK_OPTION_EPSILON, options->epsilon, adamw},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (!all[i].used && all[i].value != strtod(all[i].usual, NULL)) {
            gk_words_set(words, "%g needs --optimizer %s", all[i].value,
                         i > 0   ? "adamw"
                         : adamw ? "momentum or nesterov (adamw has --beta1)"
                                 : "momentum or nesterov");
            return all[i].name;
        }
    }
    return NULL;
}

/* Is the value in force?  What a program of the user's was not told, it decides itself. */
static bool in_force(const struct gk_run_config *run, const char *name)
{
    return !gk_run_is_command(run) || gk_run_given(run, name);
}

static const char *check_rate(const struct gk_run_config *run, struct gk_words *words)
{
    const struct gk_run_options *options = &run->options;
    const char *name = check_floats(options, words);

    if (!name && in_force(run, "optimizer")) {
        name = check_optimizer(options, words);
    }
    if (name) {
        return name;
    }
    if (options->warmup > options->steps && in_force(run, "steps")) {
        gk_words_set(words, "%" PRIu64 " is more than --steps %" PRIu64, options->warmup,
                     options->steps);
        return "warmup";
    }
    if (!in_force(run, "schedule")) {
        return NULL;
    }
    if (options->lr_min > 0.0 && options->schedule != GK_RUN_COSINE) {
        gk_words_set(words, "%g needs --schedule cosine", options->lr_min);
        return "lr-min";
    }
    if (options->schedule == GK_RUN_COSINE && options->lr_min > options->lr &&
        in_force(run, "lr")) {
        gk_words_set(words, "%g is more than the rate it falls from, --lr %g", options->lr_min,
                     options->lr);
        return "lr-min";
    }
    return check_milestones(options, words);
}

/* Where a data set lies. */
struct place {
    const char *prefix;
    bool is_file;
    bool is_text;
};

static const struct place *find_place(const char *data)
{
    static const struct place places[] = {
        {"mnist:", false, false}, {"cifar10:", false, false}, {"text:", true, true}};

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (strncmp(data, places[i].prefix, strlen(places[i].prefix)) == 0) {
            return &places[i];
        }
    }
    return NULL;
}

/* Whether what is in the folder makes sense is for the workers to find out. */
static const char *check_data(const struct gk_run_config *run, bool *ret_data,
                              struct gk_words *words)
{
    const char *data = run->options.data;
    const struct place *place = find_place(data);
    const char *where = place ? data + strlen(place->prefix) : data;
    bool reads = strcmp(gk_config_text(run->config, "model"), "charlstm") == 0;
    int fd;

    if ((!place && strcmp(data, "digits") != 0) || !*where) {
        gk_words_set(words, "'%s' is not digits, mnist:DIR, cifar10:DIR or text:FILE",
                     gk_shown(data).text);
        return "data";
    }
    if (reads && !(place && place->is_text)) {
        gk_words_set(words, "charlstm takes text: --data text:FILE");
        return "model";
    }
    if (!reads && place && place->is_text) {
        gk_words_set(words, "%s takes images, not text: charlstm does",
                     gk_config_text(run->config, "model"));
        return "data";
    }
    if (!place) {
        return NULL;
    }
    fd = open(where, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (place->is_file ? 0 : O_DIRECTORY));
    if (fd < 0) {
        gk_words_set(words, "the %s %.200s cannot be read: %s", place->is_file ? "file" : "folder",
                     where, strerror(errno));
        *ret_data = true;
        return "data";
    }
    (void)close(fd);
    return NULL;
}

static const char *check_backend(const struct gk_run_options *options, struct gk_words *words)
{
    struct gk_device device;

    if (gk_device_parse(options->backend, &device)) {
        return NULL; /* whether there is such a device is for the workers to find out */
    }
    gk_words_set(words, "'%s' is not " GK_DEVICE_CHOICES, gk_shown(options->backend).text);
    return "backend";
}

/* The smallest model there is cannot be cut into any number of shards. */
static const char *check_servers(const struct gk_run_config *run, struct gk_words *words)
{
    static const uint64_t least = 64 * 10 + 10; /* parameters of softmax on digits */
    const char *model = gk_config_text(run->config, "model");

    if (strcmp(model, "softmax") == 0 && strcmp(run->options.data, "digits") == 0 &&
        run->options.servers > least / GK_PARTITION_ALIGN) {
        gk_words_set(words,
                     "%" PRIu64 " are too many: softmax on digits has %" PRIu64
                     " parameters, and a shard has %d at least",
                     run->options.servers, least, GK_PARTITION_ALIGN);
        return "servers";
    }
    return NULL;
}

const char *gk_run_check(const struct gk_run_config *run, bool *ret_data, struct gk_words *words)
{
    const struct gk_run_options *options = &run->options;
    const char *name = gk_run_is_command(run) ? gk_run_command_refuses(run) : NULL;

    if (name) {
        gk_words_set(words,
                     "has no meaning with a command: that is a matter of the program itself, whose "
                     "own options stand behind its name");
        return name;
    }
    if (options->job && gk_job_name_check(options->job, words)) {
        return "job";
    }
    name = check_backend(options, words);
    if (name) {
        return name;
    }
    if (options->summary && !*options->summary) {
        gk_words_set(words, "needs the name of a file, or -");
        return "summary";
    }
    name = check_rate(run, words);
    if (name || gk_run_is_command(run)) {
        return name;
    }
    name = check_servers(run, words);
    return name ? name : check_data(run, ret_data, words);
}
