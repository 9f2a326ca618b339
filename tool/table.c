#include "tool/table.h"

#include "common/assert.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { CELL_BYTES_MAX = 1024, COLUMNS_MAX = 16 };

void gk_table_init(struct gk_table *table, const char *align)
{
    memset(table, 0, sizeof(*table));
    table->align = align;
    table->columns = strlen(align);
    GK_ASSERT(table->columns > 0 && table->columns <= COLUMNS_MAX);
}

void gk_table_cell(struct gk_table *table, const char *format, ...)
{
    char text[CELL_BYTES_MAX];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (table->cells_count == table->cells_room) {
        size_t room = table->cells_room ? 2 * table->cells_room : 64;
        char **cells = realloc(table->cells, room * sizeof(*cells));

        if (!cells) {
            return;
        }
        table->cells = cells;
        table->cells_room = room;
    }
    table->cells[table->cells_count++] = strdup(text);
}

static const char *cell_text(const struct gk_table *table, size_t at)
{
    return at < table->cells_count && table->cells[at] ? table->cells[at] : "";
}

static void print_row(const struct gk_table *table, size_t row, const size_t *widths, FILE *out)
{
    size_t blanks = 0; /* owed: written only when something follows */

    for (size_t c = 0; c < table->columns; c++) {
        const char *text = cell_text(table, row * table->columns + c);
        size_t fill = widths[c] - strlen(text);

        if (table->align[c] == 'r') {
            blanks += fill;
        }
        if (*text) {
            (void)fprintf(out, "%*s%s", (int)blanks, "", text);
            blanks = 0;
        }
        if (table->align[c] != 'r') {
            blanks += fill;
        }
        blanks += 2;
    }
    (void)fputc('\n', out);
}

void gk_table_print(const struct gk_table *table, const char *margin, FILE *out)
{
    size_t widths[COLUMNS_MAX] = {0};
    size_t rows = (table->cells_count + table->columns - 1) / table->columns;

    for (size_t i = 0; i < table->cells_count; i++) {
        size_t length = strlen(cell_text(table, i));

        if (length > widths[i % table->columns]) {
            widths[i % table->columns] = length;
        }
    }
    for (size_t row = 0; row < rows; row++) {
        (void)fputs(margin, out);
        print_row(table, row, widths, out);
    }
}

void gk_table_fini(struct gk_table *table)
{
    for (size_t i = 0; i < table->cells_count; i++) {
        free(table->cells[i]);
    }
    free(table->cells);
    memset(table, 0, sizeof(*table));
}
