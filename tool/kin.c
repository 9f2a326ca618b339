#include "tool/kin.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The parent of a process, and the beginning of its command line; 0: it is gone. */
static pid_t parent_of(const char *pid, char *ret_command, size_t room)
{
    char path[64], data[512];
    const char *behind;
    ssize_t n = -1;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, data, sizeof(data) - 1);
        (void)close(fd);
    }
    if (n <= 0) {
        return 0;
    }
    data[n] = '\0';
    behind = strrchr(data, ')'); /* "12 (a name) S 7 ..." */
    (void)snprintf(ret_command, room, "process %.20s%.40s", pid,
                   strchr(data, '(') ? strchr(data, '(') - 1 : "");
    if (strchr(ret_command, ')')) {
        strchr(ret_command, ')')[1] = '\0';
    }
    return behind && strlen(behind) > 4 ? (pid_t)strtol(behind + 4, NULL, 10) : 0;
}

void gk_kin_each(gk_kin_fn *each, void *context)
{
    DIR *folder = opendir("/proc");
    const struct dirent *entry;
    char name[96];

    while (folder && (entry = readdir(folder))) {
        if (strspn(entry->d_name, "0123456789") == strlen(entry->d_name) &&
            parent_of(entry->d_name, name, sizeof(name)) == getpid()) {
            each(context, (pid_t)strtol(entry->d_name, NULL, 10), name);
        }
    }
    if (folder) {
        (void)closedir(folder);
    }
}

struct message {
    int number;
    struct gk_words *who;
};

static void tell(void *context, pid_t pid, const char *name)
{
    const struct message *message = context;

    if (message->who && !message->who->text[0]) {
        gk_words_set(message->who, "%s", name);
    }
    (void)kill(pid, message->number);
}

void gk_kin_signal(int number, struct gk_words *ret_who)
{
    struct message message = {number, ret_who};

    gk_kin_each(tell, &message);
    if (ret_who && !ret_who->text[0]) {
        gk_words_set(ret_who, "a process");
    }
}
