#include "common/net/process.h"
#include "tool/commands.h"

int main(int argc, char **argv)
{
    gk_process_begin();
    return gk_tool_main(argc, argv);
}
