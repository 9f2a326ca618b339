/* The subcommands of gkps.  Each takes its own arguments (argv[0] is its name) and gives the exit
 * code. */
#ifndef GK_TOOL_COMMANDS_H
#define GK_TOOL_COMMANDS_H

/* The whole program: `gkps COMMAND ...`, `gkps --help`, `gkps --version`. */
int gk_tool_main(int argc, char **argv);

int gk_tool_run(int argc, char **argv);
int gk_tool_status(int argc, char **argv);
int gk_tool_inspect(int argc, char **argv);
int gk_tool_export(int argc, char **argv);
int gk_tool_rewind(int argc, char **argv);
int gk_tool_repair(int argc, char **argv);

#endif
