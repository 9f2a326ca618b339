#include "tool/commands.h"

int main(int argc, char **argv)
{
    return gk_tool_main(argc, argv);
}
