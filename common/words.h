/* One line for a person: what is wrong, where, and what to do about it. */
#ifndef GK_COMMON_WORDS_H
#define GK_COMMON_WORDS_H

#define GK_WORDS_BYTES 512

struct gk_words {
    char text[GK_WORDS_BYTES]; /* always terminated */
};

/* Write the formatted text, cut at the end of the buffer; bytes below 32 and 127 become '?', so
 * that words that quote a peer or a file stay one line.  `words` may be NULL.  Any thread. */
void gk_words_set(struct gk_words *words, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same, put before the text that is there: "reading x.gz: " + old text. */
void gk_words_prefix(struct gk_words *words, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
