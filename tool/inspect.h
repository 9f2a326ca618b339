/* What `gkps inspect` finds in the folder of one daemon, as a JSON object that both views print. */
#ifndef GK_TOOL_INSPECT_H
#define GK_TOOL_INSPECT_H

#include <jansson.h>

#include <stdbool.h>
#include <stdio.h>

/* Read and check everything in the folder of a server; nothing is written and no lock is taken.
 * "ok" is false, and "problem" one line, when anything is damaged.  NULL: out of memory. */
json_t *gk_inspect_server(const char *path, bool records);

/* The same of a worker's folder. */
json_t *gk_inspect_worker(const char *path);

/* Who the worker of that folder is.  False: there is no slot that can be read. */
struct gk_worker_identity;
bool gk_inspect_identity(const char *path, struct gk_worker_identity *ret);

/* A server's log alone: an object a file into `files`; false: some file is damaged.  *ret_gone: one
 * that was listed went away. */
struct gk_archive;
bool gk_inspect_log(struct gk_archive *archive, bool records, json_t *files, bool *ret_gone);

/* The view for people of one folder's object. */
void gk_inspect_print(const json_t *object, FILE *out);

#endif
