/* A table of text with aligned columns. */
#ifndef GK_TOOL_TABLE_H
#define GK_TOOL_TABLE_H

#include <stddef.h>
#include <stdio.h>

struct gk_table {
    const char *align; /* one letter a column: l or r; borrowed */
    char **cells;      /* row after row */
    size_t cells_count, cells_room;
    size_t columns;
};

/* Memory of the caller; nothing to free before the first cell. */
void gk_table_init(struct gk_table *table, const char *align);

/* The next cell, row by row.  Out of memory: the cell stays empty. */
void gk_table_cell(struct gk_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* All rows, two blanks between columns, none at the end of a line, each line behind `margin`. */
void gk_table_print(const struct gk_table *table, const char *margin, FILE *out);

/* Accepts a zeroed table. */
void gk_table_fini(struct gk_table *table);

#endif
