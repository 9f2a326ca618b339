/* Snapshots as files: written block by block under another name, read block by block. */
#ifndef GK_SERVER_STORE_SNAPFILE_H
#define GK_SERVER_STORE_SNAPFILE_H

#include "server/core/snapshot.h"
#include "server/store/files.h"

struct gk_snapwriter {
    struct gk_file *file;
    const char *name; /* static: of the temporary file */
    struct gk_snapshot_layout layout;
    uint32_t *sums;
};

/* Make the temporary file and get its room.  GK_E_LIMIT, GK_E_IO, GK_E_NOMEM: nothing is left. */
enum gk_err gk_snapwriter_open(const struct gk_place *place, const char *temporary,
                               const struct gk_snapshot_layout *layout, struct gk_snapwriter *ret,
                               struct gk_words *words);

/* A block, which may be written again; its checksum is that of the last time. */
enum gk_err gk_snapwriter_put(const struct gk_place *place, struct gk_snapwriter *writer,
                              uint32_t plane, uint64_t block, const float *values,
                              struct gk_words *words);

/* A block that was put. */
enum gk_err gk_snapwriter_get(const struct gk_place *place, struct gk_snapwriter *writer,
                              uint32_t plane, uint64_t block, float *ret, struct gk_words *words);

/* Header and tables, sync, rename, directory sync.  GK_E_IO after a sync that failed. */
enum gk_err gk_snapwriter_publish(const struct gk_place *place, struct gk_snapwriter *writer,
                                  const struct gk_image *image,
                                  const struct gk_snapshot_facts *facts, struct gk_words *words);

/* Close, and remove the temporary file if it was not published. */
void gk_snapwriter_close(const struct gk_place *place, struct gk_snapwriter *writer);

struct gk_snapreader {
    struct gk_file *file;
    struct gk_name name;
    struct gk_snapshot_head head;
    uint8_t *tables; /* header and tables */
    const uint8_t *sums;
};

/* Header only.  GK_E_AGAIN (the file went away), GK_E_CORRUPT, GK_E_IO, GK_E_NOMEM: nothing is
 * open.
 */
enum gk_err gk_snapreader_open(const struct gk_place *place, uint32_t epoch, uint64_t version,
                               struct gk_snapreader *ret, struct gk_words *words);

/* The tables into an image of the same shard, servers and workers; needed before blocks are read.
 */
enum gk_err gk_snapreader_image(const struct gk_place *place, struct gk_snapreader *reader,
                                struct gk_image *image, struct gk_words *words);

/* A block, its checksum compared.  GK_E_CORRUPT: file and offset. */
enum gk_err gk_snapreader_get(const struct gk_place *place, struct gk_snapreader *reader,
                              uint32_t plane, uint64_t block, float *ret, struct gk_words *words);

void gk_snapreader_close(const struct gk_place *place, struct gk_snapreader *reader);

#endif
