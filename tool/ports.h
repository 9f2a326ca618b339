/* Ports of 127.0.0.1 for processes that must be told of each other before they start. */
#ifndef GK_TOOL_PORTS_H
#define GK_TOOL_PORTS_H

#include <stdbool.h>
#include <stdint.h>

enum { GK_PORTS_MAX = 256 };

/* Ports that are free now, each another one: all are held until all are known.  At most
 * GK_PORTS_MAX.  False: none are to be had. */
bool gk_ports_find(uint32_t count, uint16_t *ret_ports);

#endif
